"""Error of a request to TensorFlow Serving."""

HTTP_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The likeliest code of gRPC for a status of HTTP."""


class PredictionError(Exception):
    """Failed request: the server refused it or did not answer.

    Args:
        code: str. Name of the status code of gRPC, such as `"INVALID_ARGUMENT"`.
        message: str. Message of the server.
        server: str. Address and model.
        signature: str. Signature of the request; empty for metadata.
    """

    def __init__(self, code: str, message: str, *, server: str, signature: str = "") -> None:
        self.code = code
        self.message = message
        asked = f", signature `{signature}`" if signature else ""
        super().__init__(f"{code} from {server}{asked}: {message}")
