"""Text generation with a session: prompts in, pieces of text out, stop texts."""

import itertools
import logging
import os
from collections.abc import Iterator, Sequence

import numpy as np

from txl_tf.config.base import DEFAULT_NEW_TOKENS
from txl_tf.config.generation import stop_texts
from txl_tf.data.text import document_bytes
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import UsageError
from txl_tf.generation.session import GenerationSession
from txl_tf.generation.session_file import SessionFile

# The text of a token depends only on a few tokens before it.
_CONTEXT_TOKENS = 64
_MAX_SHOWN_WORDS = 8
_LOGGER = logging.getLogger(__name__)


class TextSession:
    """A text that is continued turn by turn, with the memory of all earlier turns.

    Args:
        session: `GenerationSession` of one row.
        tokenizer: `Tokenizer` that the model was trained with.
        stop: str, or several. Generation ends before the first of them.
        stop_token_ids: ints. Generation ends before the first of them, too.

    Example:
    ```python
    session = txl_tf.load("runs/mine").session()
    print(session.write("Once upon a time", max_tokens=100))
    print(session.write(max_tokens=100))
    ```
    """

    def __init__(
        self,
        session: GenerationSession,
        tokenizer: Tokenizer,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._stop_texts = stop_texts(stop)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._written = np.zeros((0,), np.int32)

    @property
    def seed(self) -> int:
        """Seed of the text; after `load`, the seed that the text began with."""
        return int(self._session.seeds[0])

    def write(self, prompt: str | None = None, *, max_tokens: int = DEFAULT_NEW_TOKENS) -> str:
        """Reads a prompt and returns its continuation.

        Args:
            prompt: optional str of at least one token. Defaults to `None`: continue the text
                written last.
            max_tokens: int. The most to generate. Defaults to `128`.

        Returns:
            The generated text, without the prompt.

        Raises:
            UsageError: If the tokenizer cannot encode the prompt, or the prompt has no token.
            ValueError: If there is nothing to continue or to generate.
        """
        return "".join(self.stream(prompt, max_tokens=max_tokens))

    def save(self, path: str | os.PathLike[str] | SessionFile) -> None:
        """Writes the state of the session, without the weights.

        Args:
            path: path of the file, or an entered `SessionFile`.

        Raises:
            OSError: If it cannot be written.
        """
        self._session.save(path)

    def load(self, path: str | os.PathLike[str] | SessionFile) -> None:
        """Continues from a file that `save` wrote.

        Args:
            path: path of the file.

        Raises:
            JobError: As `GenerationSession.load` does.
        """
        self._session.load(path)
        self._written = np.zeros((0,), np.int32)

    def stream(
        self, prompt: str | None = None, *, max_tokens: int = DEFAULT_NEW_TOKENS
    ) -> Iterator[str]:
        """Reads a prompt and generates its continuation piece by piece.

        Args:
            prompt: as for `write`.
            max_tokens: int. The most to generate. Defaults to `128`.

        Yields:
            Pieces of text, some of them empty. Bytes that are not UTF-8 become the replacement
            character.

        Raises:
            UsageError: As `write`.
            ValueError: As `write`.
        """
        if max_tokens < 1:
            raise ValueError(f"`max_tokens` must be positive. Received: max_tokens={max_tokens}")
        prompt_ids = None if prompt is None else prompt_tokens(self._tokenizer, prompt)
        self._written = self._written[-_CONTEXT_TOKENS:]
        if prompt_ids is not None:
            self._written = np.concatenate([self._written, prompt_ids])
        pieces = TextPieces(self._tokenizer, self._written, self._stop_texts)
        for _ in range(max_tokens):
            token = self._session.write(
                None if prompt_ids is None else prompt_ids[None], max_tokens=1
            )
            prompt_ids = None
            if int(token[0, 0]) in self._stop_token_ids:
                break
            piece = pieces.add(int(token[0, 0]))
            self._written = pieces.newest_ids
            yield piece
            if pieces.is_over:
                return
        yield pieces.rest()


class TextPieces:
    """Text of tokens that come one at a time, up to the first stop text.

    `earlier_ids` are tokens whose text is known. `is_over` is true after a stop text;
    `num_characters` is the length of the text of all tokens, without a stop text.
    """

    def __init__(
        self, tokenizer: Tokenizer, earlier_ids: np.ndarray, stop_texts: Sequence[str]
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_texts = stop_texts
        self._num_before = self.num_characters = 0
        self.is_over = False
        self._begin(earlier_ids)

    def _begin(self, ids: np.ndarray) -> None:
        self._ids, self._num_shown = ids, 0
        self._num_earlier = len(self._tokenizer.decode(ids))

    @property
    def newest_ids(self) -> np.ndarray:
        """The newest tokens, enough to decode the next one."""
        return self._ids[-_CONTEXT_TOKENS:]

    def add(self, token_id: int) -> str:
        """Adds a token and returns the text that has become certain."""
        self._ids = np.append(self._ids, np.int32(token_id))
        text = self._text()
        certain = self._certain(text)
        piece = text[self._num_shown : certain]
        self._num_shown = max(self._num_shown, certain)
        self.num_characters = self._num_before + (certain if self.is_over else len(text))
        is_long = len(self._ids) >= 2 * _CONTEXT_TOKENS
        if is_long and certain == len(text) and not self._tokenizer.reads_lines:
            # Nothing is pending: drop earlier tokens, so that decoding stays cheap.
            self._num_before = self.num_characters
            self._begin(self.newest_ids)
        return piece

    def rest(self) -> str:
        """Returns the text that was held back for another token."""
        return "" if self.is_over else self._text()[self._num_shown :]

    def _text(self) -> str:
        return self._tokenizer.readable(self._tokenizer.decode(self._ids)[self._num_earlier :])

    def _certain(self, text: str) -> int:
        """Returns how many characters precede any stop text, complete or only begun."""
        found = _first_stop(text, self._stop_texts)
        if found is not None:
            self.is_over = True
            return found
        certain = self._tokenizer.num_certain(text)
        for stop in self._stop_texts:
            begun = [k for k in range(1, len(stop)) if text[:certain].endswith(stop[:k])]
            if begun:
                certain = min(certain, len(text[:certain]) - max(begun))
        return certain


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)


def text_until(
    tokenizer: Tokenizer, prompt_ids: np.ndarray, row: np.ndarray, stops: Sequence[str]
) -> str:
    """Decodes the tokens after a prompt, and cuts their text before the first stop text."""
    text = tokenizer.decode_after(prompt_ids, row)
    return text[: _first_stop(text, stops)]


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    """Encodes a prompt as an int32 vector.

    If the tokenizer marks line ends, the last line has such a token only if the prompt ends in a
    line feed. Raises UsageError if the tokenizer cannot encode the prompt, or the prompt has no
    token.
    """
    try:
        content = document_bytes(prompt)
        ids = tokenizer.encode_piece(content, begins_line=True, ends_document=False)
    except InvalidTextError as error:
        raise UsageError(error.reason, where=f"prompt {prompt[:80]!r}") from error
    except UnicodeEncodeError as error:
        raise UsageError("The prompt is no UTF-8.", where=f"prompt {prompt[:80]!a}") from error
    if not len(ids):
        raise UsageError("There is no token in the prompt.", where=f"prompt {prompt[:80]!r}")
    num_unknown = int(np.sum(ids == tokenizer.unknown_id))
    if num_unknown:
        _LOGGER.warning(
            "%d of %d tokens of the prompt are unknown to the model: %s",
            num_unknown,
            len(ids),
            ", ".join(_unknown_words(tokenizer, prompt)),
        )
    return ids.astype(np.int32)


def _unknown_words(tokenizer: Tokenizer, prompt: str) -> Iterator[str]:
    """Yields the first words of a prompt that have an unknown token."""
    is_unknown = (
        word
        for word in dict.fromkeys(prompt.split())
        if tokenizer.unknown_id in tokenizer.encode_piece(word.encode(), True, False)
    )
    yield from itertools.islice(is_unknown, _MAX_SHOWN_WORDS)
