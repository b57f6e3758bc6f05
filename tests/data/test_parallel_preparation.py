"""Any number of processes gives the same bytes."""

import numpy as np
import pytest

from tests.data.corpus_files import contents
from tests.slow_case import slow_case
from txl_tf.data import text as text_module
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.text import split_at_lines
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import (
    CharacterTraining,
    SentencePieceTraining,
    WordTraining,
)

KINDS = {
    "bytes": ByteTokenizer(),
    "characters": CharacterTraining(unknown_token="?"),
    "words": WordTraining(rule=WordRule(add_eos=True), unknown_token="<unk>"),
    "sentencepiece": SentencePieceTraining(vocabulary_size=300),
}


def documents(seed, num_documents=40):
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(num_documents):
        words = random.integers(0, 300, random.integers(0, 60))
        texts.append(" ".join(f"word{word}" for word in words).encode() + b"\r\nend\n")
    texts[3] = b""
    return [list(split_at_lines([text], 64)) for text in texts]


def prepared(folder, kind, num_workers, splits):
    prepare_dataset(
        splits,
        KINDS[kind],
        str(folder),
        "test",
        tokens_per_record=256,
        shard_bytes=2000,
        num_workers=num_workers,
    )
    return contents(folder)


@pytest.mark.parametrize(
    "kind",
    ["bytes", "characters", "words", slow_case("sentencepiece")],
)
def test_one_and_three_processes_write_the_same(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(text_module, "BATCH_BYTES", 500)
    splits = {"train": documents(1), "valid": documents(2, 10)}
    one = prepared(tmp_path / "one", kind, 1, splits)
    assert len(one) > 5
    assert prepared(tmp_path / "three", kind, 3, splits) == one
