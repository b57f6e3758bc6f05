"""Conversation with a trained model on a terminal."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from txl_tf.errors import UsageError

if TYPE_CHECKING:
    from txl_tf.causal_lm.text_session import TextSession

_INVITATION = "> "
_HELP = "A line is continued; an empty line asks for more. Ctrl-C stops, Ctrl-D ends."


def converse(
    session: "TextSession", num_tokens: int, *, can_go_on: bool, after_turn: Callable[[], None]
) -> None:
    """Reads a line and writes its continuation, until the end of the input.

    Args:
        session: `TextSession`.
        num_tokens: int. The most to write for each line.
        can_go_on: bool. Whether the session has a text to continue.
        after_turn: function that is called after every text.
    """
    print(_HELP, file=sys.stderr)
    while (line := _next_line()) is not None:
        if not line and not can_go_on:
            continue
        with _interruption() as is_interrupted:
            try:
                for piece in session.stream(line or None, max_tokens=num_tokens):
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
        # `input` would write it to descriptor 2, where lines of libraries are filtered.
        print(_INVITATION, end="", file=sys.stderr, flush=True)
        return input()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None


@contextlib.contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Records Ctrl-C while the block runs; the session can stop only between two tokens."""
    signals: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGINT, previous)
