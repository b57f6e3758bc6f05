"""TensorFlow's server on a host of a slice: `python -m pipelines.launch.worker_server`.

Whoever drives the slice connects to the servers of all hosts and gives them
their work (`txl train --tpu grpc://HOST:8470,...`). The images of TPU VMs for
slices bring such a server; a container has none.
"""

import argparse
import os
import signal

_ENDS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Serves until the process is ended."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.launch.worker_server",
        description="TensorFlow's server on a host of a TPU slice.",
    )
    parser.add_argument("--port", type=int, default=8470, help="port (default: 8470)")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

    # Before TensorFlow starts threads, which inherit it: once a client has connected,
    # TensorFlow takes SIGTERM for itself, and the server would outlive it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)

    import tensorflow as tf

    # Alone, until someone connects and tells it which cluster it is part of.
    cluster = tf.train.ClusterSpec({"worker": [f"localhost:{arguments.port}"]})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc")
    print(f"Serving on port {arguments.port}.", flush=True)
    ended_by = signal.sigwait(_ENDS)
    # Nothing here is worth a slow end, and a pod that ends with 0 would count as done.
    del server
    os._exit(128 + ended_by)


if __name__ == "__main__":
    main()
