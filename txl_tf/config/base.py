"""Base class of frozen, validated configurations, and the comparison of two of them."""

import dataclasses
import functools
import json
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from txl_tf.config.settings import Range, SettingsDocumentation, shown_type
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
    tuple of those, another configuration, or one of them and `None`), gives the
    ranges of numbers in `RANGES`, and overrides `validate` for what both cannot
    say. The string under a field is its documentation: `help` shows it.
    """

    RANGES: ClassVar[Mapping[str, Range]] = {}
    """Range of the numbers of a field, by its name; `None` is always in it."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        text = vars(cls).get("__doc__")
        if isinstance(text, str):
            cls.__doc__ = SettingsDocumentation(text)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):
            value = _coerced(getattr(self, field.name), hints[field.name])
            if not _has_type(value, hints[field.name]):
                received = f"{shown_value(value)} of type {type(value).__name__}"
                if isinstance(value, tuple):
                    received = shown_value(list(value))
                raise ValueError(
                    f"`{field.name}` must be {shown_type(hints[field.name])}. "
                    f"Received: {field.name}={received}"
                )
            _check_size(field.name, value)
            object.__setattr__(self, field.name, value)
        self._check_ranges()
        self.validate()

    def _check_ranges(self) -> None:
        for name, accepted in self.RANGES.items():
            value = getattr(self, name)
            if isinstance(value, int | float) and (rule := accepted.broken_rule(value)):
                self.require(name, False, rule)

    def validate(self) -> None:
        """Checks the values against each other.

        Raises:
            ValueError: If a value is out of its range.
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
        hints = _hints(cls)  # type: ignore[arg-type]
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
            return cls(**{name: _built(value, hints[name]) for name, value in values.items()})
        except TypeError as error:
            raise ValueError(
                f"`{cls.__name__}`: {error}. Received: {shown_value(values)}"
            ) from error

    def require(self, name: str, is_valid: bool, rule: str) -> None:
        """Raises ValueError that a field "must" obey a rule, if it does not."""
        if not is_valid:
            value = shown_value(getattr(self, name))
            raise ValueError(f"`{name}` must {rule}. Received: {name}={value}")

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with the named fields changed, checked again."""
        return dataclasses.replace(self, **changes)


@functools.cache
def _hints(config_class: type) -> dict[str, Any]:
    return typing.get_type_hints(config_class)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _check_size(name: str, value: Any) -> None:
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if isinstance(item, int) and abs(item) > _LARGEST_INTEGER:
            raise ValueError(f"`{name}` must fit 64 bits. Received: {name}={shown_value(item)}")
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"`{name}` must be a finite number. Received: {name}={item}")
        if isinstance(item, float) and abs(item) > _LARGEST_FLOAT:
            raise ValueError(f"`{name}` must fit float32. Received: {name}={item}")


def _coerced(value: Any, hint: Any) -> Any:
    """Converts JSON values to field types: lists to tuples, whole numbers to float."""
    options = _alternatives(hint)
    if isinstance(value, list) and any(typing.get_origin(option) is tuple for option in options):
        return tuple(value)
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        # Beyond that `float` fails; what is left an integer is refused with its name.
        return float(value) if abs(value) <= _LARGEST_INTEGER else value
    return value


def _has_type(value: Any, hint: Any) -> bool:
    for option in _alternatives(hint):
        if typing.get_origin(option) is tuple:
            item = typing.get_args(option)[0]
            if isinstance(value, tuple) and all(_has_type(each, item) for each in value):
                return True
        elif typing.get_origin(option) is typing.Literal:
            # Not by equality alone, for True is equal to 1.
            if any(type(value) is type(each) and value == each for each in typing.get_args(option)):
                return True
        elif isinstance(value, bool):
            if option is bool:
                return True
        elif isinstance(value, option):
            return True
    return False


def _built(value: Any, hint: Any) -> Any:
    for option in _alternatives(hint):
        is_config = isinstance(option, type) and issubclass(option, FrozenConfig)
        if is_config and isinstance(value, dict):
            return option.from_dict(value)
        if typing.get_origin(option) is tuple and isinstance(value, list):
            item = typing.get_args(option)[0]
            return tuple(_built(each, item) for each in value)
    return value


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
        stored: dict of JSON values, nested or not. What a run was begun with.
        current: dict of JSON values. What it is asked to go on with.

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
