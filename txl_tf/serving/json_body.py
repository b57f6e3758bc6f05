"""The body of a REST request: what it will take as objects, and the objects."""

from typing import Any

from txl_tf.json_text import parse_json
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.request_shapes import invalid
from txl_tf.serving.status_code import StatusCode

# Bytes that an object of Python takes, by the character that begins or ends it.
_VALUE_BYTES, _LIST_BYTES, _OBJECT_BYTES = 48, 104, 296


def body_memory(content: bytes, max_values: int, max_containers: int) -> int:
    """Roughly how much memory the values of a body take.

    Args:
        content: bytes of JSON.
        max_values: int. How many values there may be.
        max_containers: int. How many lists and objects, which take longest.

    Returns:
        The number of bytes.

    Raises:
        RequestError: If there are more, with the status 413.
    """
    num_lists, num_objects = content.count(b"["), content.count(b"{")
    num_values = content.count(b",") + num_lists + num_objects
    for count, limit, name in (
        (num_values, max_values, "values"),
        (num_lists + num_objects, max_containers, "lists and objects"),
    ):
        if count > limit:
            message = f"The body has about {count} {name}; {limit} is the limit."
            raise RequestError(StatusCode.INVALID_ARGUMENT, message, 413)
    others = _LIST_BYTES * num_lists + _OBJECT_BYTES * num_objects
    return 2 * len(content) + _VALUE_BYTES * num_values + others


def parse_body(content: bytes) -> dict[str, Any]:
    """The values of a body.

    Args:
        content: bytes of JSON.

    Returns:
        Dict.

    Raises:
        RequestError: INVALID_ARGUMENT if it is not a JSON object as `parse_json`
            takes it.
    """
    try:
        body = parse_json(content)
    except ValueError as error:
        raise invalid(f"JSON Parse error: {error}") from error
    if not isinstance(body, dict):
        raise invalid("The body must be a JSON object.")
    return body
