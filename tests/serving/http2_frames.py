"""A gRPC request as frames of HTTP/2, so that it can be left unfinished."""

from tests.serving.hostile_requests import PREDICT

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_HEADERS = 4
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NAMES = {
    ":method": "POST",
    ":scheme": "http",
    ":path": PREDICT,
    ":authority": "a",
    "te": "trailers",
    "content-type": "application/grpc",
}


def begun_request(num_bytes):
    """A connection's first bytes: a request whose message will have so many bytes."""
    header = b"".join(b"\0" + _text(name) + _text(value) for name, value in _NAMES.items())
    prefix = b"\0" + num_bytes.to_bytes(4, "big")
    frames = [_frame(_SETTINGS, 0, 0, b""), _frame(_HEADERS, _END_HEADERS, 1, header)]
    return b"".join([_GREETING, *frames, more_of_message(prefix)])


def more_of_message(content):
    """The next bytes of the message."""
    return _frame(_DATA, 0, 1, content)


def _frame(kind, flags, stream, content):
    return b"".join(
        [len(content).to_bytes(3, "big"), bytes([kind, flags]), stream.to_bytes(4, "big"), content]
    )


def _text(text):
    # A literal without Huffman coding; lengths below 127 take one byte.
    return bytes([len(text)]) + text.encode()
