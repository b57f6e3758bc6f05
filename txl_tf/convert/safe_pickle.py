"""Pickle reader that builds plain data only and executes nothing.

A pickle is a program for a small stack machine, and loading one runs it: it may
import any module and call any function. This module is such a machine without
imports and without calls. Objects become descriptions, see `InertObject`, and
only of the names that the caller admits.
"""

import codecs
import dataclasses
import pickletools
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
_MAX_INTEGER_BITS = 128
_MAX_KEPT_BYTES = 2**20
_MAX_ALL_KEPT_BYTES = 2**29
_MAX_PROTOCOL = 4

# Classes that are dicts but for their name.
_DICTS = {"collections.OrderedDict", "collections.Counter"}
# Makes an object of the class that is its first argument.
_RECONSTRUCTORS = {"copy_reg._reconstructor", "copyreg._reconstructor"}


class _BoundedFile:
    """Reads no more than the file has, and keeps no more than the limits allow."""

    def __init__(self, file: IO[bytes], num_bytes: int) -> None:
        self._file = file
        self._left = num_bytes
        self._kept_bytes_left = _MAX_ALL_KEPT_BYTES

    def read(self, count: int) -> bytes:
        if count > _MAX_KEPT_BYTES:
            raise ValueError("a text is too long")
        data = self._file.read(min(count, self._left))
        if len(data) != count:
            raise ValueError("it ends early")
        self._kept(count)
        return data

    def readline(self) -> bytes:
        line = self._file.readline(min(_MAX_LINE_BYTES, self._left))
        if not line.endswith(b"\n"):
            raise ValueError("a line is too long or ends early")
        self._kept(len(line))
        return line

    def read_or_skip(self, count: int) -> bytes | InertObject:
        if count <= _MAX_KEPT_BYTES:
            return self.read(count)
        if count > self._left:
            raise ValueError("it ends early")
        self._file.seek(count, 1)
        self._left -= count
        return InertObject("bytes")

    def _kept(self, count: int) -> None:
        self._left -= count
        self._kept_bytes_left -= count
        if self._kept_bytes_left < 0:
            raise ValueError(f"it has more than {_MAX_ALL_KEPT_BYTES} bytes of text")


def _read_bytes(file: _BoundedFile, read_length: Callable[[Any], int]) -> bytes | InertObject:
    count = read_length(file)
    if count < 0:
        raise ValueError("it ends early")
    return file.read_or_skip(count)


def _read_quoted(file: _BoundedFile) -> bytes:
    line = file.readline().strip()
    if len(line) < 2 or line[:1] not in (b'"', b"'") or line[-1:] != line[:1]:
        raise ValueError("a string is not in quotation marks")
    return codecs.escape_decode(line[1:-1])[0]


def _read_name(file: _BoundedFile) -> str:
    return b".".join(file.readline()[:-1] for _ in range(2)).decode("latin-1")


# `pickletools` decodes these as ASCII text, though Python 2 wrote bytes, and keeps long ones.
_BYTES_READERS: dict[str, Callable[[Any], Any]] = {
    "STRING": _read_quoted,
    "BINSTRING": lambda file: _read_bytes(file, pickletools.read_int4),
    "SHORT_BINSTRING": lambda file: _read_bytes(file, pickletools.read_uint1),
    "BINBYTES": lambda file: _read_bytes(file, pickletools.read_uint4),
    "SHORT_BINBYTES": lambda file: _read_bytes(file, pickletools.read_uint1),
    "BINBYTES8": lambda file: _read_bytes(file, pickletools.read_uint8),
}
# `pickletools` warns of escapes in names.
_READERS = {"GLOBAL": _read_name, "INST": _read_name, **_BYTES_READERS}


class SafePickleReader:
    """A stack machine for pickles that can only build plain data.

    `pickletools` decodes the operations. Bytes longer than a mebibyte are passed
    over and become an `InertObject` of the kind `"bytes"`: long arrays need no
    memory. The number of operations, the depth and integers are limited, and nothing
    is allocated for a length that the file does not have.

    Args:
        file: binary file, at its beginning.
        num_bytes: int. Length of the file.
        admitted: set of str. Names `module.name` that the pickle may mention,
            besides `collections.OrderedDict` and `collections.Counter`, which
            become dicts.
    """

    def __init__(self, file: IO[bytes], num_bytes: int, admitted: frozenset[str]) -> None:
        self._file = _BoundedFile(file, num_bytes)
        self._operations_left = _MAX_OPERATIONS
        self._admitted = admitted | _DICTS
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
        while (code := self._file.read(1)) != b".":
            if code not in _OPERATIONS:
                raise ValueError(f"it uses the operation {code!r}, which is not for data")
            self._spend(1)
            reader, handler = _OPERATIONS[code]
            handler(self, reader(self._file) if reader else None)
        return self._pop()

    def _spend(self, num_operations: int) -> None:
        self._operations_left -= num_operations
        if self._operations_left < 0:
            raise ValueError(f"it has more than {_MAX_OPERATIONS} operations")

    # === Stack ===

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise ValueError("it takes from an empty stack")
        return self._stack.pop()

    def _pop_many(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

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

    def _protocol(self, version: int) -> None:
        if version > _MAX_PROTOCOL:
            raise ValueError(f"it is of protocol {version}")

    def _integer(self, value: int) -> None:
        if value.bit_length() > _MAX_INTEGER_BITS:
            raise ValueError("an integer is too long")
        self._push(value)

    # === Containers ===

    def _extend(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def _update(self, items: list[Any]) -> None:
        self._top(dict).update(_pairs(items))

    # === Objects, which are described and not made ===

    def _global_stack(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("the name of an object is not a text")
        self._global(f"{module}.{name}")

    def _global(self, full_name: str) -> None:
        if full_name not in self._admitted:
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

    def _old_instance(self, full_name: str) -> None:
        items = self._pop_mark()
        self._global(full_name)
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


def _alike(handler: Callable[[SafePickleReader, Any], Any], *names: str) -> dict[str, Any]:
    return dict.fromkeys(names, handler)


# Each operation by its name in `pickletools`.
_HANDLERS: dict[str, Callable[[SafePickleReader, Any], Any]] = {
    **_alike(SafePickleReader._integer, "INT", "LONG", "LONG1", "LONG4"),
    **_alike(SafePickleReader._push, "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"),
    **_alike(SafePickleReader._push, *_BYTES_READERS),
    **_alike(SafePickleReader._push, "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    "NONE": lambda machine, _: machine._push(None),
    "NEWTRUE": lambda machine, _: machine._push(True),
    "NEWFALSE": lambda machine, _: machine._push(False),
    "EMPTY_LIST": lambda machine, _: machine._push([]),
    "APPEND": lambda machine, _: machine._extend(machine._pop_many(1)),
    "APPENDS": lambda machine, _: machine._extend(machine._pop_mark()),
    "LIST": lambda machine, _: machine._push(machine._pop_mark()),
    "EMPTY_TUPLE": lambda machine, _: machine._push(()),
    "TUPLE": lambda machine, _: machine._push(tuple(machine._pop_mark())),
    "TUPLE1": lambda machine, _: machine._push(tuple(machine._pop_many(1))),
    "TUPLE2": lambda machine, _: machine._push(tuple(machine._pop_many(2))),
    "TUPLE3": lambda machine, _: machine._push(tuple(machine._pop_many(3))),
    "EMPTY_DICT": lambda machine, _: machine._push({}),
    "DICT": lambda machine, _: machine._push(dict(_pairs(machine._pop_mark()))),
    "SETITEM": lambda machine, _: machine._update(machine._pop_many(2)),
    "SETITEMS": lambda machine, _: machine._update(machine._pop_mark()),
    "POP": lambda machine, _: machine._stack.pop() if machine._stack else machine._pop_mark(),
    "DUP": lambda machine, _: machine._push(machine._top(object)),
    "MARK": lambda machine, _: machine._mark(),
    "POP_MARK": lambda machine, _: machine._pop_mark(),
    **_alike(SafePickleReader._get, "GET", "BINGET", "LONG_BINGET"),
    **_alike(SafePickleReader._put, "PUT", "BINPUT", "LONG_BINPUT"),
    "MEMOIZE": lambda machine, _: machine._put(len(machine._memo)),
    "GLOBAL": SafePickleReader._global,
    "STACK_GLOBAL": lambda machine, _: machine._global_stack(),
    "REDUCE": lambda machine, _: machine._reduce(),
    "NEWOBJ": lambda machine, _: machine._reduce(),
    "INST": SafePickleReader._old_instance,
    "OBJ": lambda machine, _: machine._old_object(),
    "BUILD": lambda machine, _: machine._build(),
    "PROTO": SafePickleReader._protocol,
    "FRAME": lambda machine, _: None,
}
_Reader = Callable[[Any], Any] | None


def _reader_of(operation: pickletools.OpcodeInfo) -> _Reader:
    default = operation.arg.reader if operation.arg else None
    return _READERS.get(operation.name, default)


_OPERATIONS: dict[bytes, tuple[_Reader, Callable[[SafePickleReader, Any], Any]]] = {
    operation.code.encode("latin-1"): (_reader_of(operation), _HANDLERS[operation.name])
    for operation in pickletools.opcodes
    if operation.name in _HANDLERS
}
