"""What a client raises where a server did not answer as asked."""

from txl_tf.serving.status_code import StatusCode


class PredictionError(Exception):
    """A request was refused, or there was nobody to answer it.

    Args:
        code: `StatusCode`.
        message: str. The server's own words.
        server: str. Address and model.
        signature: str. The signature that was asked for; empty where the
            request was none for a signature.

    Attributes:
        code: as given.
        message: as given.
        server: as given.
        signature: as given.
    """

    def __init__(self, code: StatusCode, message: str, *, server: str, signature: str = "") -> None:
        self.code = code
        self.message = message
        self.server = server
        self.signature = signature
        asked = f", signature `{signature}`" if signature else ""
        super().__init__(f"{code.name} from {server}{asked}: {message}")
