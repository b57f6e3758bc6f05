"""Ways to change a file, as damage, carelessness or malice would."""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

EXTREMES = (
    0,
    -1,
    1,
    2**31,
    2**40,
    2**63 - 1,
    2**64,
    10**400,
    0.5,
    1e308,
    float("nan"),
    True,
    None,
    "",
    "../../etc/passwd",
    "\x00",
    "x" * 100_000,
    [],
    {},
    [[1]],
)
Mutation = Callable[[Path], None]


def json_mutations(path: Path, seal: Callable[[Any], Any]) -> Iterator[tuple[str, Mutation]]:
    """Every field removed, doubled and retyped, and the text as a whole.

    Args:
        path: the good file, of one JSON value.
        seal: function of the changed value that puts its checksum right, as an
            attacker would.
    """
    text = path.read_text()
    value = json.loads(text.splitlines()[0] if path.suffix == ".jsonl" else text)
    for place in _places(value):
        name = ".".join(map(str, place))
        yield f"{name} removed", _writing(seal(_removed(value, place)))
        for extreme in EXTREMES:
            changed = seal(_replaced(value, place, extreme))
            yield f"{name}={repr(extreme)[:20]}", _writing(changed)
        yield f"{name} doubled", _doubling(place)
        yield f"{name} nested deep", _nesting(value, place)
    yield "surplus field", _writing(seal(value | {"surplus": 1}) if isinstance(value, dict) else 0)


def byte_mutations(path: Path, source: random.Random, count: int) -> Iterator[tuple[str, Mutation]]:
    """Flipped bits, cut and extended files, and parts written over."""
    size = path.stat().st_size
    for index in range(count):
        place = source.randrange(max(size, 1))
        kind = index % 6
        if kind == 0:
            yield f"bit {place}", _patching(place, None, 1 << source.randrange(8))
        elif kind == 1:
            yield f"cut at {place}", _cutting(place)
        elif kind == 2:
            yield f"extended by {place}", _extending(source.randbytes(place % 5000 + 1))
        elif kind == 3:
            yield f"random bytes at {place}", _patching(place, source.randbytes(8), 0)
        elif kind == 4:
            yield f"0xff at {place}", _patching(place, b"\xff" * 8, 0)
        else:
            yield f"zeros at {place}", _patching(place, bytes(16), 0)


def special_mutations(others: list[Path]) -> Iterator[tuple[str, Mutation]]:
    """What is no file at all, or another file."""
    yield "fifo", lambda path: _instead(path, os.mkfifo)
    yield "device", lambda path: _instead(path, lambda to: os.symlink("/dev/zero", to))
    yield "link to itself", lambda path: _instead(path, lambda to: os.symlink(to, to))
    yield "link away", lambda path: _instead(path, lambda to: os.symlink("/etc/passwd", to))
    yield "folder", lambda path: _instead(path, os.mkdir)
    yield "missing", lambda path: _instead(path, lambda to: None)
    yield "empty", lambda path: _instead(path, lambda to: Path(to).touch())
    yield "hole of 4 GiB", _hole
    for other in others:
        content = other.read_bytes()
        yield f"swapped with {other.name}", _copying(content)


def _places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = list(enumerate(value))[:2]
    for key, below in items:
        yield (*at, key)
        yield from _places(below, (*at, key))


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _parent(value: Any, place: tuple) -> Any:
    for key in place[:-1]:
        value = value[key]
    return value


def _removed(value: Any, place: tuple) -> Any:
    changed = _copy(value)
    del _parent(changed, place)[place[-1]]
    return changed


def _replaced(value: Any, place: tuple, new: Any) -> Any:
    changed = _copy(value)
    _parent(changed, place)[place[-1]] = new
    return changed


def _nesting(value: Any, place: tuple) -> Mutation:
    def write(path: Path) -> None:
        marked = json.dumps(_replaced(value, place, "@@"))
        path.write_text(marked.replace('"@@"', "[" * 100_000 + "]" * 100_000))

    return write


def _doubling(place: tuple) -> Mutation:
    def write(path: Path) -> None:
        text, key = path.read_text(), json.dumps(str(place[-1]))
        at = text.find(f"{key}:")
        path.write_text(text if at < 0 else f"{text[:at]}{key}: 1, {text[at:]}")

    return write


def _writing(value: Any) -> Mutation:
    return lambda path: path.write_text(json.dumps(value)) and None


def _patching(place: int, new: bytes | None, bit: int) -> Mutation:
    def write(path: Path) -> None:
        content = bytearray(path.read_bytes()) or bytearray(1)
        if new is None:
            content[place] ^= bit
        else:
            content[place : place + len(new)] = new
        path.write_bytes(content)

    return write


def _cutting(place: int) -> Mutation:
    return lambda path: path.write_bytes(path.read_bytes()[:place]) and None


def _extending(more: bytes) -> Mutation:
    return lambda path: path.write_bytes(path.read_bytes() + more) and None


def _copying(content: bytes) -> Mutation:
    return lambda path: path.write_bytes(content) and None


def _instead(path: Path, make: Callable[[str], object]) -> None:
    path.unlink()
    make(str(path))


def _hole(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(4 << 30)
