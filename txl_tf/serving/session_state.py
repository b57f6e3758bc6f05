"""State of a session of the text server."""

from typing import Any, NamedTuple, Self

import numpy as np

from txl_tf.generation.token_rules import note_written


class SessionState(NamedTuple):
    """State of a session between its texts, with tensors of one row and V tokens of vocabulary.

    `memory` ends before the `unread` tokens. `uses` `(V,)` are as in a `DecodingState`. `known_ids`
    are the newest tokens: the text of the next tokens depends on them. `position` counts the tokens
    drawn, and `num_tokens` all tokens, prompts included. `score_memory` is for scores, with the
    lengths of evaluations, and ends before the `unscored` tokens.
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

    def after_writing(self, token_ids: np.ndarray) -> Self:
        """Returns the state after tokens that were written; they are read with the next prompt."""
        uses = self.uses.copy()
        note_written(uses, token_ids)
        # The tokens are read again with the next prompt, because reading is faster than writing.
        return self._replace(
            uses=uses,
            unread=np.append(self.unread, token_ids),
            unscored=np.append(self.unscored, token_ids),
            known_ids=np.append(self.known_ids, token_ids),
            num_tokens=self.num_tokens + len(token_ids),
        )
