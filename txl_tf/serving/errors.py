"""Error of a request to TensorFlow Serving, with the status codes of gRPC and HTTP."""

import enum


class StatusCode(enum.IntEnum):
    """Status codes of gRPC and TensorFlow."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def of_http_status(cls, http_status: int) -> "StatusCode":
        """Returns the likeliest code of an HTTP status; UNKNOWN where several or none fit."""
        return _OF_HTTP_STATUS.get(http_status, cls.UNKNOWN)


_OF_HTTP_STATUS = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    413: StatusCode.RESOURCE_EXHAUSTED,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    501: StatusCode.UNIMPLEMENTED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}


class PredictionError(Exception):
    """Failed request: the server refused it or did not answer.

    Args:
        code: `StatusCode`.
        message: str. Message of the server.
        server: str. Address and model.
        signature: str. Signature of the request; empty for metadata.
    """

    def __init__(self, code: StatusCode, message: str, *, server: str, signature: str = "") -> None:
        self.code = code
        self.message = message
        self.server = server
        self.signature = signature
        asked = f", signature `{signature}`" if signature else ""
        super().__init__(f"{code.name} from {server}{asked}: {message}")
