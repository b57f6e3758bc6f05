"""Settings of one call of a `TransformerXL`, by which inference reads in another way.

Shape letters used in this module: T tokens of the call.
"""

import dataclasses
from typing import Any

from txl_tf.config.model import ModelConfig
from txl_tf.layers.attention.operators import AttentionOperator
from txl_tf.layers.visible_keys import VisibleKeys


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """Settings of one call, where they do not follow from the model.

    An inference engine creates them and the model reads them. A call without a `Reading` has the
    lengths and the operator of its model.

    Attributes:
        config: `ModelConfig` of the lengths; an evaluation may have other lengths.
        operator: `AttentionOperator`, by which all layers attend.
        memory_length: int. The most tokens that memory holds.
        distances: optional tuple of the `DistanceKeys` of every layer. By default the call computes
            them.
        segment_length: optional int. Tokens of a segment, if several segments are read at once.
        num_unused: int. Places of memory that are never filled.
    """

    config: ModelConfig
    operator: AttentionOperator
    memory_length: int
    distances: Any = None
    segment_length: int | None = None
    num_unused: int = 0

    def visible_keys(self, num_tokens, valid_length, document_starts=None, lengths=None):
        """Returns the `VisibleKeys` of `T` tokens after a memory; arguments as in that class."""
        return VisibleKeys(
            num_tokens=num_tokens,
            memory_length=self.memory_length,
            num_unused=self.num_unused,
            valid_length=valid_length,
            farthest=self.config.farthest(self.memory_length),
            document_starts=document_starts,
            segment_length=self.segment_length,
            lengths=lengths,
        )
