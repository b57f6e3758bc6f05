"""What the tokenizers of text ask of bytes before they read characters."""

from txl_tf.data.tokenizers.invalid_text_error import InvalidTextError


def decode_utf8(text: bytes) -> str:
    """Decodes UTF-8; nothing is replaced or dropped.

    Args:
        text: bytes. The text.

    Returns:
        The same text, as characters.

    Raises:
        InvalidTextError: If the text is not UTF-8.
    """
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"The text is not UTF-8: byte 0x{text[error.start]:02x} ({error.reason})."
        raise InvalidTextError.at(reason, text, error.start) from error
