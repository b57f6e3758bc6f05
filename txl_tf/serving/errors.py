"""Errors of serving client and server, with gRPC and HTTP status codes."""

import enum


class StatusCode(enum.IntEnum):
    """The codes of gRPC and TensorFlow, and how they look over HTTP."""

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

    @property
    def http_status(self) -> int:
        """The status of an HTTP answer with this code."""
        return _HTTP_STATUS.get(self, 500)

    @classmethod
    def of_http_status(cls, http_status: int) -> "StatusCode":
        """Returns the likeliest code of an HTTP status; UNKNOWN where several or none fit."""
        return _OF_HTTP_STATUS.get(http_status, cls.UNKNOWN)


_HTTP_STATUS = {
    StatusCode.OK: 200,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.UNAUTHENTICATED: 401,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ABORTED: 409,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.CANCELLED: 499,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}
# Of several codes with one status, the first stands for it.
_OF_HTTP_STATUS = {status: code for code, status in reversed(_HTTP_STATUS.items())}
_OF_HTTP_STATUS |= {413: StatusCode.RESOURCE_EXHAUSTED, 500: StatusCode.INTERNAL}


class PredictionError(Exception):
    """Failed request: the server refused it or did not answer.

    Args:
        code: `StatusCode`.
        message: str. The server's own words.
        server: str. Address and model.
        signature: str. The signature that was asked for; empty where the
            request was none for a signature.
    """

    def __init__(self, code: StatusCode, message: str, *, server: str, signature: str = "") -> None:
        self.code = code
        self.message = message
        self.server = server
        self.signature = signature
        asked = f", signature `{signature}`" if signature else ""
        super().__init__(f"{code.name} from {server}{asked}: {message}")


class RequestError(Exception):
    """A request that ends with a code and a message for whoever sent it.

    Args:
        code: `StatusCode`.
        message: str. What is wrong with the request.
        http_status: optional int. The status over HTTP; by default the code's.

    Attributes:
        http_status: int.
    """

    def __init__(self, code: StatusCode, message: str, http_status: int | None = None) -> None:
        self.code = code
        self.message = message
        self.http_status = code.http_status if http_status is None else http_status
        super().__init__(message)

    @classmethod
    def of_busy_server(cls, message: str) -> "RequestError":
        """Creates the error of a server that is full: RESOURCE_EXHAUSTED, 503 over HTTP."""
        return cls(StatusCode.RESOURCE_EXHAUSTED, f"{message} Ask again later.", 503)
