"""What a server raises where a request cannot be answered."""

from txl_tf.serving.status_code import StatusCode


class RequestError(Exception):
    """A request that ends with a code and a message for whoever sent it.

    Args:
        code: `StatusCode`.
        message: str. What is wrong with the request.
        http_status: optional int. The status over HTTP; by default the code's.

    Attributes:
        code: as given.
        message: as given.
        http_status: int.
    """

    def __init__(self, code: StatusCode, message: str, http_status: int | None = None) -> None:
        self.code = code
        self.message = message
        self.http_status = code.http_status if http_status is None else http_status
        super().__init__(message)

    @classmethod
    def of_busy_server(cls, message: str) -> "RequestError":
        """The error of a request that is good, at a server that has too many.

        Args:
            message: str. What there is too much of.

        Returns:
            `RequestError`: RESOURCE_EXHAUSTED, 503 over HTTP.
        """
        return cls(StatusCode.RESOURCE_EXHAUSTED, f"{message} Ask again later.", 503)
