"""Progress by bytes, of preparation, verification and downloads."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from .progress import SECONDS_BETWEEN_LINES, say

_BYTES_PER_MEGABYTE = 1_000_000
ReportBytes = Callable[..., None]


@contextlib.contextmanager
def byte_progress(total_bytes: int | None, verb: str) -> Iterator[ReportBytes]:
    """Yields a function of a part's name and its new bytes that shows progress.

    If the total becomes known only later, the caller passes it as the third argument.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    is_terminal = sys.stderr.isatty()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not is_terminal)
    task_id = bar.add_task(verb, total=total_bytes)
    (task,) = bar.tasks
    next_time = time.monotonic() + SECONDS_BETWEEN_LINES

    def report(part: str, num_bytes: int, total: int | None = None) -> None:
        nonlocal next_time
        bar.update(task_id, advance=num_bytes, description=part, total=total)
        if not is_terminal and time.monotonic() >= next_time:
            next_time = time.monotonic() + SECONDS_BETWEEN_LINES
            of_total = f" of {task.total / _BYTES_PER_MEGABYTE:.1f}" if task.total else ""
            say(f"{verb} {part}: {task.completed / _BYTES_PER_MEGABYTE:.1f}{of_total} MB")

    with bar if is_terminal else contextlib.nullcontext():
        yield report


@contextlib.contextmanager
def download_progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yields a function of the bytes received and the total, if known, that shows a download."""
    done_before = 0
    with byte_progress(None, "downloading") as report:

        def advance(done_bytes: int, total_bytes: int | None) -> None:
            nonlocal done_before
            report(what, done_bytes - done_before, total_bytes)
            done_before = done_bytes

        yield advance
