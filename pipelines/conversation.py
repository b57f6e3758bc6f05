"""Writes what the user begins, on a terminal, again and again."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

from pipelines.text_writer import TextWriter
from txl_tf.errors import UsageError

_INVITATION = "> "
_HELP = "A line is gone on with; an empty one is more of the same. Ctrl-C stops, Ctrl-D ends."


def converse(
    writer: TextWriter, num_tokens: int, *, can_go_on: bool, after_turn: Callable[[], None]
) -> None:
    """Reads a line, writes text, and so on until the end of the input.

    Args:
        writer: `TextWriter`.
        num_tokens: int. The most to write for each line.
        can_go_on: bool. Whether there is text to go on from already.
        after_turn: function that is called after every text.
    """
    print(_HELP, file=sys.stderr)
    while (line := _next_line()) is not None:
        if not line and not can_go_on:
            continue
        with _interruption() as is_interrupted:
            try:
                for piece in writer.write(line or None, num_tokens):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
                    if is_interrupted():
                        break
            except UsageError as error:
                print(error, file=sys.stderr)
                continue
        sys.stdout.write("\n")
        can_go_on = True
        after_turn()


def _next_line() -> str | None:
    try:
        return input(_INVITATION)
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None


@contextlib.contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Notes Ctrl-C: between two tokens the session can be stopped, within one it cannot."""
    signals: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGINT, previous)
