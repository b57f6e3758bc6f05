"""Where the writing of a text stands.

Shape letters used in this module: R rows, V vocabulary.
"""

from typing import Any, NamedTuple


class WritingState(NamedTuple):
    """What changes from token to token.

    Attributes:
        pending: int32 tensor `(R,)`. The newest tokens, which are not read yet.
        is_finished: bool tensor `(R,)`. Whether the newest token ended the row.
        is_used: bool tensor `(R, V)`: tokens that were read or written, or
            `(R, 0)` where nobody asks.
        lengths: int32 tensor `(R,)`. Tokens of each row since memory was
            brought up to date.
        position: int32 scalar. Tokens that were written; part of the seed.
        recent: what the decoder keeps beside memory.
    """

    pending: Any
    is_finished: Any
    is_used: Any
    lengths: Any
    position: Any
    recent: Any
