"""Request for texts in the form of OpenAI's completions."""

import dataclasses
from typing import Annotated, Any

from txl_tf.config.base import DEFAULT_NEW_TOKENS, FrozenConfig, not_negative, positive
from txl_tf.config.generation import GenerationConfig
from txl_tf.errors import did_you_mean
from txl_tf.storage.untrusted_files import parse_json

# Parameters of OpenAI's interface that are not supported, with the values that change nothing.
_NEUTRAL: dict[str, Any] = {"best_of": 1, "suffix": ""}


class RequestError(Exception):
    """Refused request, with its HTTP status and the wrong parameter."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


def require(is_valid: bool, message: str, param: str | None = None, status: int = 400) -> None:
    """Raises RequestError if a request is not valid."""
    if not is_valid:
        raise RequestError(status, message, param)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions(FrozenConfig):
    """Options of a stream."""

    include_usage: bool = False
    """True to end the stream with the counts of tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompletionRequest(GenerationConfig):
    """Body of `/v1/completions`: the settings of `GenerationConfig`, and the form of the answer."""

    prompt: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...] = ""
    """Text or token ids, or several of them."""
    max_tokens: Annotated[int, not_negative()] = DEFAULT_NEW_TOKENS
    """Most tokens to write; 0 only reads the prompt."""
    n: Annotated[int, positive()] = 1
    """Texts for each prompt."""
    echo: bool = False
    """True to begin each text with its prompt."""
    logprobs: Annotated[int | None, not_negative(5)] = None
    """Alternatives that are returned for each token."""
    return_token_ids: bool = False
    """True to return `token_ids` in each choice."""
    stream: bool = False
    """True to send texts as they are written."""
    stream_options: StreamOptions = StreamOptions()
    """Options of the stream."""
    session: str = ""
    """Name of a text that is continued over many requests, with its memory."""
    model: str | None = None
    """Name of the model; the server refuses other names than its own."""


def parse_request(body: bytes) -> CompletionRequest:
    """Reads the body of a request, without nulls; RequestError names the first wrong parameter."""
    values = {
        name: value
        for name, value in json_object(body).items()
        if value is not None and name != "user" and _NEUTRAL.get(name) != value
    }
    known = list(CompletionRequest.__dataclass_fields__)
    for name in values:
        what = f"The server does not support the parameter `{name[:60]}`."
        require(name in known, what + did_you_mean(name, known), name[:60])
    try:
        return CompletionRequest.from_dict(values)
    except ValueError as error:
        param = str(error).partition("`")[2].partition("`")[0]
        raise RequestError(400, str(error), param or None) from error


def json_object(body: bytes) -> dict[str, Any]:
    """Reads a body; RequestError unless it is a JSON object."""
    try:
        values = parse_json(body)
    except ValueError as error:
        raise RequestError(400, f"The body must be a JSON object. {error}") from error
    kind = type(values).__name__
    require(kind == "dict", f"The body must be a JSON object. Received: {kind}")
    return values
