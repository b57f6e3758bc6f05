"""The hosts of a slice during training: those that are told to go, and those that are lost."""

import contextlib
import os
import sys
from collections.abc import Iterator

import tensorflow as tf

from pipelines.last_defence import finish, report
from txl_tf.distribution.host_watcher import HostWatcher
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.distribution.remote_hosts import RemoteHost, remote_hosts
from txl_tf.errors import PreemptedError


@contextlib.contextmanager
def watched_hosts(
    strategy: tf.distribute.Strategy, watcher: PreemptionWatcher | None
) -> Iterator[None]:
    """Stops a run when one of its hosts was told to go, and ends the process when one is lost.

    What is done inside is left first, whatever has been lost, so that a
    checkpoint on its way is still written. But TensorFlow does not survive the
    loss: it would fail once more for each object that is dropped, and may abort
    at the end. So the process says what was lost and ends, with the exit code
    of a preemption.

    Args:
        strategy: `tf.distribute.Strategy` of the run.
        watcher: optional `PreemptionWatcher`, which gets the notice and stops
            the run.
    """
    hosts = remote_hosts(strategy)
    if not hosts:
        yield
        return
    leaving = []

    def leave(host: RemoteHost) -> None:
        leaving.append(host)
        if watcher is not None:
            watcher.notice(f"the host {host.address} is being taken away")

    # The main thread waits inside TensorFlow for a host that says nothing, and nothing ends that.
    with (
        _quiet_when_dropped(),
        HostWatcher(hosts, leave, lambda host: _end_process([host])),
    ):
        try:
            yield
        except (tf.errors.OpError, RuntimeError):
            lost = [host for host in hosts if not host.answers()]
            if not lost:
                raise
            _end_process(lost)
        finally:
            for host in leaving:
                with contextlib.suppress(tf.errors.OpError, RuntimeError):
                    host.release()


def _end_process(lost: list[RemoteHost]) -> None:
    named = ", ".join(host.address for host in lost[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    error = PreemptedError(
        "A host of the slice does not answer any more.",
        where=f"{named}{more}",
        remedy="The same command goes on from the last checkpoint once its server runs again.",
    )
    os._exit(finish(report(error)))


@contextlib.contextmanager
def _quiet_when_dropped() -> Iterator[None]:
    """Suppresses TensorFlow errors that are raised while objects are dropped."""
    before = sys.unraisablehook

    def ignore_operations(arguments: "sys.UnraisableHookArgs") -> None:
        if not isinstance(arguments.exc_value, tf.errors.OpError):
            before(arguments)

    sys.unraisablehook = ignore_operations
    try:
        yield
    finally:
        sys.unraisablehook = before
