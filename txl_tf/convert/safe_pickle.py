"""Pickle reader that builds plain data only and executes nothing.

A pickle is a program for a small stack machine, and loading one runs it: it may
import any module and call any function. This module is such a machine without
imports and without calls. Objects become descriptions, see `InertObject`, and
only of the names that the caller admits.
"""

import codecs
import dataclasses
import struct
from collections.abc import Callable
from typing import IO, Any


@dataclasses.dataclass(eq=False)
class InertObject:
    """Description of an object that a pickle refers to; nothing is imported or called.

    Attributes:
        kind: str. Module and name of the class, or of the function that would
            have made it.
        state: what the pickle says the object holds; `None` if nothing.
    """

    kind: str
    state: Any = None


_MAX_OPERATIONS = 32_000_000
_COST_OF_AN_ENTRY = 16
_MAX_DEPTH = 1000
_MAX_LINE_BYTES = 4096
_MAX_INTEGER_BYTES = 16
_MAX_KEPT_BYTES = 2**20
_MAX_ALL_KEPT_BYTES = 2**29
_MAX_PROTOCOL = 4

# Classes that are dicts but for their name.
_DICTS = {"collections.OrderedDict", "collections.Counter"}
# Makes an object of the class that is its first argument.
_RECONSTRUCTORS = {"copy_reg._reconstructor", "copyreg._reconstructor"}


class InertPickleReader:
    """A stack machine for pickles that can only build plain data.

    Bytes longer than a mebibyte are passed over and become an `InertObject`
    of the kind `"bytes"`: long arrays need no memory. Their number of
    operations, depth and integers are limited, and nothing is allocated for a
    length that the file does not have.

    Args:
        file: binary file, at its beginning.
        num_bytes: int. Length of the file.
        admitted: set of str. Names `module.name` that the pickle may mention,
            `collections.OrderedDict` and `collections.Counter` apart, which
            become dicts.
    """

    def __init__(self, file: IO[bytes], num_bytes: int, admitted: frozenset[str]) -> None:
        self._file = file
        self._left = num_bytes
        self._operations_left = _MAX_OPERATIONS
        self._kept_bytes_left = _MAX_ALL_KEPT_BYTES
        self._admitted = admitted
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> Any:
        """Reads the pickle.

        Returns:
            Dicts, lists, tuples, numbers, str, bytes, `None` and
            `InertObject`.

        Raises:
            ValueError: If the pickle is damaged, or is more than data.
        """
        while (operation := self._take(1)) != b".":
            handler = _HANDLERS.get(operation)
            if handler is None:
                raise ValueError(f"it uses the operation {operation!r}, which is not for data")
            self._spend(1)
            handler(self)
        return self._pop()

    def _spend(self, num_operations: int) -> None:
        self._operations_left -= num_operations
        if self._operations_left < 0:
            raise ValueError(f"it has more than {_MAX_OPERATIONS} operations")

    # === Input ===

    def _take(self, count: int) -> bytes:
        if count > self._left:
            raise ValueError("it ends early")
        data = self._file.read(count)
        if len(data) != count:
            raise ValueError("it ends early")
        self._left -= count
        return data

    def _line(self) -> bytes:
        line = self._file.readline(min(_MAX_LINE_BYTES, self._left))
        self._left -= len(line)
        if not line.endswith(b"\n"):
            raise ValueError("a line is too long or ends early")
        return line[:-1]

    def _number(self, layout: str) -> int:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _raw(self, layout: str) -> bytes | InertObject:
        count = self._number(layout)
        if count < 0 or count > self._left:
            raise ValueError("it ends early")
        if count <= _MAX_KEPT_BYTES:
            self._kept_bytes_left -= count
            if self._kept_bytes_left < 0:
                raise ValueError(f"it has more than {_MAX_ALL_KEPT_BYTES} bytes of text")
            return self._take(count)
        self._file.seek(count, 1)
        self._left -= count
        return InertObject("bytes")

    # === Stack ===

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise ValueError("it takes from an empty stack")
        return self._stack.pop()

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise ValueError(f"it adds to something that is not a {kind.__name__}")
        return self._stack[-1]

    def _mark(self) -> None:
        if len(self._outer) >= _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        self._outer.append(self._stack)
        self._stack = []

    def _pop_mark(self) -> list[Any]:
        if not self._outer:
            raise ValueError("it ends something that was not begun")
        items, self._stack = self._stack, self._outer.pop()
        return items

    # === Memory of the machine ===

    def _put(self, index: int) -> None:
        if not self._stack:
            raise ValueError("it remembers the top of an empty stack")
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise ValueError(f"it refers to entry {index}, which there is not")
        self._push(self._memo[index])

    # === Values ===

    def _protocol(self) -> None:
        version = self._take(1)[0]
        if version > _MAX_PROTOCOL:
            raise ValueError(f"it is of protocol {version}")

    def _text_integer(self) -> None:
        line = self._line().rstrip(b"L")
        if len(line) > _MAX_INTEGER_BYTES:
            raise ValueError("an integer is too long")
        booleans = {b"00": False, b"01": True}
        self._push(booleans[line] if line in booleans else int(line))

    def _long_integer(self, layout: str) -> None:
        count = self._number(layout)
        if not 0 <= count <= _MAX_INTEGER_BYTES:
            raise ValueError("an integer is too long")
        self._push(int.from_bytes(self._take(count), "little", signed=True))

    def _quoted(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] not in (b'"', b"'") or line[-1:] != line[:1]:
            raise ValueError("a string is not in quotation marks")
        self._push(codecs.escape_decode(line[1:-1])[0])

    def _text(self, layout: str) -> None:
        data = self._raw(layout)
        if isinstance(data, InertObject):
            raise ValueError("a text is too long")
        self._push(data.decode("utf-8", "surrogatepass"))

    # === Containers ===

    def _tuple(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self._push(tuple(reversed(items)))

    def _append(self) -> None:
        value = self._pop()
        self._top(list).append(value)

    def _appends(self) -> None:
        items = self._pop_mark()
        self._top(list).extend(items)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._top(dict).update(_pairs([key, value]))

    def _set_items(self) -> None:
        items = self._pop_mark()
        self._top(dict).update(_pairs(items))

    # === Objects, which are described and not made ===

    def _global_line(self) -> None:
        module, name = self._line(), self._line()
        self._global(module.decode("latin-1"), name.decode("latin-1"))

    def _global_stack(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("the name of an object is not a text")
        self._global(module, name)

    def _global(self, module: str, name: str) -> None:
        full_name = f"{module}.{name}"
        if full_name not in self._admitted | _DICTS:
            raise ValueError(f"it asks for {full_name[:100]!r}, which is not data")
        self._push(_Name(full_name))

    def _described(self, name: Any, arguments: Any) -> Any:
        if not isinstance(name, _Name) or not isinstance(arguments, tuple):
            raise ValueError("it calls something that is not a name")
        if name.full_name in _DICTS:
            # The same list may be made into a dict again and again, by few operations.
            for pairs in arguments:
                self._spend(len(pairs) * _COST_OF_AN_ENTRY if isinstance(pairs, list) else 0)
            return _as_dict(arguments)
        if name.full_name in _RECONSTRUCTORS and arguments and isinstance(arguments[0], _Name):
            return InertObject(arguments[0].full_name)
        return InertObject(name.full_name)

    def _reduce(self) -> None:
        arguments, name = self._pop(), self._pop()
        self._push(self._described(name, arguments))

    def _old_object(self) -> None:
        items = self._pop_mark()
        if not items:
            raise ValueError("an object has no class")
        self._push(self._described(items[0], tuple(items[1:])))

    def _old_instance(self) -> None:
        items = self._pop_mark()
        self._global_line()
        self._push(self._described(self._pop(), tuple(items)))

    def _build(self) -> None:
        state = self._pop()
        self._top(InertObject).state = state


class _Name:
    """The name of a class or function: not the class or function."""

    def __init__(self, full_name: str) -> None:
        self.full_name = full_name


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    keys, values = items[::2], items[1::2]
    # Only of these is it certain that comparing them runs nothing and ends soon.
    if len(keys) != len(values) or any(type(key) not in (str, bytes, int) for key in keys):
        raise ValueError("the entries of a dict are not pairs of a plain key and a value")
    return list(zip(keys, values, strict=True))


def _as_dict(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Returns the dict that `OrderedDict` or `Counter` would be, given these arguments."""
    if not arguments:
        return {}
    content = arguments[0]
    if len(arguments) > 1 or not isinstance(content, dict | list):
        raise ValueError("a dict is made of something else")
    if isinstance(content, dict):
        return content
    if any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in content):
        raise ValueError("a dict is made of something else")
    return dict(_pairs([each for pair in content for each in pair]))


_Handler = Callable[[InertPickleReader], Any]


def _pushing(value: Any) -> _Handler:
    return lambda machine: machine._push(value)


# Each operation by its byte, in the order of the list in `pickletools`.
_HANDLERS: dict[bytes, _Handler] = {
    b"I": InertPickleReader._text_integer,
    b"L": InertPickleReader._text_integer,
    b"J": lambda machine: machine._push(machine._number("<i")),
    b"K": lambda machine: machine._push(machine._number("<B")),
    b"M": lambda machine: machine._push(machine._number("<H")),
    b"\x8a": lambda machine: machine._long_integer("<B"),
    b"\x8b": lambda machine: machine._long_integer("<i"),
    b"S": InertPickleReader._quoted,
    b"T": lambda machine: machine._push(machine._raw("<i")),
    b"U": lambda machine: machine._push(machine._raw("<B")),
    b"B": lambda machine: machine._push(machine._raw("<I")),
    b"C": lambda machine: machine._push(machine._raw("<B")),
    b"\x8e": lambda machine: machine._push(machine._raw("<Q")),
    b"N": _pushing(None),
    b"\x88": _pushing(True),
    b"\x89": _pushing(False),
    b"V": lambda machine: machine._push(machine._line().decode("raw-unicode-escape")),
    b"\x8c": lambda machine: machine._text("<B"),
    b"X": lambda machine: machine._text("<I"),
    b"\x8d": lambda machine: machine._text("<Q"),
    b"F": lambda machine: machine._push(float(machine._line())),
    b"G": lambda machine: machine._push(machine._number(">d")),
    b"]": lambda machine: machine._push([]),
    b"a": InertPickleReader._append,
    b"e": InertPickleReader._appends,
    b"l": lambda machine: machine._push(machine._pop_mark()),
    b")": _pushing(()),
    b"t": lambda machine: machine._push(tuple(machine._pop_mark())),
    b"\x85": lambda machine: machine._tuple(1),
    b"\x86": lambda machine: machine._tuple(2),
    b"\x87": lambda machine: machine._tuple(3),
    b"}": lambda machine: machine._push({}),
    b"d": lambda machine: machine._push(dict(_pairs(machine._pop_mark()))),
    b"s": InertPickleReader._set_item,
    b"u": InertPickleReader._set_items,
    b"0": lambda machine: machine._stack.pop() if machine._stack else machine._pop_mark(),
    b"2": lambda machine: machine._push(machine._top(object)),
    b"(": InertPickleReader._mark,
    b"1": InertPickleReader._pop_mark,
    b"g": lambda machine: machine._get(int(machine._line())),
    b"h": lambda machine: machine._get(machine._number("<B")),
    b"j": lambda machine: machine._get(machine._number("<I")),
    b"p": lambda machine: machine._put(int(machine._line())),
    b"q": lambda machine: machine._put(machine._number("<B")),
    b"r": lambda machine: machine._put(machine._number("<I")),
    b"\x94": lambda machine: machine._put(len(machine._memo)),
    b"c": InertPickleReader._global_line,
    b"\x93": InertPickleReader._global_stack,
    b"R": InertPickleReader._reduce,
    b"\x81": InertPickleReader._reduce,
    b"i": InertPickleReader._old_instance,
    b"o": InertPickleReader._old_object,
    b"b": InertPickleReader._build,
    b"\x80": InertPickleReader._protocol,
    b"\x95": lambda machine: machine._take(8),
}
