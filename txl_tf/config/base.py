"""Base class of frozen, validated configurations, and the comparison of two of them."""

import contextlib
import dataclasses
import json
import math
import operator
import reprlib
import types
import typing
from typing import Any, NoReturn, Self

from txl_tf.config.settings import SettingsDocumentation, fields_of, shown_type
from txl_tf.errors import did_you_mean
from txl_tf.storage.untrusted_files import parse_json

_LARGEST_BITS = 256


def shown_value(value: Any) -> str:
    """Formats any value for an error message, cut where it is long or deep."""
    return _REPR.repr(value)


class _Repr(reprlib.Repr):
    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to write out a number of some thousand digits.
        if value.bit_length() > _LARGEST_BITS:
            return f"<an integer of {value.bit_length()} bits>"
        return repr(value)


_REPR = _Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = 8

_LARGEST_INTEGER = 2**63 - 1
# Of float32, in which everything is computed.
_LARGEST_FLOAT = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """A frozen dataclass that checks its own values.

    A subclass lists its fields with plain types (int, float, bool, str, a
    tuple of those, another configuration, or one of them and `None`), each
    `Annotated` with the `Range` of its numbers, and overrides `validate` for
    rules between fields. The string under a field is its documentation.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        text = vars(cls).get("__doc__")
        if isinstance(text, str):
            cls.__doc__ = SettingsDocumentation(text)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, (hint, accepted) in fields_of(type(self)).items():  # type: ignore[arg-type]
            given = getattr(self, name)
            try:
                value = _converted(given, hint)
            except TypeError:
                received = f"{shown_value(given)} of type {type(given).__name__}"
                raise ValueError(
                    f"`{name}` must be {shown_type(hint)}. Received: {name}={received}"
                ) from None
            _check_size(name, value)
            object.__setattr__(self, name, value)
            if accepted and isinstance(value, int | float):
                rule = accepted.broken_rule(value)
                self.require(name, rule is None, str(rule))
        self.validate()

    def validate(self) -> None:
        """Checks the values against each other.

        Raises:
            ValueError: If a value does not fit the others.
        """

    def to_dict(self) -> dict[str, Any]:
        """Returns the configuration as plain JSON types."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds a configuration from plain JSON types.

        Args:
            values: dict. What `to_dict` returns; fields may be left out.

        Raises:
            ValueError: If a key is unknown or a value is not valid.
        """
        if not isinstance(values, dict):
            raise ValueError(
                f"`{cls.__name__}` is made of a dict. Received: {shown_value(values)} "
                f"of type {type(values).__name__}"
            )
        fields = [field.name for field in dataclasses.fields(cls)]
        unknown = [key for key in values if key not in fields]
        if unknown:
            raise ValueError(
                f"Unknown keys for `{cls.__name__}`; known keys are "
                f"{', '.join(sorted(fields))}.{did_you_mean(str(unknown[0]), fields)} "
                f"Received: {', '.join(sorted(str(key)[:60] for key in unknown[:8]))}"
            )
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(
                f"`{cls.__name__}`: {error}. Received: {shown_value(values)}"
            ) from error

    def require(self, name: str, is_valid: bool, rule: str) -> None:
        """Raises ValueError that a field "must" obey a rule, if it does not."""
        if not is_valid:
            self.refuse(f"`{name}` must {rule}.", name)

    def refuse(self, reason: str, *names: str) -> NoReturn:
        """Raises ValueError with a reason and the values of fields, which may be dotted names."""
        received = (
            f"{name.rpartition('.')[2]}={shown_value(operator.attrgetter(name)(self))}"
            for name in names
        )
        raise ValueError(f"{reason} Received: {', '.join(received)}")

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with the named fields changed, checked again."""
        return dataclasses.replace(self, **changes)


def _check_size(name: str, value: Any) -> None:
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if isinstance(item, int) and abs(item) > _LARGEST_INTEGER:
            raise ValueError(f"`{name}` must fit 64 bits. Received: {name}={shown_value(item)}")
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"`{name}` must be a finite number. Received: {name}={item}")
        if isinstance(item, float) and abs(item) > _LARGEST_FLOAT:
            raise ValueError(f"`{name}` must fit float32. Received: {name}={item}")


def _converted(value: Any, hint: Any) -> Any:
    """Returns a value, or its form in JSON, as a field holds it; TypeError if no type fits."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    for option in typing.get_args(hint) if is_union else (hint,):
        kind = typing.get_origin(option) or option
        if kind is typing.Literal:
            # Not by equality alone, because True is equal to 1.
            if any(type(value) is type(each) and value == each for each in typing.get_args(option)):
                return value
        elif kind is tuple:
            if isinstance(value, list | tuple):
                item = typing.get_args(option)[0]
                with contextlib.suppress(TypeError):
                    return tuple(_converted(each, item) for each in value)
        elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        elif kind is float and type(value) is int and abs(value) <= _LARGEST_INTEGER:
            return float(value)
        elif issubclass(kind, FrozenConfig) and isinstance(value, dict):
            return kind.from_dict(value)
    raise TypeError


def _plain(value: Any) -> Any:
    if isinstance(value, FrozenConfig):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


MAX_TOKEN_IDS = 2**31 - 1
"""Token ids are int32."""
MAX_STEPS = 2**31 - 1
"""Steps are int32 where they decide dropout masks; at ten a second they last for seven years."""
MAX_STEPS_PER_LOOP = 2**20
"""The figures of all steps of a loop stay on the device until it ends."""
MAX_LAYERS = 1024
"""Every layer is a part of the program of its own, which takes seconds to compile."""
MAX_WIDTH = 2**20
"""Of hidden states, heads, embeddings and feed-forward layers, and how many heads there are."""
MAX_TOKENS = 2**24
"""Tokens of a segment or of a memory; attention keeps a number for every pair of them."""
MAX_DISTANCE = 2**31 - 1
"""A distance is int32; one that is larger than every other is no clamp."""
DEFAULT_NEW_TOKENS = 128
"""Tokens that are written unless it is said otherwise."""
MAX_ROWS = 2**24
"""Rows that are read side by side."""
MAX_CLUSTERS = 64
"""Clusters of the vocabulary; every cluster is a part of the program of its own."""

_WORDS = {"None": None, "True": True, "False": False}


def parse_setting(text: str) -> Any:
    """Reads JSON, or what Python calls `None`, `True` and `False`; all else is a string.

    Raises:
        ValueError: If it is JSON that cannot be meant, such as a number that no
            type can hold.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return _WORDS.get(text, text)


_MAX_SHOWN = 4


def describe_differences(stored: dict[str, Any], current: dict[str, Any]) -> str:
    """Lists the settings that are not the same, for an error's text.

    Args:
        stored: dict of JSON values, nested or not, of the run.
        current: dict of JSON values that are asked for now.

    Returns:
        One line such as `2 differ: seed (stored 7, now 8), model.dropout
        (stored 0.1, now 0.2)`; empty where all are the same.
    """
    before, now = flat_settings(stored), flat_settings(current)
    # A section that only one of them has counts as None.
    names = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    if not names:
        return ""
    shown = ", ".join(
        f"{name} (stored {before.get(name)!r}, now {now.get(name)!r})"
        for name in names[:_MAX_SHOWN]
    )
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return f"{len(names)} differ: {shown}{more}"


def flat_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by their dotted names, each after the prefix."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        is_section = isinstance(value, dict) and value
        flat |= flat_settings(value, f"{name}.") if is_section else {name: value}
    return flat
