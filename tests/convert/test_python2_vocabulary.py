"""The official vocabulary is read as it was; no pickle runs code or exhausts the machine."""

import collections
import pickle
import sys
import time
import tracemalloc
import types

import numpy as np
import pytest

from tests.convert import python2_pickle as python2
from txl_tf.convert import Python2Vocabulary, read_python2_vocabulary
from txl_tf.errors import DataDamagedError

RECONSTRUCT = python2.name("numpy.core.multiarray", "_reconstruct")
SYMBOLS = ("<eos>", "the", ",", "M\u00fcnchen", "@-@", "<unk>")


def saved(folder, content):
    path = folder / "cache.pkl"
    path.write_bytes(content)
    return path


def test_a_corpus_of_python_2(tmp_path):
    content = python2.corpus(SYMBOLS, cutoffs=(0, 2, 4, 6), num_numbers=300_000)
    path = saved(tmp_path, content)
    assert read_python2_vocabulary(path) == Python2Vocabulary(
        symbols=SYMBOLS, cutoffs=(2, 4), dataset="wt103"
    )


@pytest.mark.parametrize("module", ["vocabulary", "__main__", "data_utils"])
def test_a_vocabulary_alone(module, tmp_path):
    content = b"\x80\x02" + python2.vocabulary(SYMBOLS, module) + b"."
    assert read_python2_vocabulary(saved(tmp_path, content)).symbols == SYMBOLS


def test_bytes_that_are_no_utf8_are_latin_1(tmp_path):
    symbols = [b"caf\xe9", b"the"]
    path = saved(tmp_path, python2.corpus(symbols))
    assert read_python2_vocabulary(path).symbols == ("caf\u00e9", "the")


@pytest.fixture
def official_modules(monkeypatch):
    """Modules and classes of the names that the official code has."""
    for module, attribute in (("data_utils", "Corpus"), ("vocabulary", "Vocab")):
        made = types.ModuleType(module)
        setattr(made, attribute, type(attribute, (), {"__module__": module}))
        monkeypatch.setitem(sys.modules, module, made)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_what_this_python_pickles(protocol, official_modules, tmp_path):
    import data_utils
    import vocabulary

    corpus, vocab = data_utils.Corpus(), vocabulary.Vocab()
    vocab.idx2sym = list(SYMBOLS)
    vocab.sym2idx = collections.OrderedDict((s, i) for i, s in enumerate(SYMBOLS))
    vocab.counter = collections.Counter(SYMBOLS)
    vocab.special = None
    corpus.vocab, corpus.dataset, corpus.cutoffs = vocab, "enwik8", []
    corpus.train, corpus.scale = np.arange(9), 0.5
    path = saved(tmp_path, pickle.dumps(corpus, protocol))
    assert read_python2_vocabulary(path) == Python2Vocabulary(symbols=SYMBOLS, dataset="enwik8")


@pytest.mark.parametrize(
    "content",
    [
        python2.corpus(SYMBOLS, cutoffs=(0, 4, 2, 6)),
        python2.corpus(SYMBOLS, cutoffs=(2, 6)),
        python2.corpus(["a", "b", "a"]),
        python2.corpus([]),
        python2.corpus(SYMBOLS, vocab=python2.instance("vocabulary", "Vocab", {"idx2sym": b"N"})),
        python2.corpus(SYMBOLS, vocab=b"N"),
        b"\x80\x02" + python2.array(3) + b".",
        b"\x80\x02}.",
        b"N.",
        b"",
        # Names that a loader of this Python stumbles over.
        python2.name("subprocess", "Popen") + b"N\x85\x81.",
        b"\x80\x04" + python2.name("data_utils", "Corpus") + b")}\x92.",
        b"\x80\x04\x8c\x0adata_utils\x8c\x13Corpus.__subclasses__\x93.",
        RECONSTRUCT + python2.name("os", "system") + b"\x85R.",
    ],
)
def test_pickles_without_a_sound_vocabulary(content, tmp_path):
    with pytest.raises(DataDamagedError):
        read_python2_vocabulary(saved(tmp_path, content))


def test_no_damage_gives_any_other_error(tmp_path):
    content = python2.corpus(SYMBOLS, cutoffs=(0, 2, 4, 6))
    generator = np.random.default_rng(3)
    for _ in range(1000):
        damaged = bytearray(content)
        for place in generator.integers(len(content), size=3):
            damaged[place] = generator.integers(256)
        del damaged[generator.integers(len(content), 2 * len(content)) :]
        try:
            read_python2_vocabulary(saved(tmp_path, bytes(damaged)))
        except DataDamagedError as error:
            assert len(str(error).splitlines()) == 3


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


@pytest.mark.parametrize("kind", live_payloads("x"))
def test_no_code_is_run(kind, tmp_path):
    marker = tmp_path / "marker"
    path = saved(tmp_path, live_payloads(marker)[kind] + b".")
    with pytest.raises(DataDamagedError) as caught:
        read_python2_vocabulary(path)
    assert "not data" in caught.value.what or "not for data" in caught.value.what
    assert not marker.exists()


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
    path = saved(tmp_path, GREEDY_PAYLOADS[kind])
    tracemalloc.start()
    started = time.monotonic()
    with pytest.raises(DataDamagedError):
        read_python2_vocabulary(path)
    seconds = time.monotonic() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
    assert seconds < 30
