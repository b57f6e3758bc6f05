"""Pickles that would run code do not, and pickles that would exhaust the machine do not."""

import time
import tracemalloc

import pytest

from tests.convert import python2_pickle as python2
from txl_tf.convert import read_python2_vocabulary
from txl_tf.errors import DataDamagedError


def call(function, *arguments):
    return function + b"(" + b"".join(arguments) + b"tR"


def get(thing, attribute):
    return call(python2.name("builtins", "getattr"), thing, text(attribute))


def text(value):
    """A text that both Pythons take for a `str`."""
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def chain(command):
    """From an admitted class to `os.system`, by `getattr` alone."""
    functions = get(get(python2.name("collections", "Counter"), "__init__"), "__globals__")
    modules = get(call(get(functions, "get"), text("_sys")), "modules")
    return call(get(call(get(modules, "get"), text("os")), "system"), command)


def set_state(command):
    """The second state is handed to the function that the first one put there."""
    first = b"}" + text("__setstate__") + python2.name("os", "system") + b"s"
    return python2.name("data_utils", "Corpus") + b")\x81" + first + b"b" + command + b"b"


def live_payloads(marker):
    """Pickles that make the file `marker` when they are loaded."""
    command = text(f"touch {marker}")
    system = python2.name("os", "system")
    made = call(system, command)
    stack_global = b"\x8c\x05posix\x8c\x06system\x93"
    return {
        "os.system": made,
        "getattr": chain(command),
        "extension": b"\x82\x01(" + command + b"tR",
        "setstate": set_state(command),
        "inst": b"(" + command + b"ios\nsystem\n",
        "stack_global": b"\x80\x04" + stack_global + command + b"\x85R",
        "in a corpus": python2.corpus(["a"], vocab=made)[:-1],
    }


# They name what they should not, in ways that a loader of this Python stumbles over.
LAME_PAYLOADS = {
    "newobj": python2.name("subprocess", "Popen") + b"N\x85\x81.",
    "newobj_ex": b"\x80\x04" + python2.name("data_utils", "Corpus") + b")}\x92.",
    "dotted": b"\x80\x04\x8c\x0adata_utils\x8c\x13Corpus.__subclasses__\x93.",
    "reduced array": python2.name("numpy.core.multiarray", "_reconstruct")
    + python2.name("os", "system")
    + b"\x85R.",
}


@pytest.mark.parametrize("kind", live_payloads("x"))
def test_no_code_is_run(kind, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "cache.pkl"
    path.write_bytes(live_payloads(marker)[kind] + b".")
    with pytest.raises(DataDamagedError) as caught:
        read_python2_vocabulary(path)
    assert "not data" in caught.value.what or "not for data" in caught.value.what
    assert not marker.exists()


@pytest.mark.parametrize("kind", LAME_PAYLOADS)
def test_nothing_but_data_is_read(kind, tmp_path):
    path = tmp_path / "cache.pkl"
    path.write_bytes(LAME_PAYLOADS[kind])
    with pytest.raises(DataDamagedError):
        read_python2_vocabulary(path)


MANY = 100_000
GREEDY_PAYLOADS = {
    "long text": b"X\xff\xff\xff\xffabc.",
    "integer with many digits": b"L" + b"9" * MANY + b"L\n.",
    "high memo": b"Nr\xff\xff\xff\xff.",
    "deep lists": b"]" * MANY + b"a" * (MANY - 1) + b".",
    "deep key": b"})" + b"\x85" * MANY + b"Ns.",
    "frame": b"\x80\x04\x95" + b"\xff" * 8 + b".",
}


@pytest.mark.parametrize("kind", GREEDY_PAYLOADS)
def test_little_memory_and_time_are_needed_to_refuse(kind, tmp_path):
    path = tmp_path / "cache.pkl"
    path.write_bytes(GREEDY_PAYLOADS[kind])
    tracemalloc.start()
    started = time.monotonic()
    with pytest.raises(DataDamagedError):
        read_python2_vocabulary(path)
    seconds = time.monotonic() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
    assert seconds < 30
