"""The base of all configurations: frozen, validated, JSON in and out."""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Self

from txl_tf.config.shown_value import shown_value

_LARGEST_INTEGER = 2**63 - 1
# Of float32, in which everything is computed.
_LARGEST_FLOAT = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """A frozen dataclass that checks its own values.

    A subclass lists its fields with plain types (int, float, bool, str, a
    tuple of those, another configuration, or one of them and `None`) and
    overrides `validate` for what types cannot say.
    """

    def __post_init__(self) -> None:
        hints = _hints(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):
            value = _coerced(getattr(self, field.name), hints[field.name])
            if not _has_type(value, hints[field.name]):
                expected = getattr(hints[field.name], "__name__", hints[field.name])
                raise ValueError(
                    f"`{field.name}` must be {expected}. "
                    f"Received: {field.name}={shown_value(value)} of type {type(value).__name__}"
                )
            _check_size(field.name, value)
            object.__setattr__(self, field.name, value)
        self.validate()

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

        Returns:
            The configuration.

        Raises:
            ValueError: If a key is unknown or a value is not valid.
        """
        hints = _hints(cls)  # type: ignore[arg-type]
        if not isinstance(values, dict):
            raise ValueError(
                f"`{cls.__name__}` is made of a dict. Received: {shown_value(values)} "
                f"of type {type(values).__name__}"
            )
        unknown = [key for key in values if key not in hints]
        if unknown:
            raise ValueError(
                f"Unknown keys for `{cls.__name__}`; known keys are "
                f"{', '.join(sorted(hints))}. "
                f"Received: {', '.join(sorted(str(key)[:60] for key in unknown[:8]))}"
            )
        try:
            return cls(**{name: _built(value, hints[name]) for name, value in values.items()})
        except TypeError as error:
            raise ValueError(
                f"`{cls.__name__}`: {error}. Received: {shown_value(values)}"
            ) from error

    def check_at_most(self, limits: Mapping[str, float]) -> None:
        """Checks values against what can never be meant.

        Args:
            limits: mapping from the name of a field to its largest value; `None` in
                a field is always right.

        Raises:
            ValueError: If a value is larger.
        """
        for name, most in limits.items():
            value = getattr(self, name)
            if isinstance(value, int | float) and value > most:
                raise ValueError(
                    f"`{name}` must be at most {most}. Received: {name}={shown_value(value)}"
                )

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
    """JSON knows no tuples and writes 1.0 as 1; both are meant, not mistaken."""
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
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, FrozenConfig):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
