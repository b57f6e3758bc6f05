"""Parts of a model that are not trained, by name, and the limits of what adapters train."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Self

from txl_tf.config.base import shown_value
from txl_tf.config.model import ModelConfig

_LAYERS = re.compile(r"layers(?::(\d{1,9})(?:-(\d{1,9}))?)?")


@dataclasses.dataclass(frozen=True)
class FrozenParts:
    """Parts of a language model whose weights stay as they are.

    Attributes:
        embedding: bool. The tables and projections of the embedding. A softmax that
            shares its tables with the embedding keeps them too.
        softmax: bool. The weights that are the softmax's own.
        layers: frozenset of int. Numbers of the layers, counted from 0 as in the
            names of their weights.
    """

    embedding: bool = False
    softmax: bool = False
    layers: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, patterns: Sequence[str], num_layers: int, *, has_head: bool = False) -> Self:
        """Reads patterns such as `embedding`, `softmax`, `layers`, `layers:3` and `layers:0-3`.

        Args:
            patterns: sequence of str.
            num_layers: int. Layers of the model.
            has_head: bool. Whether there is a head to train besides the model, which
                then may be frozen as a whole. Defaults to `False`.

        Raises:
            ValueError: If a pattern is not of this form, names a layer that the
                model does not have, or nothing would be left to train.
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


def check_adapters(rank: int | None, alpha: float | None, freeze: Sequence[str] | None) -> None:
    """Raises ValueError where settings of `TrainingConfig` say two things about adapters."""
    if alpha is not None and rank is None:
        raise ValueError(
            f"`adapter_alpha` needs an `adapter_rank`. Received: adapter_alpha={alpha}"
        )
    if rank is not None and freeze is not None:
        raise ValueError(
            "`freeze` must be None with an `adapter_rank`, which freezes all weights of the model. "
            f"Received: freeze={shown_value(list(freeze))}"
        )


def check_adapter_rank(rank: int, model: ModelConfig) -> None:
    """Raises ValueError where a rank is higher than that of the smallest kernel of a model."""
    highest = min(model.hidden_dim, model.num_heads * model.head_dim, model.intermediate_dim)
    if rank > highest:
        raise ValueError(
            f"`training.adapter_rank` must be at most {highest}, the smallest width of the model. "
            f"Received: adapter_rank={rank}"
        )
