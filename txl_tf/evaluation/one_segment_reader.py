"""Readers that take the segments of a row one at a time."""

from typing import Any


class OneSegmentReader:
    """What readers have in common that keep nothing from segment to segment but memory."""

    def segments_per_step(self, num_rows: int) -> int:
        """How many segments of a row are read at once: one."""
        del num_rows
        return 1

    def constants(self, num_rows: int, segments_per_step: int = 1) -> tuple[Any, ...]:
        """What depends on the weights alone: nothing here."""
        del num_rows, segments_per_step
        return ()
