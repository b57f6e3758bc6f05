"""Detection of preemption: signals and notices of the cloud metadata server.

TensorFlow's own watcher does nothing on Cloud TPU. This module does not import TensorFlow, so a
job can watch before that import, which takes seconds.

A slice has several hosts. A host that is told to stop writes a notice file, and TensorFlow's server
on it keeps running. The training process finds the file through that server, saves, writes into the
file that the host may exit, and exits itself.
"""

import contextlib
import http.client
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Self

_METADATA_HOST = "169.254.169.254"
# Metadata key: the value that announces the end, and the reason to report.
_NOTICES = {
    "preempted": ("TRUE", "the machine is being preempted"),
    "maintenance-event": ("TERMINATE_ON_HOST_MAINTENANCE", "the host goes into maintenance"),
}
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_INTERRUPTED = 128 + signal.SIGINT
_POLL_SECONDS = 60
_FIRST_ANSWER_SECONDS = 3.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 30.0
# After this many unanswered requests, the machine is taken to be outside Google Cloud.
_NUM_TRIES = 3
_END = b"\0"


def notice_path(port: int | str) -> str:
    """Returns the path of the notice file of the host whose server has this port.

    The host writes the file when it must stop. The training process writes into it when it no
    longer needs the host.
    """
    return f"/tmp/txl-host-leaves-{os.getuid()}-{port}"


class PreemptionWatcher:
    """Watcher for requests to stop: signals and notices of the cloud.

    The signals are SIGTERM, Ctrl-C (SIGINT) and SIGHUP. On Google Cloud the metadata server
    announces a preemption or maintenance first; the variable `GCE_METADATA_HOST` may name another
    server. Threads watch, because the main thread may be inside TensorFlow for minutes, where no
    Python handler runs.

    Only the first request counts. It sets `requested` to the reason to stop, a clause, which is
    `None` before, and calls `on_notice` in another thread. A second Ctrl-C ends the process at once
    with exit code 130. SIGINT and SIGHUP stay ignored if they were ignored before, as under
    `nohup`.

    The end of the `with` block restores the handlers if no request came. After a request, SIGTERM
    and SIGHUP are ignored, so that the process ends with its own exit code, and SIGINT ends it.
    """

    def __init__(self, on_notice: Callable[[], None] | None = None) -> None:
        self._on_notice = on_notice
        self.requested: str | None = None
        self._lock = threading.Lock()
        self._has_ended = threading.Event()

    def call_on_notice(self, on_notice: Callable[[], None]) -> None:
        """Sets the function to call, and calls it at once if a request has come already."""
        with self._lock:
            self._on_notice = on_notice
            is_late = self.requested is not None
        if is_late:
            on_notice()

    def __enter__(self) -> Self:
        """Begins to watch; only the main thread may set handlers."""
        self._read_end, self._write_end = os.pipe()
        # Python's handler in C writes here at once, even while the main thread is in TensorFlow.
        os.set_blocking(self._write_end, False)
        self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._old_handlers = {
            number: signal.signal(number, _do_nothing)
            for number in _SIGNALS
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN
        }
        self._thread = threading.Thread(
            target=self._wait_for_signal, name="preemption-signal", daemon=True
        )
        self._thread.start()
        for key in _NOTICES:
            threading.Thread(
                target=self._poll_metadata, args=(key,), name=f"metadata-{key}", daemon=True
            ).start()
        return self

    def __exit__(self, *error: object) -> None:
        # The threads that wait for the metadata server are abandoned.
        self._has_ended.set()
        os.write(self._write_end, _END)
        self._thread.join()
        for number, handler in self._old_handlers.items():
            # `None` stands for a handler that was not set from Python.
            action = handler or signal.SIG_DFL
            if self.requested is not None:
                action = signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN
            signal.signal(number, action)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read_end)
        os.close(self._write_end)

    def _wait_for_signal(self) -> None:
        num_interrupts = 0
        while True:
            signals = os.read(self._read_end, 64)
            for number in self._old_handlers:
                if number in signals:
                    self.notice(f"the process received {number.name}")
            interrupts = signals.count(signal.SIGINT) if signal.SIGINT in self._old_handlers else 0
            if interrupts and not num_interrupts:
                _print_error(
                    "Stopping; the work done is saved. Press Ctrl-C again to end the process now."
                )
            num_interrupts += interrupts
            if num_interrupts > 1:
                _print_error("Interrupted.")
                os._exit(_INTERRUPTED)
            if _END in signals:
                return

    def _poll_metadata(self, key: str) -> None:
        """Waits until a key of the metadata has the value that announces the end."""
        # The server never sends the tag 0, so the first answer comes at once.
        entity_tag, has_answered, num_failures = "0", False, 0
        while not self._has_ended.is_set():
            try:
                value, entity_tag = _ask_metadata(
                    key, entity_tag, _POLL_SECONDS if has_answered else 0
                )
            except (OSError, http.client.HTTPException):
                num_failures += 1
                if not has_answered and num_failures == _NUM_TRIES:
                    return
                pause = _FIRST_PAUSE_SECONDS * 2.0 ** min(num_failures - 1, 10)
                self._has_ended.wait(min(pause, _LONGEST_PAUSE_SECONDS))
                continue
            has_answered, num_failures = True, 0
            notice_value, reason = _NOTICES[key]
            if value == notice_value and not self._has_ended.is_set():
                self.notice(reason)
                return

    def notice(self, reason: str) -> None:
        """Records a reason to stop, a clause; only the first one counts."""
        with self._lock:
            if self.requested is not None:
                return
            self.requested = reason
            on_notice = self._on_notice
        if on_notice is not None:
            on_notice()


def _print_error(text: str) -> None:
    # If the terminal is gone, the exit code still reports the end.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


def _do_nothing(number: int, frame: object) -> None:
    """Empty handler: Python writes only handled signals to the wake-up descriptor."""


def _ask_metadata(key: str, entity_tag: str, wait_seconds: int) -> tuple[str, str]:
    """Requests a value from the metadata server; returns the value and its tag.

    The server answers when the tag differs from `entity_tag`, at the latest after `wait_seconds`.
    """
    # `http.client` uses no proxies, which could not reach the server.
    connection = http.client.HTTPConnection(
        os.environ.get("GCE_METADATA_HOST") or _METADATA_HOST,
        timeout=_FIRST_ANSWER_SECONDS + wait_seconds,
    )
    try:
        connection.request(
            "GET",
            f"/computeMetadata/v1/instance/{key}?wait_for_change=true"
            f"&timeout_sec={wait_seconds}&last_etag={entity_tag}",
            headers={"Metadata-Flavor": "Google"},
        )
        response = connection.getresponse()
        text = response.read(1000).decode("ascii", errors="replace").strip()
        # Other clouds have a server of their own at this address.
        if response.status != 200 or response.headers.get("Metadata-Flavor") != "Google":
            raise http.client.HTTPException(f"status {response.status}")
        return text, response.headers.get("ETag", "0")
    finally:
        connection.close()
