"""The error of text that a tokenizer cannot take."""

from typing import Self


class InvalidTextError(ValueError):
    """Text has something that the tokenizer neither keeps nor drops silently.

    A tokenizer knows the text it is given, and not the file it comes from;
    who knows more moves the place by `shifted`.

    Args:
        reason: str. What is wrong, in one sentence.
        offset_bytes: int. Place of the offending byte, counted from 0.
        line: int. Line of that byte, counted from 1; lines end at a line feed.
    """

    def __init__(self, reason: str, *, offset_bytes: int, line: int) -> None:
        self.reason = reason
        self.offset_bytes = offset_bytes
        self.line = line
        super().__init__(f"{reason} Received: line {line}, byte {offset_bytes}")

    @classmethod
    def at(cls, reason: str, text: bytes, offset_bytes: int) -> Self:
        """Builds the error for a place in a text.

        Args:
            reason: str. What is wrong, in one sentence.
            text: bytes. The text that the tokenizer was given.
            offset_bytes: int. The place in it.

        Returns:
            The error, with its line.
        """
        line = text.count(b"\n", 0, offset_bytes) + 1
        return cls(reason, offset_bytes=offset_bytes, line=line)

    def shifted(self, bytes_before: int, lines_before: int) -> Self:
        """Returns the error with its place counted from an earlier byte.

        Args:
            bytes_before: int. Bytes before the text that the error is about.
            lines_before: int. Line feeds in those bytes.

        Returns:
            The error of the longer text.
        """
        return type(self)(
            self.reason,
            offset_bytes=self.offset_bytes + bytes_before,
            line=self.line + lines_before,
        )
