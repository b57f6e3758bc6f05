"""Text session, which continues a text turn by turn, and the tokens of a prompt."""

import itertools
import logging
import os
from collections.abc import Iterator, Sequence

import numpy as np

from txl_tf.causal_lm.text_pieces import TextPieces
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer, checked_token_ids
from txl_tf.errors import UsageError
from txl_tf.generation.session import GenerationSession

_MAX_SHOWN_WORDS = 8
_LOGGER = logging.getLogger(__name__)


class TextSession:
    """A text that is continued turn by turn, with the memory of all earlier turns.

    Memory ends where the text ends: a stop text is not remembered, a stop token is.

    Args:
        session: `GenerationSession` of one row.
        tokenizer: `Tokenizer` of the model.
        settings: optional `GenerationConfig`; only `max_tokens` and `stop` are used.
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
        session: GenerationSession,
        tokenizer: Tokenizer,
        settings: GenerationConfig | None = None,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._settings = GenerationConfig() if settings is None else settings
        self._stop_token_ids = frozenset(stop_token_ids)
        self._newest = np.zeros((0,), np.int32)

    @property
    def seed(self) -> int:
        """Seed of the text; after `load`, the seed in the file."""
        return int(self._session.seeds[0])

    def write(self, prompt: str | None = None, *, max_tokens: int | None = None) -> str:
        """Reads a prompt and returns its continuation; arguments and errors of `stream`."""
        return "".join(self.stream(prompt, max_tokens=max_tokens))

    def stream(self, prompt: str | None = None, *, max_tokens: int | None = None) -> Iterator[str]:
        """Reads a prompt and generates its continuation piece by piece.

        Args:
            prompt: optional str of at least one token. Defaults to `None`: continue the text.
            max_tokens: optional int. The most to generate. Defaults to `None`: the setting of the
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
        if prompt is not None:
            prompt_ids = prompt_tokens(self._tokenizer, prompt)
            self._session.read(prompt_ids[None])
            self._newest = np.concatenate([self._newest, prompt_ids])
        before = self._newest
        pieces = TextPieces(self._tokenizer, before, settings.stop)
        mark = self._session.mark() if settings.stop else None
        with self._session.fixed_weights():
            for _ in range(settings.max_tokens):
                token_id = int(self._session.write(max_tokens=1)[0, 0])
                if token_id in self._stop_token_ids:
                    break
                piece = pieces.add(token_id)
                self._newest = pieces.newest_ids
                if pieces.is_over:
                    kept = pieces.kept_ids()
                    self._session.rewind(mark, [kept])
                    self._newest = np.concatenate([before, kept])
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
        self._newest = np.zeros((0,), np.int32)


def prompt_tokens(tokenizer: Tokenizer, prompt: str | np.ndarray) -> np.ndarray:
    """Encodes a prompt as an int32 vector; UsageError if that is impossible or gives no token.

    Token ids are returned after a check. A line that the prompt does not end has no token for its
    end.
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
        raise UsageError("The prompt has no tokens.", where=where, remedy="Give at least a word.")
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
