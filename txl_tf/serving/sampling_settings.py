"""How a client wants a text written.

Shape letters used in this module: B rows.
"""

import dataclasses

import numpy as np

_FLOATS = ("temperature", "top_p")


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """Settings of the signatures that write; the server checks their ranges.

    Attributes:
        temperature: float. 0 always takes the most probable token.
        top_k: int. Only the `top_k` most probable tokens; 0 is all.
        top_p: float. Only the most probable tokens that together have this
            probability; 1 is all.
        seed: int. The same seed gives the same text, in any batch.
        stop_token_id: int. Writing ends with this token; -1 is none.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_id: int = -1

    def inputs(self) -> dict[str, np.ndarray]:
        """The settings of one row as inputs of a signature.

        Returns:
            Dict of name to array `(1,)`, float32 or int32.
        """
        return {
            name: np.array([value], np.float32 if name in _FLOATS else np.int32)
            for name, value in dataclasses.asdict(self).items()
        }
