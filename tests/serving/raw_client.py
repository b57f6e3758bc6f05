"""Sends bytes to a server as they are, and reads all that comes back."""

import contextlib
import json
import socket

import grpc

from tests.serving.hostile_requests import PREDICT

SECONDS = 20.0
# What may become of a request that is not good; none of them blames the server.
HTTP_REFUSALS = {400, 404, 405, 408, 413, 417, 501, 503}
GRPC_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
}


def exchange(port, content, *, seconds=SECONDS):
    """All that a server sends until it ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with contextlib.suppress(OSError):  # it may have refused before all was sent
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)
        return rest_of(connection)


def rest_of(connection):
    """All that comes until the connection ends."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def answers_in(received):
    """The statuses and bodies of answers, one after the other."""
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        lengths = [
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        length = lengths[0] if lengths else 0
        found.append((status, rest[:length]))
        received = rest[length:]
    return [each for each in found if each[0] != 100]


def ask_rest(port, content):
    """The status of the first answer, and its values; all of them must be JSON."""
    answers = answers_in(exchange(port, content))
    values = [json.loads(body) for _, body in answers if body]
    return (answers[0][0], values[0] if values else None) if answers else (None, None)


def ask_grpc(channel, content, method=PREDICT):
    """The code, and the bytes of the answer or the words of the refusal."""
    try:
        return grpc.StatusCode.OK, channel.unary_unary(method)(content, timeout=SECONDS)
    except grpc.RpcError as error:
        return error.code(), error.details()
