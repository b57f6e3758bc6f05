"""Parts of a model that are not trained, by name."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Self

from txl_tf.config.base import shown_value

_LAYERS = re.compile(r"layers(?::(\d{1,9})(?:-(\d{1,9}))?)?")


@dataclasses.dataclass(frozen=True)
class FrozenParts:
    """Parts of a language model whose weights stay as they are; layers are counted from 0.

    A softmax that shares its tables with a frozen embedding keeps them too.
    """

    embedding: bool = False
    softmax: bool = False
    layers: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, patterns: Sequence[str], num_layers: int, *, has_head: bool = False) -> Self:
        """Reads patterns such as `embedding`, `softmax`, `layers`, `layers:3` and `layers:0-3`.

        With a head to train besides, the whole model may be frozen. ValueError for another
        pattern, a layer that the model does not have, or nothing left to train.
        """
        layers: set[int] = set()
        for pattern in patterns:
            if pattern not in ("embedding", "softmax"):
                layers |= set(_layers(pattern, num_layers))
        parts = cls("embedding" in patterns, "softmax" in patterns, frozenset(layers))
        is_whole = parts.embedding and parts.softmax and len(parts.layers) == num_layers
        if is_whole and not has_head:
            raise ValueError(
                "`freeze` must leave something to train. "
                f"Received: freeze={shown_value(list(patterns))}"
            )
        return parts


def _layers(pattern: str, num_layers: int) -> range:
    match = _LAYERS.fullmatch(pattern)
    if match is None:
        raise ValueError(
            "`freeze` must be of `embedding`, `softmax`, `layers`, `layers:3` and `layers:0-3`. "
            f"Received: {shown_value(pattern)}"
        )
    if match[1] is None:
        return range(num_layers)
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < num_layers:
        raise ValueError(
            f"`freeze` must name layers from 0 to {num_layers - 1}, the lower one first. "
            f"Received: {shown_value(pattern)}"
        )
    return range(first, last + 1)
