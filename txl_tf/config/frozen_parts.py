"""Parts of a model that are not trained, as `training.freeze` names them."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Self

from txl_tf.config.setting_values import shown_value

_FROZEN_LAYERS = re.compile(r"layers(?::(\d{1,9})(?:-(\d{1,9}))?)?")


@dataclasses.dataclass(frozen=True)
class FrozenParts:
    """Parts of a language model that are not trained.

    `layers` has the numbers of frozen layers, from 0. A tied softmax reads the tables of the
    embedding, so only `embedding` freezes these tables.
    """

    embedding: bool = False
    softmax: bool = False
    layers: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, patterns: Sequence[str], num_layers: int, *, has_head: bool = False) -> Self:
        """Parses patterns such as `embedding`, `softmax`, `layers`, `layers:3` and `layers:0-3`.

        A model with a head may be frozen completely, because its head is trained. Raises
        ValueError for an unknown pattern, a layer that the model does not have, or patterns that
        leave nothing to train.
        """
        layers: set[int] = set()
        for pattern in patterns:
            match, reason = _FROZEN_LAYERS.fullmatch(pattern), None
            if match is not None:
                first = int(match[1] or 0)
                last = int(match[2] or match[1] or num_layers - 1)
                if not first <= last < num_layers:
                    reason = f"name layers from 0 to {num_layers - 1}, the lower one first"
            elif pattern not in ("embedding", "softmax"):
                reason = "be one of `embedding`, `softmax`, `layers`, `layers:3` and `layers:0-3`"
            if reason is not None:
                raise ValueError(f"`freeze` must {reason}. Received: {shown_value(pattern)}")
            if match is not None:
                layers |= set(range(first, last + 1))
        # A head does not read the softmax, which then has no gradient.
        has_softmax = "softmax" not in patterns and not has_head
        parts = cls("embedding" in patterns, not has_softmax, frozenset(layers))
        is_whole = parts.embedding and parts.softmax and len(parts.layers) == num_layers
        if is_whole and not has_head:
            raise ValueError(
                "`freeze` must leave a part of the model to train. "
                f"Received: freeze={shown_value(list(patterns))}"
            )
        return parts
