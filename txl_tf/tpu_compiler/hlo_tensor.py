"""Shapes in the text of a compiled program, and where the tensors lie."""

import functools
import math
import re
from typing import NamedTuple

_BITS = re.compile(r"\d+")
_TENSOR = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")


class HloTensor(NamedTuple):
    """A tensor and where it lies.

    Attributes:
        element_type: str, such as `f32`.
        dimensions: tuple of int.
        space: int. 0 is the high-bandwidth memory, anything else is on the
            chip itself.
        tile: tuple of int. The tile that the last dimensions are padded to.
        order: tuple of int. The dimensions, the fastest first.
    """

    element_type: str
    dimensions: tuple[int, ...]
    space: int = 0
    tile: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        """Elements without padding."""
        return math.prod(self.dimensions)

    @property
    def num_bytes(self) -> int:
        """Bytes without padding."""
        return -(-self.num_elements * _bits(self.element_type) // 8)

    @property
    def num_padded_bytes(self) -> int:
        """Bytes that it takes, whole tiles."""
        lengths = [self.dimensions[axis] for axis in self.order]
        for place, length in enumerate(reversed(self.tile)):
            if place < len(lengths):
                lengths[place] = -(-lengths[place] // length) * length
        return -(-math.prod(lengths) * _bits(self.element_type) // 8)


@functools.cache
def _bits(element_type: str) -> int:
    if element_type == "pred":
        return 8
    found = _BITS.search(element_type)
    return int(found[0]) if found else 0


def read_tensors(text: str) -> tuple[HloTensor, ...]:
    """Reads a shape, or a tuple of shapes.

    Args:
        text: str, such as `(f32[8,128]{1,0:T(8,128)}, s32[])`.

    Returns:
        Tuple of `HloTensor`.
    """
    return tuple(_read_tensor(*found) for found in _TENSOR.findall(text))


@functools.cache
def _read_tensor(element_type: str, dimensions: str, layout: str) -> HloTensor:
    lengths = tuple(int(length) for length in dimensions.split(",") if length)
    order_text, _, rest = layout.partition(":")
    order = tuple(int(axis) for axis in order_text.split(",") if axis.isdigit())
    tile, space = _TILE.search(rest), _SPACE.search(rest)
    return HloTensor(
        element_type,
        lengths,
        space=int(space[1]) if space else 0,
        tile=tuple(int(length) for length in tile[1].split(",")) if tile else (),
        order=order if len(order) == len(lengths) else tuple(reversed(range(len(lengths)))),
    )
