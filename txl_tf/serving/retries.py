"""Asks again where a server was not there to answer."""

import time
from collections.abc import Callable
from typing import TypeVar

from txl_tf.serving.prediction_error import PredictionError
from txl_tf.serving.status_code import StatusCode

_Answer = TypeVar("_Answer")

_FIRST_WAIT_SECONDS = 0.1


def call_with_retries(
    call: Callable[[float], _Answer], num_attempts: int, timeout_seconds: float
) -> _Answer:
    """Calls until there is an answer.

    Every request of a served model may be repeated, because a server keeps
    nothing. Only UNAVAILABLE is: what was refused once is refused again, and
    a server that took too long needs no second request.

    Args:
        call: function of the seconds it may take. It raises PredictionError.
        num_attempts: int. The most calls, with growing waits between them.
        timeout_seconds: float. The most time for all of it.

    Returns:
        What `call` returned.

    Raises:
        PredictionError: The last one, where no call succeeded in time.
    """
    deadline = time.monotonic() + timeout_seconds
    for attempt in range(num_attempts):
        try:
            return call(max(deadline - time.monotonic(), 0.001))
        except PredictionError as error:
            wait_seconds = _FIRST_WAIT_SECONDS * 2**attempt
            is_last = attempt + 1 == num_attempts
            too_late = time.monotonic() + wait_seconds >= deadline
            if error.code != StatusCode.UNAVAILABLE or is_last or too_late:
                raise
        time.sleep(wait_seconds)
    raise ValueError(f"`num_attempts` must be positive. Received: {num_attempts}")
