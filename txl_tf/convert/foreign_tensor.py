"""One tensor of another implementation and the variables it is made of."""

import dataclasses
from typing import Literal

import numpy as np

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignTensor:
    """Says how a tensor of a checkpoint and variables of ours are the same.

    Read from ours to theirs: the variables are joined, the result is
    transposed, then its first axis is reversed.
    """

    name: str
    """Name in the checkpoint."""
    variables: tuple[str, ...]
    """Our variables that it holds, in order."""
    join: Literal["none", "concatenate", "stack"] = "none"
    """Whether several variables lie along an axis of theirs or a new first one."""
    axis: int = 0
    """Axis of a concatenation."""
    is_transposed: bool = False
    """Whether the axes are in reverse order."""
    is_reversed: bool = False
    """Whether the rows are in reverse order."""
    is_copy: bool = False
    """Whether another tensor of the checkpoint holds the same variables already.

    A copy may be left out of the file, but must not differ."""

    def shape(self, shapes: dict[str, Shape]) -> Shape:
        """The shape that the tensor has.

        Args:
            shapes: dict of the shapes of our variables.

        Returns:
            Tuple of ints.
        """
        parts = [shapes[name] for name in self.variables]
        joined = parts[0]
        if self.join == "stack":
            joined = (len(parts), *parts[0])
        elif self.join == "concatenate":
            length = sum(part[self.axis] for part in parts)
            joined = (*parts[0][: self.axis], length, *parts[0][self.axis + 1 :])
        return joined[::-1] if self.is_transposed else joined

    def to_theirs(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """Builds their tensor.

        Args:
            arrays: dict of the values of our variables.

        Returns:
            Array in contiguous order.
        """
        parts = [arrays[name] for name in self.variables]
        joined = parts[0]
        if self.join == "stack":
            joined = np.stack(parts)
        elif self.join == "concatenate":
            joined = np.concatenate(parts, axis=self.axis)
        if self.is_transposed:
            joined = joined.T
        return np.ascontiguousarray(joined[::-1] if self.is_reversed else joined)

    def to_ours(self, tensor: np.ndarray, shapes: dict[str, Shape]) -> dict[str, np.ndarray]:
        """Takes their tensor apart.

        Args:
            tensor: array of the shape that `shape` returns.
            shapes: dict of the shapes of our variables.

        Returns:
            Dict of the values of `variables`.
        """
        if self.is_reversed:
            tensor = tensor[::-1]
        if self.is_transposed:
            tensor = tensor.T
        if self.join == "stack":
            return dict(zip(self.variables, tensor, strict=True))
        if self.join == "concatenate":
            lengths = [shapes[name][self.axis] for name in self.variables]
            parts = np.split(tensor, np.cumsum(lengths)[:-1], axis=self.axis)
            return dict(zip(self.variables, parts, strict=True))
        return {self.variables[0]: tensor}
