"""Base class of configurations: fields with types and ranges, checked when they are set."""

import contextlib
import dataclasses
import functools
import math
import operator
import types
import typing
from typing import Any, NoReturn, Self

from txl_tf.config.setting_values import shown_value
from txl_tf.errors import did_you_mean

_LARGEST_INTEGER = 2**63 - 1
# A larger number is infinite in float32.
_LARGEST_FLOAT = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True)
class Range:
    """Interval of the numbers that a field accepts, as in `Annotated[int, Range(0, 5)]`.

    Its text follows the word "must be" in an error message.
    """

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
    """Returns the range of numbers above 0, up to a largest one."""
    return Range(0, at_most, excludes_low=True)


def not_negative(at_most: float = math.inf) -> Range:
    """Returns the range from 0, included, up to a largest number."""
    return Range(0, at_most)


FRACTION = Range(0, 1)
FRACTION_BELOW_ONE = Range(0, 1, excludes_high=True)
FRACTION_WITHIN = Range(0, 1, excludes_low=True, excludes_high=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """A frozen dataclass that checks its own values.

    A subclass annotates each field with int, float, bool, str, dict, `Literal`, a configuration, a
    tuple with items of one type, or a union of such types and `None`. A number is `Annotated` with
    its `Range`. `validate` checks rules between fields. The string under a field documents it.
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
            values: dict in the form that `to_dict` returns; a field with a default may be left
                out. An unknown key with the value None is ignored, because it stands for a
                setting of another version that was not used.

        Raises:
            ValueError: If a key is unknown, a field is missing, or a value is not valid.
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
        """Raises ValueError unless a field is valid; the rule follows the word "must"."""
        if not is_valid:
            self.refuse(f"`{name}` must {rule}.", name)

    def require_use(self, chooser: str, fields_of_choice: dict[str, frozenset[str]]) -> None:
        """Raises ValueError for a field that differs from its default but has no effect.

        The value of the field `chooser` determines which fields have an effect.

        Args:
            chooser: str. Name of the field that chooses.
            fields_of_choice: dict of each value of `chooser` to the fields that it uses. Only
                fields in these sets are checked.
        """
        choice = getattr(self, chooser)
        others = frozenset().union(*fields_of_choice.values()) - fields_of_choice[choice]
        for field in dataclasses.fields(self):
            if field.name in others and getattr(self, field.name) != field.default:
                users = [name for name, fields in fields_of_choice.items() if field.name in fields]
                self.refuse(
                    f"`{field.name}` needs `{chooser}` {' or '.join(users)}, or leave it out.",
                    field.name,
                    chooser,
                )

    def refuse(self, reason: str, *names: str) -> NoReturn:
        """Raises ValueError with a reason and the values of the named fields.

        A dotted name such as `training.num_steps` names a field of a section.
        """
        settings = (
            f"{name.rpartition('.')[2]}={shown_value(operator.attrgetter(name)(self))}"
            for name in names
        )
        raise ValueError(f"{reason} Received: {', '.join(settings)}")

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed; the copy checks its values too."""
        return dataclasses.replace(self, **changes)


def _broken_rule(value: Any, limits: Range | None) -> str | None:
    """Returns the rule that a number breaks, in words that follow "must"; otherwise `None`."""
    if type(value) is int and abs(value) > _LARGEST_INTEGER:
        return "be between -(2**63 - 1) and 2**63 - 1"
    # The comparison is negated because NaN compares as false.
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
    """Converts a value from Python or JSON to the type of a field; TypeError if none fits.

    JSON has lists in place of tuples, dicts in place of configurations, and integers that stand
    for floats.
    """
    options = options_of(hint)
    configs = [
        each for each in options if isinstance(each, type) and issubclass(each, FrozenConfig)
    ]
    if configs and isinstance(value, dict):
        return _class_by_kind(configs, value).from_dict(value)
    for option in options:
        kind = typing.get_origin(option) or option
        if kind is typing.Literal:
            # The types are compared too, because True is equal to 1.
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


def _class_by_kind(configs: list[type[FrozenConfig]], values: dict[str, Any]) -> type[FrozenConfig]:
    """Returns the class whose `kind` is in the values; without a kind, the class that has none."""
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
    """Returns the type of each field of a configuration class, and its range if it has one."""
    hints = typing.get_type_hints(config_class, include_extras=True)
    types = {}
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        is_annotated = typing.get_origin(hint) is typing.Annotated
        types[field.name] = typing.get_args(hint)[:2] if is_annotated else (hint, None)
    return types


def shown_type(hint: Any) -> str:
    """Formats a type for messages: `int | None`, `'a' | 'b'` for a `Literal`, `list[int]`."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"list[{shown_type(typing.get_args(hint)[0])}]"
    if len(options_of(hint)) > 1:
        return " | ".join(map(shown_type, options_of(hint)))
    return "None" if hint is types.NoneType else hint.__name__
