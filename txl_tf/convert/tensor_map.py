"""Mapping of foreign tensors to model variables, and the report of what does not fit."""

import dataclasses
from typing import Literal

import numpy as np

from txl_tf.errors import DataDamagedError, MismatchError

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignTensor:
    """Mapping between a tensor of a checkpoint and variables of a model.

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
        """Returns the shape that the tensor has.

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


_NUM_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorDifferences:
    """Differences between a checkpoint and its model, by foreign tensor names."""

    missing: tuple[str, ...] = ()
    """Tensors that are not there."""
    surplus: tuple[str, ...] = ()
    """Tensors that the model has no place for."""
    misshapen: tuple[str, ...] = ()
    """Tensors of another shape or type, each with both."""
    unequal: tuple[str, ...] = ()
    """Tensors that should be copies of others and differ from them."""
    non_finite: tuple[str, ...] = ()
    """Tensors with a value that is infinite or not a number."""

    def __bool__(self) -> bool:
        return any(dataclasses.astuple(self))

    @property
    def only_non_finite(self) -> bool:
        """Whether names and shapes are right and values are not."""
        return bool(self.non_finite) and not dataclasses.replace(self, non_finite=())

    def describe(self) -> str:
        """One line with the first few of every kind, and how many there are."""
        kinds = {
            "missing": self.missing,
            "not of this model": self.surplus,
            "of another shape or type": self.misshapen,
            "not the copies they should be": self.unequal,
            "not finite": self.non_finite,
        }
        return "; ".join(
            f"{len(names)} {kind}: {_few(names)}" for kind, names in kinds.items() if names
        )


def mismatch(differences: TensorDifferences, where: str) -> MismatchError:
    """Creates the error of a checkpoint that does not fit.

    Args:
        differences: `TensorDifferences`; the error has them as an attribute
            `differences`.
        where: str. The checkpoint.

    Returns:
        The error, to be raised.
    """
    error = MismatchError(
        f"The checkpoint does not fit the model. Tensors are {differences.describe()}",
        where=where,
        remedy="Check that it is whole, of this implementation, and the settings given.",
    )
    error.differences = differences  # type: ignore[attr-defined]
    return error


def damaged(differences: TensorDifferences, where: str) -> DataDamagedError:
    """The error of a checkpoint whose values are not finite; see `mismatch`."""
    error = DataDamagedError(
        f"Tensors of the checkpoint are {differences.describe()}",
        where=where,
        remedy="Take an earlier checkpoint.",
    )
    error.differences = differences  # type: ignore[attr-defined]
    return error


def _few(names: tuple[str, ...]) -> str:
    more = len(names) - _NUM_SHOWN
    return ", ".join(names[:_NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")
