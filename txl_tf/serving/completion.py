"""Text that the server writes: its progress and its pieces."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

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


@dataclasses.dataclass(eq=False, kw_only=True)
class Completion:
    """One text of a request and its progress.

    The engine calls `deliver` with each `TextPiece`, mostly in its own thread, but from `submit` if
    a waiting text is refused. `owner` is the client and its request. `reading` is the iterator that
    reads the prompt, a segment at a time. `state` is the `SessionState` after the prompt; `None`
    until that is read. `memory`, of a text outside of the batch, ends before its newest token.
    `is_over` is true if the text ended or was cancelled.
    """

    index: int
    settings: CompletionRequest
    seed: int
    owner: tuple[str, str]
    deliver: Callable[[TextPiece], object]
    prompt_ids: np.ndarray
    bias: np.ndarray | None
    submit_seconds: float = dataclasses.field(default_factory=time.monotonic)
    reading: Any = None
    state: Any = None
    pieces: Any = None
    memory: Any = None
    is_over: bool = False
    written_ids: list[int] = dataclasses.field(default_factory=list)
    num_echoed: int = 0
    scores: list[TokenScore] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)

    def next_state(self) -> Any:
        """Returns the state of the session after the text, without the stop text."""
        ids = np.array(self.written_ids, np.int32)
        state = self.state.after_writing(self.pieces.kept_ids() if self.pieces.is_over else ids)
        return state._replace(position=self.state.position + len(ids), last_use=time.monotonic())

    def deliver_piece(self, text: str, finish_reason: str | None = None) -> None:
        """Delivers a text with its new scores and tokens; a reason ends it."""
        self.is_over = self.is_over or finish_reason is not None
        scores, ids, self.scores, self.token_ids = self.scores, self.token_ids, [], []
        self.deliver(TextPiece(self.index, text, scores, ids, finish_reason))
