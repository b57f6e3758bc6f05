"""Distribution strategies, state of replicas, remote hosts and preemption."""
