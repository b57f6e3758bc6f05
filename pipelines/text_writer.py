"""Text generation from a session: streaming output and conversation on a terminal."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer
from txl_tf.errors import UsageError

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.generation import GenerationSession


_REPLACEMENT = "\ufffd"
# What a tokenizer makes of a token depends on few tokens before it.
_CONTEXT_TOKENS = 64


class TextWriter:
    """Text generator over a session: continues a text piece by piece.

    Args:
        session: `GenerationSession` of one row.
        tokenizer: the tokenizer its model was trained with.
        stop_texts: strings. Writing ends before the first of them.
    """

    def __init__(
        self,
        session: "GenerationSession",
        tokenizer: "Tokenizer",
        stop_texts: Sequence[str] = (),
    ) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._stop_texts = tuple(stop_texts)
        self._written = np.zeros((0,), np.int32)

    def write(self, prompt: str | None, num_tokens: int) -> Iterator[str]:
        """Reads a prompt and continues it.

        Args:
            prompt: str of at least one token, or `None` to continue the text of
                the session. One without a token is a UsageError.
            num_tokens: int. The most to write.

        Yields:
            Pieces of text, of which some are empty. A byte that is no UTF-8
            becomes the replacement sign.
        """
        prompt_ids = None if prompt is None else prompt_tokens(self._tokenizer, prompt)
        self._written = self._written[-_CONTEXT_TOKENS:]
        if prompt_ids is not None:
            self._written = np.concatenate([self._written, prompt_ids])
        before, shown = len(decoded(self._tokenizer, self._written)), 0
        for _ in range(num_tokens):
            token = self._session.write(
                None if prompt_ids is None else prompt_ids[None], num_tokens=1
            )
            prompt_ids = None
            self._written = np.concatenate([self._written, token[0]])
            text = decoded(self._tokenizer, self._written)[before:]
            is_over, certain = self._certain(text)
            yield text[shown:certain]
            shown = max(shown, certain)
            if is_over:
                return
        yield decoded(self._tokenizer, self._written)[before:][shown:]

    def _certain(self, text: str) -> tuple[bool, int]:
        """Whether a stop text is there, and how much of the text is before it for certain."""
        found = _first_stop(text, self._stop_texts)
        if found is not None:
            return True, found
        # A character may take several tokens, so decoding has to wait for the last.
        certain = len(text.rstrip(_REPLACEMENT))
        for stop in self._stop_texts:
            begun = [k for k in range(1, len(stop)) if text[:certain].endswith(stop[:k])]
            if begun:
                certain = min(certain, len(text[:certain]) - max(begun))
        return False, certain


def _first_stop(text: str, stop_texts: Sequence[str]) -> int | None:
    return min((place for stop in stop_texts if (place := text.find(stop)) >= 0), default=None)


def texts_until(
    tokenizer: "Tokenizer", prompt_ids: np.ndarray, rows: np.ndarray, stop_texts: Sequence[str]
) -> list[str]:
    """Decodes each row and cuts its text before the first stop text.

    Args:
        tokenizer: `Tokenizer`.
        prompt_ids: int vector. The prompt of all rows.
        rows: int array `(R, S)`, -1 where a row had ended.
        stop_texts: strings. A text ends before the first of them.

    Returns:
        List of `R` strings, without the prompt.
    """
    before = len(decoded(tokenizer, prompt_ids))
    texts = []
    for row in rows:
        text = decoded(tokenizer, np.concatenate([prompt_ids, row[row >= 0]]))[before:]
        texts.append(text[: _first_stop(text, stop_texts)])
    return texts


def stop_tokens(tokenizer: "Tokenizer", stop_texts: Sequence[str]) -> list[int]:
    """Returns the ids of the stop texts that are a single token."""
    found = []
    for stop in stop_texts:
        try:
            ids = tokenizer.encode(stop.encode())
        except InvalidTextError:
            continue  # a text that cannot be written cannot stop either
        if len(ids) == 1 and decoded(tokenizer, ids) == stop:
            found.append(int(ids[0]))
    return found


def prompt_tokens(tokenizer: "Tokenizer", prompt: str) -> np.ndarray:
    """Encodes a prompt as an int32 vector; one without a token is a UsageError.

    Where lines have tokens, the last line has none at its end unless the prompt
    has a line feed there.
    """
    try:
        content = prompt.encode()
        if isinstance(tokenizer, WordTokenizer | WordPieceTokenizer):
            ids = tokenizer.encode_piece(content, begins_line=True, ends_document=False)
        else:
            ids = tokenizer.encode(content)
    except InvalidTextError as error:
        raise UsageError(error.reason, where=f"--prompt {prompt[:80]!r}") from error
    except UnicodeEncodeError as error:
        raise UsageError("The prompt is no UTF-8.", where=f"--prompt {prompt[:80]!a}") from error
    if not len(ids):
        raise UsageError("There is no token in the prompt.", where=f"--prompt {prompt[:80]!r}")
    return ids.astype(np.int32)


def decoded(tokenizer: "Tokenizer", token_ids: np.ndarray) -> str:
    """Decodes tokens; bytes that are not UTF-8 become replacement characters."""
    return tokenizer.decode(token_ids).decode("utf-8", errors="replace")


_INVITATION = "> "
_HELP = "A line is continued; an empty line asks for more. Ctrl-C stops, Ctrl-D ends."


def converse(
    writer: TextWriter, num_tokens: int, *, can_go_on: bool, after_turn: Callable[[], None]
) -> None:
    """Reads a line and writes its continuation, until the end of the input.

    Args:
        writer: `TextWriter`.
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
    """Records Ctrl-C while the block runs; the session can stop only between two tokens."""
    signals: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGINT, previous)
