"""Text of a language model: prompts, text piece by piece, and stop texts."""

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer, checked_token_ids
from txl_tf.errors import UsageError

if TYPE_CHECKING:
    from txl_tf.generation.session import GenerationSession

Pooling = Literal["tokens", "segments", "last", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""Reductions of the features of tokens to features of a text."""

# The text of a token depends only on a few tokens before it.
_CONTEXT_TOKENS = 64
_MAX_SHOWN_WORDS = 8
_LOGGER = logging.getLogger(__name__)


class TextSession:
    """A text that is continued turn by turn, with the memory of all earlier turns.

    Args:
        session: `GenerationSession` of one row.
        tokenizer: `Tokenizer` that the model was trained with.
        settings: optional `GenerationConfig`, of which `max_tokens` and `stop` are used here.
        stop_token_ids: ints. Generation ends before the first of them.

    Example:
    ```python
    session = txl_tf.load("runs/mine").session()
    print(session.write("Once upon a time", max_tokens=100))
    print(session.write(max_tokens=100))
    ```
    """

    def __init__(
        self,
        session: "GenerationSession",
        tokenizer: Tokenizer,
        settings: GenerationConfig | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._settings = GenerationConfig() if settings is None else settings
        self._stop_token_ids = frozenset(stop_token_ids)
        self._written = np.zeros((0,), np.int32)

    @property
    def seed(self) -> int:
        """Seed of the text; after `load`, the seed that the text began with."""
        return int(self._session.seeds[0])

    def write(self, prompt: str | None = None, *, max_tokens: int | None = None) -> str:
        """Reads a prompt and returns its continuation; arguments and errors of `stream`."""
        return "".join(self.stream(prompt, max_tokens=max_tokens))

    def stream(self, prompt: str | None = None, *, max_tokens: int | None = None) -> Iterator[str]:
        """Reads a prompt and generates its continuation piece by piece.

        Args:
            prompt: optional str of at least one token. Defaults to `None`: continue the text
                written last.
            max_tokens: optional int. The most to generate. Defaults to `None`: as set for the
                session.

        Yields:
            Pieces of the text after the prompt, some of them empty. Bytes that are not UTF-8
            become the replacement character.

        Raises:
            UsageError: If the tokenizer cannot encode the prompt, or the prompt has no token.
            ValueError: If there is nothing to continue or to generate.
        """
        settings = self._settings
        if max_tokens is not None:
            settings = settings.replace(max_tokens=max_tokens)
        prompt_ids = None if prompt is None else prompt_tokens(self._tokenizer, prompt)
        self._written = self._written[-_CONTEXT_TOKENS:]
        if prompt_ids is not None:
            self._written = np.concatenate([self._written, prompt_ids])
        pieces = TextPieces(self._tokenizer, self._written, settings.stop)
        for _ in range(settings.max_tokens):
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state of the session, see `GenerationSession.save`."""
        self._session.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continues from a file that `save` wrote, see `GenerationSession.load`."""
        self._session.load(path)
        self._written = np.zeros((0,), np.int32)


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


def is_one_text(value: Any) -> bool:
    """True for a text, or its token ids in a vector or list."""
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return isinstance(value, str)
    return len(value) > 0 and all(isinstance(each, int | np.integer) for each in value)


def checked_texts(texts: Any, argument: str) -> list[str | np.ndarray]:
    """Returns texts or vectors of token ids, one or several, as a list.

    Raises TypeError for other types, and ValueError for none.
    """
    found = [texts] if is_one_text(texts) else texts
    if not isinstance(found, Sequence | np.ndarray) or not all(map(is_one_text, found)):
        kinds = type(texts).__name__
        if isinstance(texts, Sequence):
            kinds = f"{kinds} of {', '.join(sorted({type(each).__name__ for each in texts}))}"
        what = "must be a str or a vector of token ids, or a list of them"
        raise TypeError(f"`{argument}` {what}. Received: {kinds}")
    if not len(found):
        raise ValueError(f"`{argument}` must have at least one text. Received: {texts!r}")
    return [each if isinstance(each, str) else np.asarray(each) for each in found]


def prompt_tokens(tokenizer: Tokenizer, prompt: str | np.ndarray) -> np.ndarray:
    """Encodes a prompt as an int32 vector; UsageError if that is not possible or gives no token.

    Token ids are returned after a check. If the tokenizer marks line ends, the last line has such a
    token only if the prompt ends in a line feed.
    """
    if isinstance(prompt, np.ndarray):
        return checked_token_ids(prompt, tokenizer.vocabulary_size).astype(np.int32)
    where = f"prompt {prompt[:80]!a}"
    try:
        ids = tokenizer.encode(prompt, ends_document=False)
    except InvalidTextError as error:
        raise UsageError(error.reason, where=where) from error
    except UnicodeEncodeError as error:
        raise UsageError("The prompt is not valid UTF-8.", where=where) from error
    if not len(ids):
        raise UsageError("There is no token in the prompt.", where=where)
    num_unknown = int(np.sum(ids == tokenizer.unknown_id))
    if num_unknown:
        words = (
            word
            for word in dict.fromkeys(prompt.split())
            if tokenizer.unknown_id in tokenizer.encode_piece(word.encode(), True, False)
        )
        shown = ", ".join(itertools.islice(words, _MAX_SHOWN_WORDS))
        what = "%d of %d tokens of the prompt are unknown to the model: %s"
        _LOGGER.warning(what, num_unknown, len(ids), shown)
    return ids.astype(np.int32)
