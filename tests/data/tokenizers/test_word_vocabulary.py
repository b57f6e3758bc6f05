import collections
import random

import numpy as np
import pytest

from tests.data.tokenizers.hostile_texts import hostile_texts
from tests.data.tokenizers.official_words import official_vocabulary
from txl_tf.data.tokenizers.word_splitting import LINE_MARK, WordRule
from txl_tf.data.tokenizers.word_vocabulary import WordVocabularyBuilder


def random_text(seed, num_words=5000):
    """Words with many ties: few counts, many words, lines of all lengths."""
    chosen = random.Random(seed)
    words = [f"w{chosen.randrange(1500)}" for _ in range(num_words)]
    return " ".join(word + chosen.choice(["", "", "\n", "\n\n"]) for word in words).encode()


def counted(text, rule):
    builder = WordVocabularyBuilder(rule)
    numbers = builder.number(text)
    return builder, numbers


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_freq": 3},
        {"max_size": 40},
        {"max_size": 40, "min_freq": 6, "special": ("<eos>", "<unk>")},
        {"special": ("w7", "<eos>", "w3")},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_is_the_official_one_ties_included(options, seed):
    text = random_text(seed)
    official = official_vocabulary(text, **{"special": ("<eos>",), **options})
    builder, _ = counted(text, WordRule(add_eos=True))
    tokenizer = builder.build(
        special_tokens=options.get("special", ()),
        min_frequency=options.get("min_freq", 0),
        max_size=options.get("max_size"),
        unknown_token="<unk>" if "<unk>" in official else None,
    )
    assert [word.decode() for word in tokenizer.words] == official
    # The text really has ties for this to be about.
    counts = np.unique(builder.counts, return_counts=True)[1]
    assert counts.max() > 50


@pytest.mark.parametrize("seed", range(5))
def test_parts_merged_in_order_give_the_vocabulary_of_one_pass(seed):
    chosen = random.Random(seed)
    text = random_text(seed, 2000) + b"\n" + b"\n".join(hostile_texts(200, seed))
    lines = text.splitlines(keepends=True)
    whole, expected = counted(text, WordRule(add_eos=True))
    merged = WordVocabularyBuilder(whole.rule)
    places = sorted(chosen.sample(range(len(lines)), 6))
    tables = []
    for start, stop in zip([0, *places], [*places, len(lines)], strict=True):
        part = b"".join(lines[start:stop])
        builder, numbers = counted(part, whole.rule)
        tables.append(merged.merge(builder.words, builder.counts)[numbers])
    assert merged.words == whole.words
    assert merged.counts.tolist() == whole.counts.tolist()
    assert np.concatenate(tables).tolist() == expected.tolist()
    assert merged.build().fingerprint == whole.build().fingerprint


def test_numbers_become_ids_by_one_look_up():
    text = random_text(9)
    builder, numbers = counted(text, WordRule(add_double_eos=True))
    tokenizer = builder.build(max_size=100, unknown_token="<unk>")
    assert tokenizer.ids_of(builder.words)[numbers].tolist() == tokenizer.encode(text).tolist()
    assert tokenizer.words[0] == b"<S>"


def test_counts_are_exact():
    text = random_text(4)
    builder, numbers = counted(text, WordRule())
    assert dict(zip(builder.words, builder.counts.tolist(), strict=True)) == collections.Counter(
        text.split()
    )
    assert [builder.words[i] for i in numbers] == text.split()
    # Beyond what a float can tell apart.
    builder.merge(builder.words[:1], np.array([2**53 + 1]))
    assert builder.counts[0] == text.split().count(builder.words[0]) + 2**53 + 1


def test_lines_are_not_counted_as_words():
    builder, _ = counted(b"a <eos>\n\n\nb a\n", WordRule(add_eos=True))
    assert builder.build().words == [b"<eos>", b"a", b"b"]
    assert LINE_MARK in builder.words
    assert builder.build(special_tokens=("<x>",)).words == [b"<eos>", b"<x>", b"a", b"b"]
    assert builder.build(special_tokens=("<x>", "<eos>")).words == [b"<x>", b"<eos>", b"a", b"b"]


def test_the_unknown_token_keeps_its_place_or_is_last():
    builder, _ = counted(b"a a <unk> b", WordRule())
    assert builder.build(unknown_token="<unk>").words == [b"a", b"<unk>", b"b"]
    assert builder.build(unknown_token="?").words == [b"a", b"<unk>", b"b", b"?"]
    with pytest.raises(ValueError, match="at least one"):
        WordVocabularyBuilder(WordRule()).build()


def test_pieces_are_counted_as_the_whole():
    text = random_text(2)
    whole, expected = counted(text, WordRule(add_eos=True))
    builder = WordVocabularyBuilder(whole.rule)
    numbers = list(builder.number_pieces(text.splitlines(keepends=True)))
    assert np.concatenate(numbers).tolist() == expected.tolist()
    assert builder.build().fingerprint == whole.build().fingerprint
