"""Notices that a remote host is being taken away, or does not answer any more."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import tensorflow as tf

from txl_tf.distribution.remote_hosts import RemoteHost


class HostWatcher:
    """Watch on remote hosts, with one polling thread per host.

    A host that was told to go says so, and there is time to save. A connection
    that breaks ends the training loop with an error, and needs no watcher. But
    a host may fall silent without that, as when its network is gone; then the
    loop would wait for ever.

    Args:
        hosts: list of `RemoteHost`.
        on_leaving: function of a host that was told to go. It is called once
            for each, in another thread than the caller's.
        on_silence: function of a host that has not answered for
            `silence_seconds`; called like that.
        poll_seconds: float. Time between two questions.
        silence_seconds: float. Silence after which a host counts as lost.
    """

    def __init__(
        self,
        hosts: list[RemoteHost],
        on_leaving: Callable[[RemoteHost], None],
        on_silence: Callable[[RemoteHost], None],
        *,
        poll_seconds: float = 0.5,
        silence_seconds: float = 120.0,
    ) -> None:
        self._hosts = hosts
        self._on_leaving = on_leaving
        self._on_silence = on_silence
        self._poll_seconds = poll_seconds
        self._silence_seconds = silence_seconds
        self._end = threading.Event()
        self._asked: dict[RemoteHost, float] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        targets: list[tuple[Callable[..., None], tuple[RemoteHost, ...]]] = [
            (self._ask, (host,)) for host in self._hosts
        ]
        for target, arguments in [*targets, (self._listen, ())]:
            # Daemons, because a question to a host that hangs is never answered.
            thread = threading.Thread(
                target=target, args=arguments, name="host-watcher", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(timeout=2 * self._poll_seconds)

    def _ask(self, host: RemoteHost) -> None:
        while not self._end.is_set():
            self._asked[host] = time.monotonic()
            try:
                is_leaving = host.is_leaving()
            except (tf.errors.OpError, RuntimeError):
                # The loop ends with an error of its own.
                self._asked.pop(host, None)
                return
            self._asked.pop(host, None)
            if is_leaving and not self._end.is_set():
                self._on_leaving(host)
                return
            self._end.wait(self._poll_seconds)

    def _listen(self) -> None:
        while not self._end.wait(self._poll_seconds):
            for host, asked in list(self._asked.items()):
                if time.monotonic() - asked > self._silence_seconds:
                    self._asked.pop(host, None)
                    self._on_silence(host)
