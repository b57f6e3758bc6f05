"""Offline and in-graph tokenizers, held against each other through a SavedModel."""

import functools
from collections import Counter

import pytest
import tensorflow as tf

from tests.data.tokenizers.hostile_texts import hostile_texts
from tests.data.tokenizers.spelled_word_piece import spelled_word_piece
from tests.data.tokenizers.trained_sentence_piece import trained_sentence_piece
from tests.slow_case import slow_case
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.data.vocabulary_training import CharacterTraining, WordTraining
from txl_tf.export.graph_tokenizers import graph_tokenizer

TEXTS = [*hostile_texts(60), b"\xef\xbb\xbfone line", "\0A\0 B\0 \u039f\u03a3\0 \u0130".encode()]


def trained_words(options=None, **rule):
    rule = WordRule(**rule)
    counts = Counter(rule.split(b"\n".join(TEXTS)))
    return WordTraining(rule=rule, **(options or {})).build(counts)


def spelled_pieces(**rule):
    return spelled_word_piece(b"\n".join(TEXTS), **rule)


def characters():
    counts = Counter(b"".join(TEXTS).decode())
    return CharacterTraining(vocabulary_size=30, unknown_token="<unk>").build(counts)


MAKERS = {
    "bytes": ByteTokenizer,
    "characters": characters,
    "ids": lambda: IdTokenizer(9999, [word.decode() for word in trained_words().tokens]),
    "words": trained_words,
    "words, unknown": lambda: trained_words(
        {"vocabulary_size": 20, "unknown_token": "<unk>"}, lower_case=True, add_eos=True
    ),
    "words, double": lambda: trained_words(add_double_eos=True),
    "wordpiece": spelled_pieces,
    "wordpiece, eos": lambda: spelled_pieces(add_eos=True),
    "bpe": lambda: trained_sentence_piece("bpe"),
    "unigram": lambda: trained_sentence_piece("unigram"),
}
# The others differ by an option alone.
PLAIN = ("bytes", "characters", "words, unknown", "wordpiece", "bpe")


@functools.cache
def make(name):
    return MAKERS[name]()


def saved_and_loaded(tokenizer, folder):
    module = tf.Module()
    module.graph_tokenizer = graph_tokenizer(tokenizer)
    module.tokenize = tf.function(
        module.graph_tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    ids = tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)
    module.detokenize = tf.function(module.graph_tokenizer.detokenize, input_signature=[ids])
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder)


@pytest.mark.parametrize("name", [name if name in PLAIN else slow_case(name) for name in MAKERS])
def test_a_saved_model_has_the_same_ids_and_texts(name, tmp_path):
    tokenizer = make(name)
    loaded = saved_and_loaded(tokenizer, str(tmp_path))
    token_ids = loaded.tokenize(tf.constant(TEXTS))
    assert token_ids.dtype == tf.int32
    for text, ids in zip(TEXTS, token_ids.to_list(), strict=True):
        assert ids == tokenizer.encode(text).tolist(), text
    for ids, text in zip(token_ids.to_list(), loaded.detokenize(token_ids).numpy(), strict=True):
        assert text == tokenizer.decode_bytes(ids), ids
    # Parts of texts, as generation gives them, begin and end anywhere.
    parts = tf.ragged.constant([ids[1:5] for ids in token_ids.to_list()], dtype=tf.int32)
    texts = loaded.detokenize(parts).numpy()
    for ids, text in zip(parts.to_list(), texts, strict=True):
        assert text == tokenizer.decode_bytes(ids), ids


@pytest.mark.parametrize("name", MAKERS)
def test_a_graph_refuses_what_the_tokenizer_refuses(name):
    tokenizer = make(name)
    graph = graph_tokenizer(tokenizer)
    if name != "bytes":
        with pytest.raises(tf.errors.InvalidArgumentError):
            graph.tokenize(tf.constant([b"a", b"a \xff"]))
    for wrong in (tokenizer.vocabulary_size, -1):
        with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)):
            graph.detokenize(tf.ragged.constant([[1, wrong]], dtype=tf.int32))


def test_a_graph_refuses_unknown_words_and_characters():
    for tokenizer, text, message in (
        (WordTokenizer(["a"], WordRule()), "b", "not in the vocabulary"),
        (CharacterTokenizer(["a"]), "b", "not in the vocabulary"),
        (trained_sentence_piece("bpe"), "a\U0010fffe", r"U\+10FFFE"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            graph_tokenizer(tokenizer).tokenize(tf.constant(["a", text]))
