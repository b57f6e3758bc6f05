"""TensorFlow's server on a host of a slice: `python -m txl_tf_pipelines.launch.worker_server`.

The trainer connects to the servers of all hosts and gives them their work. This program runs
the server of the `tensorflow-tpu` package, which asks the TPU VM for its place in the slice.

A host that is taken away gets SIGTERM. TensorFlow's own server would end at once and lose the
state in its chips. This one leaves a notice and serves until the trainer answers in it, for at
most `GRACE_SECONDS`. A second signal ends it. SIGINT is treated as SIGTERM.
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
    parser = argparse.ArgumentParser("python -m txl_tf_pipelines.launch.worker_server")
    parser.add_argument("--port", type=int, default=8470, help="port (default: 8470)")
    arguments = parser.parse_args()
    # 1. Signals are blocked before TensorFlow starts threads, so that they inherit it: once a
    # client connects, TensorFlow would handle SIGTERM itself and end the server.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    set_read_ahead()
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    notice = Path(notice_path(arguments.port))
    notice.unlink(missing_ok=True)
    # 2. The server runs in a thread, and this one waits for a signal.
    start_server(arguments.port)
    print(f"Serving on port {arguments.port}.", flush=True)
    ended_by = signal.sigwait(_ENDS)
    # 3. The trainer finds the empty notice, saves the step, and writes into the notice.
    notice.touch()
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and not notice.stat().st_size:
        if signal.sigtimedwait(_ENDS, _POLL_SECONDS) is not None:
            break
    notice.unlink()
    # The thread of the server never ends.
    os._exit(128 + ended_by)


def start_server(port: int) -> None:
    """Starts the server of a TPU VM in a thread."""
    # Only the TPU build has this module.
    from tensorflow.python.tools import grpc_tpu_worker

    os.environ["TPU_TASK_PORT"] = str(port)
    grpc_tpu_worker.setup_env_vars()
    # `main` never returns.
    threading.Thread(
        target=grpc_tpu_worker.main, args=([],), name="tpu-server", daemon=True
    ).start()


if __name__ == "__main__":
    main()
