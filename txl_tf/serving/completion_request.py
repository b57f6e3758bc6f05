"""Request for texts in the form of OpenAI's completions."""

import dataclasses
import re
from typing import Annotated, Any

from txl_tf.config.base import FrozenConfig, not_negative, positive
from txl_tf.config.generation import DEFAULT_NEW_TOKENS, GenerationConfig, sample_seeds
from txl_tf.errors import did_you_mean
from txl_tf.storage.strict_json import parse_json

_EMPTY: tuple[Any, ...] = (None, "", [], {}, [""])
# Parameters that change no text of this server, and values with which others change nothing.
_IGNORED = ("user", "metadata", "add_special_tokens", "skip_special_tokens")
_NEUTRAL = {"min_tokens": 0, "length_penalty": 1, "use_beam_search": False, "top_k": -1}
# Similarity of two names, below which a client probably means another parameter.
_TYPO_SIMILARITY = 0.85


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
    continuous_usage_stats: bool = False
    """True to count the tokens in each event."""


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
    ignore_eos: bool = False
    """True to continue after the token that ends a document."""
    session: str = ""
    """Name of a text that is continued over many requests, with its memory."""
    model: str | None = None
    """Name of the model; the server refuses other names than its own."""


def parse_request(body: bytes) -> CompletionRequest:
    """Reads the body of a request; RequestError names the first wrong parameter.

    Empty values and parameters that change nothing are left out. A name in camel case is the same
    parameter.
    """
    values: dict[str, Any] = {}
    for name, value in json_object(body).items():
        snake = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        is_empty = value in _EMPTY or (snake in _NEUTRAL and value == _NEUTRAL[snake])
        if snake not in _IGNORED and not is_empty:
            require(
                values.setdefault(snake, value) == value,
                f"`{name[:60]}` and its other spelling have different values.",
                name[:60],
            )
    if values.pop("best_of", None) not in (None, values.get("n", 1)):
        raise RequestError(400, "`best_of` must be `n`, because all texts are returned.", "best_of")
    if type(values.get("seed")) is int:
        (values["seed"],) = sample_seeds(values["seed"], 1)  # in 32 bits
    if isinstance(values.get("stream_options"), dict):
        options = values["stream_options"].items()
        values["stream_options"] = {
            name: value
            for name, value in options
            if value is not None and name != "include_obfuscation"
        }
    names = list(CompletionRequest.__dataclass_fields__)
    unknown = [name[:60] for name in values if name not in names]
    if unknown:
        hint = did_you_mean(unknown[0], names, _TYPO_SIMILARITY)
        raise RequestError(
            400, f"The server does not support the parameter `{unknown[0]}`.{hint}", unknown[0]
        )
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
