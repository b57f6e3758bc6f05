"""What a server raises where a request cannot be answered."""

from txl_tf.serving.status_code import StatusCode


class RequestError(Exception):
    """A request that ends with a code and a message for whoever sent it.

    Args:
        code: `StatusCode`.
        message: str. What is wrong with the request.

    Attributes:
        code: as given.
        message: as given.
    """

    def __init__(self, code: StatusCode, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)
