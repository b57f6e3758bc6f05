"""Work in turns, on request: what runs in each process that takes part in a measurement.

    PYTHON turn_server.py PROGRAM

PROGRAM is a Python file with a function `create` of a request, which returns a
function that does the work so many times and returns figures of it. It needs
nothing of this project, nor does this file: another Python runs both.

The first line of the standard input is the request, in JSON. The answer to it
comes when the work can begin. Each further line is a number of times; the answer
has the seconds that they took, and the most memory that the process ever had.
"""

import contextlib
import json
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable
from typing import Any

Turn = Callable[[int], dict[str, Any]]
"""Does the work so many times, and returns figures of it such as `tokens`."""

_STATUS = "/proc/self/status"
_PEAK = "VmHWM:"


def serve(create: Callable[[dict[str, Any]], Turn]) -> None:
    """Answers until there is nothing more to read.

    Args:
        create: function of the request that returns a `Turn`.
    """
    # What libraries print must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    turn = create(json.loads(sys.stdin.readline()))
    _answer(answers, {})
    for line in sys.stdin:
        begin = time.perf_counter()
        figures = turn(int(line))
        seconds = time.perf_counter() - begin
        _answer(answers, {"seconds": seconds, **figures})


def _answer(answers: Any, figures: dict[str, Any]) -> None:
    print(json.dumps({**figures, "peak_bytes": peak_bytes()}), file=answers, flush=True)


def peak_bytes() -> int:
    """Returns the most memory that this process ever had."""
    # What the kernel counts for the parent of a process counts for its child too, until here.
    with contextlib.suppress(OSError), open(_STATUS) as lines:
        for line in lines:
            if line.startswith(_PEAK):
                return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    # The folder of this file has modules that may be called as one of another package.
    del sys.path[0]
    serve(runpy.run_path(sys.argv[1])["create"])
