"""Output of a job: lines, tables, and progress as a bar on a terminal or as plain lines."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, track
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from txl_tf.training.ledger import LoopReport

SECONDS_BETWEEN_LINES = 10.0
# Programs may read the table, so its lines are never wrapped.
_TABLE_WIDTH = 10_000

Item = TypeVar("Item")


def say(text: str) -> None:
    """Prints a line to the standard error at once."""
    print(text, file=sys.stderr, flush=True)


def plain_table(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Aligns rows of text in columns without borders, whatever the width of the terminal."""
    first, *others = rows
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for column in range(len(first)):
        table.add_column(justify="right" if column in right else "left", no_wrap=True)
    for row in (first, *others):
        table.add_row(*map(Text, row))
    console = Console(width=_TABLE_WIDTH)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def show_progress(
    items: Iterable[Item], num_items: int, what: str = "evaluating"
) -> Iterator[Item]:
    """Passes items on, with a bar named `what` on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield from items
        return
    console = Console(stderr=True)
    yield from track(items, what, total=num_items, console=console, transient=True)


class TrainingProgress:
    """Progress of training: step, time left, loss, tokens per second, last validation.

    `describe_loss` returns a figure of the mean loss, such as bits per byte, or an empty string.
    """

    def __init__(self, num_steps: int, describe_loss: Callable[[float], str]) -> None:
        self._num_steps = num_steps
        self._describe_loss = describe_loss
        self._seconds = 0.0
        self._steps = 0
        self._next_line = 0.0
        self._valid = ""
        self._is_terminal = sys.stderr.isatty()
        # Only the bar shrinks; at 80 columns, a few characters remain.
        self._bar = Progress(
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}{task.fields[valid]}"),
            console=Console(stderr=True),
            expand=True,
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task("", total=num_steps, figures="compiling", valid="")

    def __enter__(self) -> Self:
        if self._is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        if self._is_terminal:
            self._bar.stop()

    def begin_at(self, step: int) -> None:
        """Shows the step at which a run starts."""
        self._bar.update(self._task, completed=step)

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._is_terminal:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            say(text)

    def update(self, report: "LoopReport", peak_tokens_per_second: float | None = None) -> None:
        """Shows the figures of a loop; plain lines include the share of the devices' peak."""
        if not report.has_compiled:
            self._seconds += report.seconds
            self._steps += report.num_steps
        time_left, tokens = self._time_left(report), report.tokens_per_second
        figure = self._describe_loss(report.nats_per_token)
        if self._is_terminal:
            figures = f"{time_left} {figure} {_short(tokens)} tokens/s".lstrip()
            self._bar.update(self._task, completed=report.step, figures=figures)
        elif time.monotonic() >= self._next_line or report.step == self._num_steps:
            self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            share = ""
            if peak_tokens_per_second is not None:
                share = f" ({tokens / peak_tokens_per_second:.0%} of peak)"
            say(
                f"step {report.step}/{self._num_steps}  loss {report.nats_per_token:.4f} nats  "
                f"{figure}  {tokens:,.0f} tokens/s{share}{self._valid}  {time_left}".rstrip()
            )

    def show_validation(self, figure: str) -> None:
        """Shows a validation figure beside the training figures from now on."""
        self._valid = f"  valid {figure}"
        self._bar.update(self._task, valid=self._valid)

    def _time_left(self, report: "LoopReport") -> str:
        if not self._steps:
            return ""
        seconds = int((self._num_steps - report.step) * self._seconds / self._steps)
        hours, minutes = divmod(seconds // 60, 60)
        begin = f"{hours}:{minutes:02d}" if hours else str(minutes)
        return f"{begin}:{seconds % 60:02d} left"


def _short(number: float) -> str:
    """Formats a number in at most four characters: 123, 12k, 1.2M."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.{1 if number < 9.95 * factor else 0}f}{unit}"
    return f"{number:.0f}"
