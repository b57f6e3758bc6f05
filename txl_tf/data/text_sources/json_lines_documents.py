"""JSON Lines: every line an object with the text of a document in one of its fields."""

import json
from collections.abc import Iterator, Sequence

from txl_tf.data.text_sources.text_blocks import text_blocks
from txl_tf.data.text_sources.text_files import text_files
from txl_tf.data.text_sources.text_pieces import text_pieces
from txl_tf.errors import DataDamagedError

# The parser needs the line, its decoded form and its text at the same time.
MAX_LINE_BYTES = 32 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLinesDocuments:
    """The documents of JSON Lines files; empty texts and empty lines are left out.

    JSON is UTF-8, so its texts always are.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        field: str. The field that holds the text. Defaults to `"text"`.

    Raises:
        InputMissingError: If a path has no file.
    """

    def __init__(self, paths: Sequence[str], field: str = "text") -> None:
        self.files = text_files(paths)
        self._field = field

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents, each an iterator over pieces.

        Raises:
            DataDamagedError: If a line is not an object with a string in the
                field, or longer than `MAX_LINE_BYTES`. The error names the
                file, the line and the byte at which the line begins.
        """
        for path in self.files:
            for number, offset, line in _lines(path):
                text = _text_of(line, self._field, _place(path, number, offset))
                if text:
                    yield text_pieces([text])


def _lines(path: str) -> Iterator[tuple[int, int, bytes]]:
    rest = bytearray()
    number, offset = 1, 0
    for block in text_blocks(path):
        rest += block
        start = 0
        while (end := rest.find(b"\n", start) + 1) > 0:
            yield number, offset, bytes(rest[start:end])
            number += 1
            offset += end - start
            start = end
        del rest[:start]
        if len(rest) > MAX_LINE_BYTES:
            what = f"The line is longer than {MAX_LINE_BYTES} bytes."
            raise _unusable(what, _place(path, number, offset))
    if rest:
        yield number, offset, bytes(rest)


def _text_of(line: bytes, field: str, place: str) -> bytes:
    line = line.removeprefix(_BYTE_ORDER_MARK)
    if not line.strip():
        return b""
    try:
        values = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _unusable(f"The line is not UTF-8, from its byte {error.start} on.", place) from error
    except (ValueError, RecursionError) as error:
        raise _unusable(f"The line is not JSON: {error}", place) from error
    if not isinstance(values, dict):
        raise _unusable("The line is not a JSON object.", place)
    if field not in values:
        known = ", ".join(list(values)[:8])
        raise _unusable(f"The line has no field {field!r}, but: {known}", place)
    if not isinstance(values[field], str):
        kind = type(values[field]).__name__
        raise _unusable(f"The field {field!r} must be a string, not {kind}.", place)
    try:
        return values[field].encode("utf-8")
    except UnicodeEncodeError as error:
        # JSON can escape half of a character, and UTF-8 cannot express it.
        what = f"The field {field!r} has a lone surrogate at character {error.start}."
        raise _unusable(what, place) from error


def _place(path: str, number: int, offset: int) -> str:
    return f"{path}, line {number}, byte {offset}"


def _unusable(what: str, place: str) -> DataDamagedError:
    return DataDamagedError(what, where=place, remedy="Correct the line, or name another field.")
