"""`worker_server` with a CPU in the place of chips: TensorFlow's server of any build.

python -m tests.distribution.serve_cpu --port PORT
"""

from pipelines.launch import worker_server

SERVERS = []


def start_server(port: int) -> None:
    """Serves this host, which the trainer tells later which cluster it belongs to."""
    import tensorflow as tf

    # As in the trainer: sums in parallel kernels keep their order.
    tf.config.experimental.enable_op_determinism()
    cluster = tf.train.ClusterSpec({"worker": [f"localhost:{port}"]})
    SERVERS.append(tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc"))


if __name__ == "__main__":
    worker_server.start_server = start_server
    # No trainer is cut off on a busy machine.
    worker_server.GRACE_SECONDS = 60.0
    worker_server.main()
