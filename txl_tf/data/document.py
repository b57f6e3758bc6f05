"""What a source of text gives."""

from collections.abc import Iterable

# A long document can be given in pieces, so that it need not fit into memory.
Document = bytes | Iterable[bytes]
