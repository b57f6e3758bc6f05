"""Settings of a configuration class: type, range, default and meaning of each field."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types
import typing
from typing import Any

_WIDTH = 80


@dataclasses.dataclass(frozen=True)
class Range:
    """Interval of the numbers that a field accepts: `Annotated[int, Range(0, 5)]`."""

    low: float | None = None
    high: float | None = None
    excludes_low: bool = False
    excludes_high: bool = False

    def broken_rule(self, value: float) -> str | None:
        """Returns the rule after "must" that a number breaks; `None` inside the range."""
        # Negated, so that NaN is outside.
        is_low = self.low is not None and (
            value <= self.low if self.excludes_low else not value >= self.low
        )
        is_high = self.high is not None and (
            value >= self.high if self.excludes_high else not value <= self.high
        )
        if not (is_low or is_high):
            return None
        if (self.low, self.high) == (0, 1):
            return f"be {self}"
        if is_high:
            return f"be at most {self.high}"
        if self.excludes_low:
            return "be positive"
        return "not be negative" if self.low == 0 else f"be at least {self.low}"

    def __str__(self) -> str:
        if (self.low, self.high) == (0, 1):
            return f"in {'(' if self.excludes_low else '['}0, 1{')' if self.excludes_high else ']'}"
        parts = []
        if self.low is not None:
            parts.append("positive" if self.excludes_low else f"at least {self.low:,}")
        if self.high is not None:
            parts.append(f"at most {self.high:,}")
        return ", ".join(parts)


def positive(at_most: float | None = None) -> Range:
    """Returns the range of the numbers above 0."""
    return Range(0, at_most, excludes_low=True)


def not_negative(at_most: float | None = None) -> Range:
    """Returns the range of the numbers from 0 on."""
    return Range(0, at_most)


FRACTION = Range(0, 1)
FRACTION_BELOW_ONE = Range(0, 1, excludes_high=True)
FRACTION_WITHIN = Range(0, 1, excludes_low=True, excludes_high=True)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of a configuration class, described for its user."""

    name: str
    """Name of the field."""
    type: str
    """Its type, or the values it can have."""
    range: str
    """Numbers that it accepts; empty where that is not restricted or not a number."""
    default: str
    """Its default, as Python writes it; empty where it has to be given."""
    meaning: str
    """What it decides, with its unit."""

    @property
    def facts(self) -> str:
        """Type, range and default in one line."""
        default = f"default {self.default}" if self.default else "required"
        return "; ".join(part for part in (self.type, self.range, default) if part)


def split_hint(hint: Any) -> tuple[Any, Range | None]:
    """Returns the type of a field and the range beside it, if there is one."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint, None
    plain, *notes = typing.get_args(hint)
    return plain, next((note for note in notes if isinstance(note, Range)), None)


@functools.cache
def fields_of(config_class: type) -> dict[str, tuple[Any, Range | None]]:
    """Returns the type and the range of each field of a configuration class."""
    hints = typing.get_type_hints(config_class, include_extras=True)
    names = (field.name for field in dataclasses.fields(config_class))
    return {name: split_hint(hints[name]) for name in names}


@functools.cache
def settings_of(config_class: type) -> tuple[Setting, ...]:
    """Returns the settings of a subclass of `FrozenConfig`, in the order of its fields."""
    meanings: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= _meanings(base)
    hints = fields_of(config_class)
    return tuple(
        Setting(
            field.name,
            shown_type(hints[field.name][0]),
            str(hints[field.name][1] or ""),
            _shown_default(field),
            meanings.get(field.name, ""),
        )
        for field in dataclasses.fields(config_class)
    )


def json_schema(config_class: Any) -> dict[str, Any]:
    """Returns the JSON Schema of the values of a configuration, in JSON or TOML, for editors.

    No field is required, because a file may have a base that states it.
    """
    meanings = {setting.name: setting.meaning for setting in settings_of(config_class)}
    properties = {
        name: {**_schema_of(hint, accepted), "description": meanings[name]}
        for name, (hint, accepted) in fields_of(config_class).items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


_JSON_TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    types.NoneType: "null",
}


def _schema_of(hint: Any, accepted: Range | None = None) -> dict[str, Any]:
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return {"anyOf": [_schema_of(part, accepted) for part in parts]}
    if kind is typing.Literal:
        return {"enum": list(parts)}
    if kind is tuple:
        return {"type": "array", "items": _schema_of(parts[0])}
    if kind not in _JSON_TYPES:
        return json_schema(kind)
    bounds = {}
    if accepted is not None and kind in (int, float):
        bounds["exclusiveMinimum" if accepted.excludes_low else "minimum"] = accepted.low
        bounds["exclusiveMaximum" if accepted.excludes_high else "maximum"] = accepted.high
    limits = {name: bound for name, bound in bounds.items() if bound is not None}
    return {"type": _JSON_TYPES[kind], **limits}


def _meanings(config_class: type) -> dict[str, str]:
    """Reads the strings under the fields from the source of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(config_class)))
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    found = {}
    for field, after in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            name = typing.cast(ast.Name, field.target).id
            found[name] = " ".join(ast.literal_eval(after.value).split())
    return found


_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


def shown_type(hint: Any) -> str:
    """Returns the words for a type of field, such as "int, or None" or "list of whole numbers"."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [shown_type(part) for part in typing.get_args(hint)]
        return " or ".join(part for part in parts if part != "None") + (
            ", or None" if "None" in parts else ""
        )
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return f"list of {_MANY.get(item) or shown_type(item)}"
    return "None" if hint is types.NoneType else hint.__name__


def _shown_default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.type.__name__}()" if isinstance(field.type, type) else "its own defaults"
    return ""


class SettingsDocumentation:
    """Docstring of a configuration class with a section on every field, made when it is read."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: Any, owner: type) -> str:
        if "__dataclass_fields__" not in vars(owner):
            return self._text  # the decorator asks before it has made the fields
        lines = ["Args:"]
        for setting in settings_of(owner):
            lines += textwrap.wrap(
                f"{setting.name}: {setting.facts}. {setting.meaning}",
                _WIDTH,
                initial_indent=" " * 4,
                subsequent_indent=" " * 8,
                break_on_hyphens=False,
            )
        head, separator, rest = inspect.cleandoc(self._text).partition("\n\nRaises:")
        return "\n".join([head, "", *lines]) + separator + rest + "\n"
