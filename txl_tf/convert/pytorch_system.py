"""How the three PyTorch implementations differ in what they store."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class PytorchSystem:
    """Conventions of one implementation."""

    title: str
    """Its name in messages."""
    prefix: str
    """What stands before the names of the decoder."""
    reverses_clusters: bool
    """Whether the last cluster's entry of the head belongs to the first tail."""
    lists_softmax: bool
    """Whether the softmax is lists of parameters, not of linear layers."""
    same_length_keys: Literal["memory_and_self", "memory"]
    """How many keys a query sees with `same_length`."""


HUGGING_FACE = PytorchSystem(
    title="Hugging Face",
    prefix="transformer.",
    reverses_clusters=False,
    lists_softmax=False,
    same_length_keys="memory",
)
OFFICIAL_PYTORCH = PytorchSystem(
    title="the official PyTorch code",
    prefix="",
    reverses_clusters=True,
    lists_softmax=False,
    same_length_keys="memory",
)
NVIDIA_PYTORCH = PytorchSystem(
    title="NVIDIA's PyTorch code",
    prefix="",
    reverses_clusters=True,
    lists_softmax=True,
    same_length_keys="memory_and_self",
)
