"""Ends the waiting for something that may never come."""

import threading
from collections.abc import Callable
from typing import Any


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Calls a function, and waits for it no longer than said.

    What waits in TensorFlow's C++ cannot be ended. It is left alone in a
    thread, which does not keep the process from ending.

    Args:
        seconds: float. How long to wait.
        function: function without arguments.

    Returns:
        What the function returns.

    Raises:
        TimeoutError: If the time is over.
        Exception: What the function raises.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def call() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
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
