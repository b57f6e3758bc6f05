"""The official vocabulary is read as it was."""

import collections
import pickle
import sys
import types

import numpy as np
import pytest

from tests.convert import python2_pickle as python2
from txl_tf.convert import Python2Vocabulary, read_python2_vocabulary
from txl_tf.errors import DataDamagedError

SYMBOLS = ("<eos>", "the", ",", "M\u00fcnchen", "@-@", "<unk>")


def saved(folder, content):
    path = folder / "cache.pkl"
    path.write_bytes(content)
    return path


def test_a_corpus_of_python_2(tmp_path):
    path = saved(tmp_path, python2.corpus(SYMBOLS, cutoffs=(0, 2, 4, 6)))
    assert read_python2_vocabulary(path) == Python2Vocabulary(
        symbols=SYMBOLS, cutoffs=(2, 4), dataset="wt103"
    )


@pytest.mark.parametrize("module", ["vocabulary", "__main__", "data_utils"])
def test_a_vocabulary_alone(module, tmp_path):
    content = b"\x80\x02" + python2.vocabulary(SYMBOLS, module) + b"."
    assert read_python2_vocabulary(saved(tmp_path, content)).symbols == SYMBOLS


def test_long_arrays_are_passed_over(tmp_path):
    path = saved(tmp_path, python2.corpus(SYMBOLS, num_numbers=300_000))
    assert path.stat().st_size > 2_400_000
    assert read_python2_vocabulary(path).symbols == SYMBOLS


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
