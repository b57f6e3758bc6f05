"""Official vocabularies are read unchanged, and pickles of anything but data are refused."""

import collections
import pickle
import re
from fractions import Fraction

import pytest

from tests.convert import python2_pickle as python2
from txl_tf.convert import Python2Vocabulary, python2_vocabulary, read_python2_vocabulary
from txl_tf.errors import DataDamagedError

# A class of Python's own library, which no vocabulary has.
FRACTION = python2.name("fractions", "Fraction")
RECONSTRUCT = python2.name("numpy.core.multiarray", "_reconstruct")
SYMBOLS = ("<eos>", "the", ",", "M\u00fcnchen", "@-@", "<unk>")


def saved(folder, content):
    path = folder / "cache.pkl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "vocabulary"),
    [
        (
            python2.corpus(SYMBOLS, cutoffs=(0, 2, 4, 6), num_numbers=300_000),
            Python2Vocabulary(symbols=SYMBOLS, dataset="wt103"),
        ),
        # Bytes that are not UTF-8 are Latin-1.
        (
            python2.corpus([b"caf\xe9", b"the"]),
            Python2Vocabulary(symbols=("caf\u00e9", "the"), dataset="wt103"),
        ),
        *(
            (
                b"\x80\x02" + python2.vocabulary(SYMBOLS, module) + b".",
                Python2Vocabulary(symbols=SYMBOLS),
            )
            for module in ("vocabulary", "__main__", "data_utils")
        ),
    ],
)
def test_a_corpus_or_vocabulary_of_python_2_is_read(content, vocabulary, tmp_path):
    assert read_python2_vocabulary(saved(tmp_path, content)) == vocabulary


@pytest.mark.parametrize(
    "content",
    [
        python2.corpus(["a", "b", "a"]),
        python2.corpus([]),
        python2.corpus(SYMBOLS, vocab=python2.instance("vocabulary", "Vocab", {"idx2sym": b"N"})),
        python2.corpus(SYMBOLS, vocab=b"N"),
        b"\x80\x02" + python2.array(3) + b".",
        b"\x80\x02}.",
        b"N.",
        b"",
        FRACTION + b"N\x85\x81.",
        b"\x80\x04" + python2.name("data_utils", "Corpus") + b")}\x92.",
        b"\x80\x04\x8c\x0adata_utils\x8c\x0bCorpus.part\x93.",
        RECONSTRUCT + FRACTION + b"\x85R.",
        # A key that is a tuple, which is read as a list.
        b"})\x85Ns.",
    ],
)
def test_pickles_without_a_sound_vocabulary_are_refused(content, tmp_path):
    with pytest.raises(DataDamagedError):
        read_python2_vocabulary(saved(tmp_path, content))


def call(function, *arguments):
    return function + b"(" + b"".join(arguments) + b"tR"


# These pickles are harmless, even if an unpickler runs them.
REFUSED_OPERATIONS = {
    "name": FRACTION,
    "call": call(FRACTION, python2.integer(1)),
    "call of something else": call(python2.name("builtins", "getattr"), python2.integer(1)),
    "extension": b"\x82\x01",
    "bytearray": b"\x96" + (3).to_bytes(8, "little") + b"abc",
    "old instance": b"(" + python2.integer(1) + b"ifractions\nFraction\n",
    "name of two texts": b"\x80\x04\x8c\x09fractions\x8c\x08Fraction\x93",
    "in a corpus": python2.corpus(["a"], vocab=FRACTION)[:-1],
}


@pytest.mark.parametrize("kind", REFUSED_OPERATIONS)
def test_anything_but_data_is_refused(kind, tmp_path):
    with pytest.raises(DataDamagedError, match=r"not (for )?data"):
        read_python2_vocabulary(saved(tmp_path, REFUSED_OPERATIONS[kind] + b"."))


def test_attributes_of_an_object_are_stored_and_not_called(tmp_path):
    """The name of the method by which pickles restore an object is an attribute like others."""
    vocabulary = python2.vocabulary(SYMBOLS)
    begin = vocabulary.index(b")\x81") + 2
    first = python2.mapping({"__setstate__": python2.integer(1)}) + b"b"
    content = b"\x80\x02" + vocabulary[:begin] + first + vocabulary[begin:] + b"."
    assert read_python2_vocabulary(saved(tmp_path, content)).symbols == SYMBOLS


def test_sizes_that_a_pickle_declares_are_limited_by_its_file(tmp_path):
    # The unpickler written in Python is used, not the one in C.
    assert not issubclass(python2_vocabulary._DataUnpickler, pickle.Unpickler)
    text = b"X" + (5).to_bytes(4, "little") + b"abc."
    frame = b"\x80\x04\x95" + (5).to_bytes(8, "little") + b"N."
    for content in (text, frame):
        with pytest.raises(DataDamagedError):
            read_python2_vocabulary(saved(tmp_path, content))


def test_a_tokenizer_of_hugging_face_is_the_dict_of_its_attributes(tmp_path):
    attributes = {
        "counter": collections.Counter(SYMBOLS),
        "punctuation": re.compile("[.]"),
        "idx2sym": list(SYMBOLS),
        "sym2idx": collections.OrderedDict((s, i) for i, s in enumerate(SYMBOLS)),
    }
    path = saved(tmp_path, pickle.dumps(attributes))
    assert read_python2_vocabulary(path) == Python2Vocabulary(symbols=SYMBOLS)
    for other in ({"idx2sym": "ab"}, {"idx2sym": list(SYMBOLS), "more": Fraction(1, 2)}):
        with pytest.raises(DataDamagedError, match=r"vocab\.pkl of Hugging Face"):
            read_python2_vocabulary(saved(tmp_path, pickle.dumps(other)))
