"""Vocabularies from text, beside the official ones."""

import functools
import random

import numpy as np
import pytest

from tests.data.tokenizers.official_words import official_lines, official_vocabulary
from txl_tf.data import text as text_module
from txl_tf.data.preparation import encode_batch
from txl_tf.data.text import work_batches
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import WordTraining


def text(seed, num_words=3000):
    randomness = random.Random(seed)
    words = [f"w{randomness.randrange(40) ** 2 % 97}" for _ in range(num_words)]
    return "".join(word + randomness.choice(" \n  ") for word in words).encode() + b"\n"


def tokenized(training, splits, num_workers=1):
    tokenizer = training.train(splits, num_workers, lambda split, num_bytes: None)
    encode = functools.partial(encode_batch, tokenizer)
    batches = {name: map(encode, work_batches(name, each)) for name, each in splits.items()}
    result = {name: [token_ids for token_ids, *_ in each] for name, each in batches.items()}
    return tokenizer, {name: np.concatenate(parts) for name, parts in result.items()}


@pytest.mark.parametrize("num_workers", [1, 3])
def test_vocabulary_and_ids_are_the_official_ones(monkeypatch, num_workers):
    monkeypatch.setattr(text_module, "BATCH_BYTES", 400)
    splits = {"train": text(1), "valid": text(2) + b"never seen\n"}
    pieces = {name: [each.splitlines(keepends=True)] for name, each in splits.items()}
    training = WordTraining(rule=WordRule(add_eos=True), unknown_token="<unk>")
    tokenizer, ids = tokenized(training, pieces, num_workers)
    words = [*official_vocabulary(splits["train"], special=["<eos>"]), "<unk>"]
    assert [word.decode() for word in tokenizer.tokens] == words
    vocabulary = {word: index for index, word in enumerate(words)}
    for name, each in splits.items():
        symbols = [s for line in official_lines(each, add_eos=True) for s in line]
        assert ids[name].tolist() == [vocabulary.get(s, vocabulary["<unk>"]) for s in symbols]
        assert ids[name].dtype == tokenizer.token_dtype


def test_counted_splits_need_not_come_first():
    splits = {"test": [b"b b b"], "train": [b"a b"]}
    training = WordTraining(rule=WordRule(), unknown_token="<unk>", counted_splits=("train",))
    tokenizer, ids = tokenized(training, splits)
    assert tokenizer.tokens == [b"a", b"b", b"<unk>"]
    assert ids["test"].tolist() == [1, 1, 1]
    both = WordTraining(rule=WordRule(), counted_splits=("train", "test"))
    assert tokenized(both, splits)[0].tokens == [b"b", b"a"]
