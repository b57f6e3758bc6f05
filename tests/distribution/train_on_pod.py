"""`txl train --tpu grpc://...` on a slice whose hosts have a CPU in the place of chips.

    python -m tests.distribution.train_on_pod train --tpu grpc://HOST:PORT,... ...

TensorFlow's resolver, its connection to the hosts and its remote execution are the
real ones. Two things are not: nothing initializes a TPU, and the strategy is a
`MirroredStrategy` over the hosts' CPUs, which TensorFlow can execute remotely too.
"""

import sys

import tensorflow as tf

from pipelines.command_line import main


def strategy_of_hosts(resolver: tf.distribute.cluster_resolver.ClusterResolver):
    """A strategy with a replica on each host, which also reads its rows there."""
    hosts = [
        device.name
        for device in tf.config.list_logical_devices("CPU")
        if "/job:worker/" in device.name
    ]
    assert len(hosts) == len(resolver.cluster_spec().as_dict()["worker"])
    strategy = tf.distribute.MirroredStrategy(
        hosts[:1], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    # Its constructor takes several hosts in graphs only.
    strategy.extended._devices = tuple(hosts)
    strategy.extended._input_workers_devices = tuple((host, (host,)) for host in hosts)
    return strategy


class StrategyOfHosts:
    """In the place of `tf.distribute.TPUStrategy`, which the jobs also ask for its type."""

    def __new__(cls, resolver):
        return strategy_of_hosts(resolver)


if __name__ == "__main__":
    tf.tpu.experimental.initialize_tpu_system = lambda resolver: None
    tf.distribute.TPUStrategy = StrategyOfHosts
    sys.exit(main(sys.argv[1:]))
