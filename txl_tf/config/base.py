"""Base class of frozen, validated configurations."""

import contextlib
import dataclasses
import functools
import json
import math
import operator
import re
import reprlib
import types
import typing
from typing import Any, NoReturn, Self

from txl_tf.errors import did_you_mean
from txl_tf.storage.untrusted_files import parse_json

MAX_TOKEN_IDS = 2**31 - 1
"""Token ids are int32."""
MAX_STEPS = 2**31 - 1
"""Dropout masks depend on the step as an int32."""
MAX_STEPS_PER_LOOP = 2**20
"""The figures of all steps of a loop stay on the device until it ends."""
MAX_LAYERS = 1024
"""Each layer takes seconds to compile."""
MAX_WIDTH = 2**20
"""Limit of the widths of layers, and of the number of heads."""
MAX_TOKENS = 2**24
"""Limit of segments and memories; attention computes a score for every pair of tokens."""
MAX_DISTANCE = 2**31 - 1
"""Distances are int32."""
DEFAULT_NEW_TOKENS = 128
"""Tokens to generate by default."""
MAX_ROWS = 2**24
"""Limit of the rows of a batch."""
MAX_CLUSTERS = 64
"""Limit of the clusters of the vocabulary, each of which is compiled separately."""

_LARGEST_INTEGER = 2**63 - 1
# Everything is computed in float32.
_LARGEST_FLOAT = 3.4028234663852886e38

_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 100
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = 8


def shown_value(value: Any) -> str:
    """Formats any value for an error message, cut where it is long or deep."""
    return _REPR.repr(value)


@dataclasses.dataclass(frozen=True)
class Range:
    """Interval of the numbers that a field accepts, as in `Annotated[int, Range(0, 5)]`."""

    low: float
    high: float = math.inf
    excludes_low: bool = False
    excludes_high: bool = False

    def __contains__(self, value: float) -> bool:
        is_above = value > self.low if self.excludes_low else value >= self.low
        return is_above and (value < self.high if self.excludes_high else value <= self.high)

    def __str__(self) -> str:
        if (self.low, self.high) == (0, 1):
            return f"in {'(' if self.excludes_low else '['}0, 1{')' if self.excludes_high else ']'}"
        low = "positive" if self.excludes_low else f"at least {self.low:,}"
        return low if self.high == math.inf else f"{low}, at most {self.high:,}"


def positive(at_most: float = math.inf) -> Range:
    """Returns the range of the numbers above 0."""
    return Range(0, at_most, excludes_low=True)


def not_negative(at_most: float = math.inf) -> Range:
    """Returns the range of the numbers from 0."""
    return Range(0, at_most)


FRACTION = Range(0, 1)
FRACTION_BELOW_ONE = Range(0, 1, excludes_high=True)
FRACTION_WITHIN = Range(0, 1, excludes_low=True, excludes_high=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """A frozen dataclass that checks its own values.

    A subclass lists its fields with plain types: int, float, bool, str, dict, a tuple of those,
    another configuration, or one of them and `None`. Numbers are `Annotated` with their `Range`.
    `validate` checks rules between fields. The string under a field is its documentation.
    """

    def __post_init__(self) -> None:
        for name, (hint, limits) in fields_of(type(self)).items():  # type: ignore[arg-type]
            raw_value = getattr(self, name)
            try:
                value = _convert(raw_value, hint)
            except TypeError:
                description = f"{shown_value(raw_value)} of type {type(raw_value).__name__}"
                raise ValueError(
                    f"`{name}` must be {shown_type(hint)}. Received: {name}={description}"
                ) from None
            object.__setattr__(self, name, value)
            for item in value if isinstance(value, tuple) else (value,):
                rule = _broken_rule(item, limits)
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
            values: dict. What `to_dict` returns; fields may be left out. Unknown fields that are
                None are ignored: an earlier version did not use them.

        Raises:
            ValueError: If a key is unknown or a value is not valid.
        """
        if not isinstance(values, dict):
            raise ValueError(
                f"`{cls.__name__}` needs a dict. Received: {shown_value(values)} "
                f"of type {type(values).__name__}"
            )
        fields = [field.name for field in dataclasses.fields(cls)]
        values = {key: each for key, each in values.items() if key in fields or each is not None}
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
                f"`{cls.__name__}` is incomplete: {error}. Received: {shown_value(values)}"
            ) from error

    def require(self, name: str, is_valid: bool, rule: str) -> None:
        """Raises ValueError that a field "must" obey a rule, if it does not."""
        if not is_valid:
            self.refuse(f"`{name}` must {rule}.", name)

    def require_use(self, chooser: str, fields_of_choice: dict[str, frozenset[str]]) -> None:
        """Raises ValueError for a changed field that only other choices of `chooser` use."""
        choice = getattr(self, chooser)
        unused = frozenset().union(*fields_of_choice.values()) - fields_of_choice[choice]
        for field in dataclasses.fields(self):
            if field.name in unused and getattr(self, field.name) != field.default:
                users = [name for name, fields in fields_of_choice.items() if field.name in fields]
                what = f"`{field.name}` needs `{chooser}` {' or '.join(users)}, or leave it out."
                self.refuse(what, field.name, chooser)

    def refuse(self, reason: str, *names: str) -> NoReturn:
        """Raises ValueError with a reason and the values of fields, which may be dotted names."""
        settings = (
            f"{name.rpartition('.')[2]}={shown_value(operator.attrgetter(name)(self))}"
            for name in names
        )
        raise ValueError(f"{reason} Received: {', '.join(settings)}")

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with the named fields changed, checked again."""
        return dataclasses.replace(self, **changes)


def _broken_rule(value: Any, limits: Range | None) -> str | None:
    """Returns the rule after "must" that a number breaks; `None` for all other values."""
    if type(value) is int and abs(value) > _LARGEST_INTEGER:
        return "be between -(2**63 - 1) and 2**63 - 1"
    # Negated, because NaN compares as false.
    if type(value) is float and not abs(value) <= _LARGEST_FLOAT:
        return "be finite, and at most about 3.4e38 in size"
    if type(value) in (int, float) and limits is not None and value not in limits:
        return f"be {limits}"
    return None


def options_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or a single type."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _convert(value: Any, hint: Any) -> Any:
    """Returns a value, or its form in JSON, as a field holds it; TypeError if no type fits."""
    options = options_of(hint)
    configs = [
        each for each in options if isinstance(each, type) and issubclass(each, FrozenConfig)
    ]
    if configs and isinstance(value, dict):
        return _chosen_by_kind(configs, value).from_dict(value)
    for option in options:
        kind = typing.get_origin(option) or option
        if kind is typing.Literal:
            # Not by equality alone, because True is equal to 1.
            if any(type(value) is type(each) and value == each for each in typing.get_args(option)):
                return value
        elif kind is tuple:
            if isinstance(value, list | tuple):
                item = typing.get_args(option)[0]
                with contextlib.suppress(TypeError):
                    return tuple(_convert(each, item) for each in value)
        elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        elif kind is float and type(value) is int and abs(value) <= _LARGEST_INTEGER:
            return float(value)
    raise TypeError


def _chosen_by_kind(
    configs: list[type[FrozenConfig]], values: dict[str, Any]
) -> type[FrozenConfig]:
    """Returns the class of the `kind` in the values, or the class without a kind."""
    if len(configs) == 1:
        return configs[0]
    by_kind = {getattr(each, "kind", ""): each for each in configs}
    kind = values.get("kind", "")
    if not isinstance(kind, str) or kind not in by_kind:
        kinds = ", ".join(repr(each) for each in by_kind if each)
        reason = f"`kind` must be one of {kinds}, or left out for `{by_kind[''].__name__}`."
        raise ValueError(f"{reason} Received: kind={shown_value(kind)}")
    return by_kind[kind]


def _plain(value: Any) -> Any:
    if isinstance(value, FrozenConfig):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@functools.cache
def fields_of(config_class: Any) -> dict[str, tuple[Any, Range | None]]:
    """Returns the type and the range of each field of a configuration class."""
    hints = typing.get_type_hints(config_class, include_extras=True)
    types = {}
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        is_annotated = typing.get_origin(hint) is typing.Annotated
        types[field.name] = typing.get_args(hint)[:2] if is_annotated else (hint, None)
    return types


def shown_type(hint: Any) -> str:
    """Returns a type as in `int | None`, the values of a `Literal`, or a list of items."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"list[{shown_type(typing.get_args(hint)[0])}]"
    if len(options_of(hint)) > 1:
        return " | ".join(map(shown_type, options_of(hint)))
    return "None" if hint is types.NoneType else hint.__name__


_WORDS = {"none": None, "true": True, "false": False}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def parse_setting(text: str) -> Any:
    """Reads JSON, `.5`, `(1, 2)`, or `none`, `true` and `false`; any other text is a string.

    Raises ValueError for JSON that no type can hold, such as a number of 5,000 digits.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        if _NUMBER.fullmatch(text):
            return float(text)
        if text[:1] + text[-1:] == "()":
            return parse_setting(f"[{text[1:-1].rstrip(', ')}]")
        return _WORDS.get(text.lower(), text)


_MAX_SHOWN = 4


def describe_differences(stored: dict[str, Any], current: dict[str, Any]) -> str:
    """Lists settings that differ between two nested dicts of JSON values, in one line.

    An example is `2 settings differ: seed (stored 7, now 8), model.dropout (stored 0.1, now 0.2)`.
    The line is empty if all are equal. A missing setting counts as None.
    """
    before, now = flat_settings(stored), flat_settings(current)
    names = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    if not names:
        return ""
    listing = ", ".join(
        f"{name} (stored {before.get(name)!r}, now {now.get(name)!r})"
        for name in names[:_MAX_SHOWN]
    )
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return f"{len(names)} setting{'s differ' if len(names) > 1 else ' differs'}: {listing}{more}"


def flat_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by their dotted names, each after the prefix."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        is_section = isinstance(value, dict) and value
        flat |= flat_settings(value, f"{name}.") if is_section else {name: value}
    return flat
