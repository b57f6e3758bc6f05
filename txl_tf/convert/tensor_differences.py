"""What is wrong with the tensors of a checkpoint, all of it at once."""

import dataclasses

from txl_tf.errors import DataDamagedError, MismatchError

_NUM_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorDifferences:
    """Where a checkpoint is not what its model needs; all names are theirs."""

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
    """The error of a checkpoint that does not fit.

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
    """The error of a checkpoint whose values are not finite.

    Args:
        differences: `TensorDifferences`; the error has them as an attribute
            `differences`.
        where: str. The checkpoint.

    Returns:
        The error, to be raised.
    """
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
