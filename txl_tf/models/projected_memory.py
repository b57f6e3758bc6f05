"""What a model remembers of the segments before, as keys and values.

Shape letters used in this module: B rows, M memory length, N heads,
H head width, L layers.
"""

from typing import Any, NamedTuple

from keras import ops


class ProjectedMemory(NamedTuple):
    """The keys and values of what the next segment may attend to.

    As long as the weights do not change, they are what the attention layers
    would compute of a `Memory` again for every segment. Each row fills its
    memory from the right. Keys have their positions last and values their
    widths last, as the products of attention read them.

    Attributes:
        keys: tuple of `L` float tensors `(B, N, H, M)`.
        values: tuple of `L` float tensors `(B, N, M, H)`.
        valid_length: int32 tensor `(B,)`, between 0 and `M`.
    """

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    valid_length: Any

    def forget(self, rows: Any) -> "ProjectedMemory":
        """Empties the memory of some rows, whose streams start anew.

        Args:
            rows: bool tensor `(B,)`. True where the memory is to be forgotten.

        Returns:
            A `ProjectedMemory` whose valid length is 0 in those rows.
        """
        return self._replace(valid_length=ops.where(rows, 0, self.valid_length))
