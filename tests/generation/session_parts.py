"""Takes a session file apart and puts it together again, with anything in it."""

import io
import json

import numpy as np


def parts_of(content):
    """The header, and the other arrays by name."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return json.loads(arrays.pop("header").tobytes()), arrays


def content_of(header, arrays, *, save=np.savez):
    """A file; the header is JSON, or bytes that stand for it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    contents = io.BytesIO()
    save(contents, header=np.frombuffer(raw, np.uint8), **arrays)
    return contents.getvalue()


def fields_of(value, path=()):
    """The paths of all fields in JSON, those of objects and lists included."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from fields_of(each, (*path, key))


def replaced(value, path, new):
    """A copy of JSON with another value at a path."""
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(copied[path[0]], path[1:], new)
    return copied


def without(value, path):
    """A copy of JSON without the field at a path, which is not the whole."""
    copied = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1:
        del copied[path[0]]
    else:
        copied[path[0]] = without(copied[path[0]], path[1:])
    return copied
