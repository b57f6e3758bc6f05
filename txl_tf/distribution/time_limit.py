"""Calls that may wait without end, with a time limit."""

import threading
from collections.abc import Callable
from typing import Any


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Calls a function, and raises TimeoutError if it does not return in time.

    A call that waits in TensorFlow's C++ cannot be ended, so it continues in a daemon thread.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def call() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:  # a thread swallows even `SystemExit`
            outcome.append((None, error))

    thread = threading.Thread(target=call, name="within", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer in {seconds:g} seconds")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
