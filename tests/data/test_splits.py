"""Division of documents into splits: shares, order and equal results everywhere."""

import itertools
import random

import pytest

from txl_tf.data.splits import split_by_fraction
from txl_tf.errors import DataDamagedError, StorageError


def some_documents(count, seed=0):
    generator = random.Random(seed)
    return [generator.randbytes(generator.randrange(50, 2000)) for _ in range(count)]


@pytest.mark.parametrize("count", [3, 20, 1000])
def test_every_document_is_in_one_split_and_in_order(count, read_documents):
    documents = some_documents(count)
    splits = {name: read_documents(part) for name, part in split_by_fraction(documents).items()}
    assert list(splits) == ["train", "valid", "test"]
    assert all(splits.values())
    assert sorted(itertools.chain(*splits.values())) == sorted(documents)
    for part in splits.values():
        assert part == [document for document in documents if document in part]


def test_fractions_are_shares_of_the_bytes(read_documents):
    documents = some_documents(3000)
    parts = map(read_documents, split_by_fraction(documents, 0.1, 0.2).values())
    shares = [sum(map(len, part)) / sum(map(len, documents)) for part in parts]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.002)


def test_the_seed_and_the_contents_decide_and_not_the_order(read_documents):
    documents = some_documents(200)
    shuffled = random.Random(1).sample(documents, len(documents))

    def valid_of(texts, **options):
        return set(read_documents(split_by_fraction(texts, 0.2, 0.0, **options)["valid"]))

    assert valid_of(documents) == valid_of(shuffled)
    assert valid_of(documents) != valid_of(documents, seed=1)
    # A document does not depend on its pieces, and a further one moves few of the others.
    assert valid_of(documents) == valid_of([[text[:7], text[7:]] for text in documents])
    assert len(valid_of(documents) ^ valid_of([*documents, b"one more" * 50])) < 10


def test_documents_that_are_alike_stay_together_and_a_huge_one_stays_in_train(read_documents):
    documents = some_documents(100) * 3
    splits = split_by_fraction(documents, 0.2, 0.2)
    sets = [set(read_documents(part)) for part in splits.values()]
    assert sum(map(len, sets)) == 100
    huge = b"huge" * 10_000
    for seed in range(9):
        splits = split_by_fraction([huge, *documents], 0.05, 0.05, seed=seed)
        assert huge in read_documents(splits["train"])


def test_a_fraction_of_zero_leaves_the_split_out(read_documents):
    documents = some_documents(10)
    assert list(split_by_fraction(documents, 0.0, 0.0)) == ["train"]
    assert list(split_by_fraction(documents, 0.0, 0.1)) == ["train", "test"]
    assert read_documents(split_by_fraction(documents, 0.0, 0.0)["train"]) == documents


def test_a_single_document_is_cut_at_line_ends(read_documents):
    text = b"".join(b"line %d\n" % index for index in range(1000))
    splits = split_by_fraction([[text[:999], text[999:]]], 0.3, 0.1)
    parts = [b"".join(read_documents(part)) for part in splits.values()]
    assert b"".join(parts) == text and all(part.endswith(b"\n") for part in parts)
    shares = [len(part) / len(text) for part in parts]
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.01)


@pytest.mark.parametrize("num_bytes", [1_000, 42_500, 1_000_000])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", " ", "\n" * 999, ""])
@pytest.mark.parametrize("word", ["word", "\u6f22\u00e9"])
def test_a_single_document_is_cut_near_the_targets(num_bytes, line_end, word, read_documents):
    generator = random.Random(num_bytes)
    line = (" " if line_end else "").join([word] * 9)
    # The last line is a tenth of the text, the blank lines are together.
    lines = [
        line[: generator.randrange(1, len(line))] for _ in range(num_bytes // len(line.encode()))
    ]
    text = line_end.join([*lines, line * (len(lines) // 10)]).encode()
    splits = split_by_fraction([[text[:500], text[500:]]])
    parts = [b"".join(read_documents(part)) for part in splits.values()]
    assert b"".join(parts) == text
    for part, fraction in zip(parts, (0.9, 0.05, 0.05), strict=True):
        assert len(part) / len(text) == pytest.approx(fraction, abs=0.01)
        part.decode()
        assert not part.startswith(b"\n") or line_end == "\n" * 999


@pytest.mark.parametrize("documents", [[], [b""], [b"one line"], [b"a", b"b"], [b"a"] * 9])
def test_too_little_text_is_named(documents):
    with pytest.raises(DataDamagedError, match=r"(have a|no text).*\nsome/folder"):
        split_by_fraction(documents, where="some/folder")


def test_a_text_that_changes_is_noticed(read_documents):
    for change in ([b"more"], None):
        documents = some_documents(10)
        train = split_by_fraction(documents)["train"]
        documents.extend(change) if change else documents.pop()
        with pytest.raises(StorageError, match="changed"):
            read_documents(train)
