"""Text that a model continues turn by turn."""

from collections.abc import Iterator, Sequence

import numpy as np

from txl_tf.causal_lm.text_pieces import TextPieces, prompt_tokens
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.generation.session import GenerationSession


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
        """Seed of the text."""
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
        constants = self._session.constants()
        for _ in range(settings.max_tokens):
            token_id = int(self._session.write(max_tokens=1, constants=constants)[0, 0])
            if token_id in self._stop_token_ids:
                break
            piece = pieces.add(token_id)
            self._newest = pieces.newest_ids
            if pieces.is_over:
                token_ids = pieces.kept_ids()
                self._session.rewind(mark, [token_ids])
                self._newest = np.concatenate([before, token_ids])
            yield piece
            if pieces.is_over:
                return
        yield pieces.rest()
