"""Shows how many bytes a job has done: a bar on a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

_BYTES_PER_MEGABYTE = 1_000_000
_SECONDS_BETWEEN_LINES = 10.0

ReportBytes = Callable[[str, int], None]


@contextlib.contextmanager
def byte_progress(total_bytes: int | None, verb: str) -> Iterator[ReportBytes]:
    """Shows how far a job is while the `with` block runs.

    Args:
        total_bytes: optional int. All there is to do, if that is known.
        verb: str. Such as `"preparing"`.

    Yields:
        Function to call with what is being done and the bytes done since last;
        threads may call it.
    """
    if not sys.stderr.isatty():
        yield _line_printer(total_bytes, verb)
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total_bytes)
        yield lambda split, num_bytes: bar.update(task, advance=num_bytes, description=split)


def _line_printer(total_bytes: int | None, verb: str) -> ReportBytes:
    done_bytes = 0
    next_time = time.monotonic() + _SECONDS_BETWEEN_LINES
    of_total = f" of {total_bytes / _BYTES_PER_MEGABYTE:.1f}" if total_bytes else ""

    def report(split: str, num_bytes: int) -> None:
        nonlocal done_bytes, next_time
        done_bytes += num_bytes
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + _SECONDS_BETWEEN_LINES
            megabytes = f"{done_bytes / _BYTES_PER_MEGABYTE:.1f}{of_total}"
            print(f"{verb} {split}: {megabytes} MB", file=sys.stderr, flush=True)

    return report
