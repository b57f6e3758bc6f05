"""TensorFlow's server on a host of a slice: `python -m pipelines.launch.worker_server`.

The trainer connects to the servers of all hosts and gives them their work. With `--tpu-vm` the
server of the `tensorflow-tpu` package runs, which asks the TPU VM for its place in the slice.

A host that is taken away gets SIGTERM. TensorFlow's own server would end at once and lose the
state in its chips. This one leaves a notice and serves until the trainer answers in it, for at
most `--grace-seconds`. A second signal ends it. SIGINT is treated as SIGTERM.
"""

import argparse
import os
import signal
import threading
import time
from pathlib import Path

from txl_tf.distribution.preemption import notice_path
from txl_tf.storage.files import set_read_ahead

GRACE_SECONDS = 25.0
"""The 30 seconds of notice of a spot machine, less a margin."""
_POLL_SECONDS = 0.2
_ENDS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Serves until a signal ends it."""
    parser = argparse.ArgumentParser("python -m pipelines.launch.worker_server")
    parser.add_argument("--port", type=int, default=8470, help="port (default: 8470)")
    meaning = f"how long to serve after SIGTERM (default: {GRACE_SECONDS:g})"
    parser.add_argument("--grace-seconds", type=float, default=GRACE_SECONDS, help=meaning)
    meaning = "serve the chips of a TPU VM of a slice"
    parser.add_argument("--tpu-vm", action="store_true", help=meaning)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    set_read_ahead()
    # Set before TensorFlow starts threads, so that they inherit it: once a client connects,
    # TensorFlow would handle SIGTERM itself and end the server.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    notice = Path(notice_path(arguments.port))
    notice.unlink(missing_ok=True)
    serve = _serve_tpu_vm if arguments.tpu_vm else _serve
    serve(arguments.port)
    print(f"Serving on port {arguments.port}.", flush=True)
    ended_by = signal.sigwait(_ENDS)
    notice.touch()
    deadline = time.monotonic() + arguments.grace_seconds
    while time.monotonic() < deadline and not notice.stat().st_size:
        if signal.sigtimedwait(_ENDS, _POLL_SECONDS) is not None:
            break
    notice.unlink()
    # A pod that ends with 0 would count as finished.
    os._exit(128 + ended_by)


def _serve(port: int) -> None:
    import tensorflow as tf

    # As in the trainer: sums in parallel kernels keep their order.
    tf.config.experimental.enable_op_determinism()
    # The trainer tells the server later which cluster it belongs to.
    cluster = tf.train.ClusterSpec({"worker": [f"localhost:{port}"]})
    _servers.append(tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc"))


def _serve_tpu_vm(port: int) -> None:
    # Only the TPU build has this module.
    from tensorflow.python.tools import grpc_tpu_worker

    os.environ["TPU_TASK_PORT"] = str(port)
    grpc_tpu_worker.setup_env_vars()
    # `main` never returns.
    threading.Thread(
        target=grpc_tpu_worker.main, args=([],), name="tpu-server", daemon=True
    ).start()


_servers: list[object] = []


if __name__ == "__main__":
    main()
