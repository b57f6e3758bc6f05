"""All that has to be kept of a text to go on with it.

Shape letters used in this module:
  L layers, M memory length, D hidden width.
"""

from typing import NamedTuple

import numpy as np


class TextState(NamedTuple):
    """The memory of one text and its newest token, which is not in memory yet.

    Arrays are read-only, so that states can be shared: going on from the same
    state twice gives two texts with the same beginning.

    Attributes:
        memory_states: float32 or bfloat16 array `(1, L, M, D)`. None where
            nothing has been read, which is memory of zeros.
        memory_valid_length: int32 array `(1,)`, 0 to `M`.
        last_token_id: int. The newest token; -1 where the text begins.
    """

    memory_states: np.ndarray | None
    memory_valid_length: np.ndarray
    last_token_id: int

    @classmethod
    def initial(cls) -> "TextState":
        """The state of a text of which nothing has been read."""
        return cls(None, _frozen(np.zeros([1], np.int32)), -1)

    @classmethod
    def of_answer(cls, answer: dict[str, np.ndarray], last_token_id: int) -> "TextState":
        """The state after a request.

        Args:
            answer: dict of outputs of a signature for one row.
            last_token_id: int. The newest token of the text.

        Returns:
            `TextState`.
        """
        states, valid_length = answer["memory_states"], answer["memory_valid_length"]
        return cls(_frozen(states), _frozen(valid_length), last_token_id)


def _frozen(array: np.ndarray) -> np.ndarray:
    array = array.view()
    array.flags.writeable = False
    return array
