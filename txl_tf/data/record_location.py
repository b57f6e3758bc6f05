"""The place of a token in a prepared data set."""

from typing import NamedTuple


class RecordLocation(NamedTuple):
    """Where a token is stored: file name, record in it, and the record's first byte."""

    file: str
    record: int
    byte_offset: int
