"""Text that the server writes: its progress, its pieces, and the session that it continues."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from txl_tf.generation.decoding import note_written
from txl_tf.serving.completion_request import CompletionRequest, RequestError


class TokenScore(NamedTuple):
    """A token, its place in the text, its log-probability and the highest ones of its position."""

    tokens: str
    text_offset: int
    token_logprobs: float | None = None
    top_logprobs: dict[str, float] | None = None


class TextPiece(NamedTuple):
    """A piece of a text as it is written; the last one has a reason or an error."""

    choice: int
    text: str = ""
    scores: Sequence[TokenScore] = ()
    token_ids: Sequence[int] = ()
    finish_reason: str | None = None
    error: RequestError | None = None


class SessionState(NamedTuple):
    """State of a session between its texts, with tensors of one row and V tokens of vocabulary.

    Memory ends before the `unread` tokens. `uses` `(V,)` are as in a `DecodingState`. `known_ids`
    are the newest tokens, which the text of others depends on. `position` counts the tokens drawn,
    and `num_tokens` all tokens, prompts included. Scores have a memory of their own, of the
    lengths of evaluations, which ends before the `unscored` tokens.
    """

    memory: Any
    uses: np.ndarray
    score_memory: Any
    unread: np.ndarray = np.zeros((0,), np.int32)
    unscored: np.ndarray = np.zeros((0,), np.int32)
    known_ids: np.ndarray = np.zeros((0,), np.int32)
    position: int = 0
    num_tokens: int = 0
    last_use: float = 0.0

    def after_writing(self, token_ids: np.ndarray) -> "SessionState":
        """Returns the state after tokens that were written; they are read with the next prompt."""
        uses = self.uses.copy()
        note_written(uses, token_ids)
        # Reading the text is faster than writing it was.
        return self._replace(
            uses=uses,
            unread=np.append(self.unread, token_ids),
            unscored=np.append(self.unscored, token_ids),
            known_ids=np.append(self.known_ids, token_ids),
            num_tokens=self.num_tokens + len(token_ids),
        )


@dataclasses.dataclass(eq=False, kw_only=True)
class Completion:
    """One text of a request and its progress.

    The thread of the engine calls `deliver` with each `TextPiece`. `owner` is the client and its
    request. `reading` is the iterator that reads the prompt, a segment
    at a time. `state` is the session's after the
    prompt; `None` until that is read. `memory`, of a text outside of the batch, ends before its
    newest token. `is_over` is true if the text ended or was cancelled.
    """

    index: int
    settings: CompletionRequest
    seed: int
    owner: tuple[str, str]
    deliver: Callable[[TextPiece], object]
    prompt_ids: np.ndarray
    bias: np.ndarray | None
    reading: Any = None
    state: Any = None
    pieces: Any = None
    memory: Any = None
    is_over: bool = False
    written_ids: list[int] = dataclasses.field(default_factory=list)
    num_echoed: int = 0
    scores: list[TokenScore] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)

    def next_state(self) -> SessionState:
        """Returns the state of the session after the text, without the stop text."""
        ids = np.array(self.written_ids, np.int32)
        state = self.state.after_writing(self.pieces.kept_ids() if self.pieces.is_over else ids)
        return state._replace(position=self.state.position + len(ids), last_use=time.monotonic())

    def deliver_piece(self, text: str, finish_reason: str | None = None) -> None:
        """Delivers a text with its new scores and tokens; a reason ends it."""
        self.is_over = self.is_over or finish_reason is not None
        scores, ids, self.scores, self.token_ids = self.scores, self.token_ids, [], []
        self.deliver(TextPiece(self.index, text, scores, ids, finish_reason))
