"""`txl prepare`: texts and ids of every format, their tokenizers, and refusals."""

import dataclasses
import itertools
import json
import random

import numpy as np
import pytest

from pipelines.jobs import prepare
from tests.data.corpus_files import of_files
from tests.pipelines.prepared_data import prepared
from tests.pipelines.txl_process import parsed
from txl_tf.data.corpora import CORPORA, enwik8, lm1b
from txl_tf.data.sources.id_files import IdDocuments
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.errors import DataDamagedError, MismatchError, UsageError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a line of text\n" * 1000)
    return path


def test_a_text_file_becomes_a_data_set(tmp_path, text, capsys):
    options = ("--valid-fraction", 0.1, "--shard-megabytes", 0.01)
    dataset, _ = prepared(tmp_path / "out", "--text", text, *options)
    output = capsys.readouterr().out
    assert dataset.manifest.corpus_name == "text.txt"
    assert dataset.manifest.split_names == ("train", "valid", "test")
    assert sum(map(dataset.num_tokens, dataset.manifest.split_names)) == 15000
    train = dataset.manifest.split("train")
    expected = f"train: {train.tokens} tokens, {train.bytes} bytes, 1 documents, 2 shards"
    assert expected in output.splitlines()
    assert dataset.fingerprint in output


@pytest.mark.parametrize(
    "more",
    [
        ("--train-file", "x"),
        ("--valid-fraction", 0.5, "--test-fraction", 0.5),
        ("--valid-fraction", -0.1),
        ("--shard-megabytes", "nan"),
        ("--valid-file", "x"),
        ("--field", "body"),
        ("--format", "jsonl", "--document-separator", ""),
        ("--one-document-per", "line", "--document-separator", ""),
        ("--document-separator", "a\nb"),
        ("--newlines", "keep"),
        ("--archive", "x.zip"),
        ("--vocabulary-size", 10),
        ("--tokenizer", "characters", "--lower-case"),
        ("--tokenizer", "words", "--sentencepiece-model", "bpe"),
        ("--tokenizer", "words", "--vocabulary-size", 0),
        ("--tokenizer", "words", "--min-frequency", -1),
        ("--workers", 0),
    ],
)
def test_wrong_values_and_options_that_do_not_fit_are_usage_errors(tmp_path, text, more):
    with pytest.raises(UsageError) as error:
        prepare.check_arguments(parsed(prepare, "--text", text, "--out", tmp_path / "out", *more))
    assert len(str(error.value).splitlines()) == 3


def test_files_can_be_given_for_every_split(tmp_path, text):
    valid = tmp_path / "valid.txt"
    valid.write_bytes(b"a strange line\n\n")
    source = ("--train-file", text, "--valid-file", valid)
    dataset, tokenizer = prepared(tmp_path / "out", *source, "--tokenizer", "words")
    assert dataset.manifest.split_names == ("train", "valid")
    assert [word.decode() for word in tokenizer.tokens[:2]] == ["<eos>", "a"]
    token_ids = dataset.read_tokens("valid", 0, dataset.num_tokens("valid"))
    assert tokenizer.decode_bytes(token_ids) == b"a <unk> line\n\n"
    # The vocabulary of one data set reads the text of another.
    more = ("--train-file", valid, "--vocabulary", tmp_path / "out")
    other, again = prepared(tmp_path / "other", *more)
    assert again.fingerprint == tokenizer.fingerprint
    assert other.num_tokens("train") == len(token_ids)


def test_a_test_file_is_enough_where_there_is_a_vocabulary(tmp_path, text, capsys):
    prepared(tmp_path / "train", "--train-file", text, "--tokenizer", "words")
    strange = tmp_path / "strange.txt"
    strange.write_text("a strange line\n")
    source = ("--test-file", strange)
    capsys.readouterr()
    dataset, _ = prepared(tmp_path / "test", *source, "--vocabulary", tmp_path / "train")
    assert dataset.manifest.split_names == ("test",)
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith("test: 4 tokens (25 % unknown), 15 bytes, ")
    assert "vocabulary: 6 ids of words" in output
    assert prepared(tmp_path / "bytes", *source)[0].manifest.split_names == ("test",)
    with pytest.raises(UsageError, match="vocabulary is made from train text"):
        prepared(tmp_path / "none", *source, "--tokenizer", "words")


@pytest.mark.parametrize("kind", ["bytes", "characters", "words", "sentencepiece"])
def test_a_small_text_in_one_line_is_enough_for_every_tokenizer(tmp_path, kind, capsys):
    num_bytes = 1000
    generator = random.Random(0)
    sentence = "the cat and dog sat on a mat, red or blue; then they ran home. quick zebra"
    text = " ".join(generator.choices(sentence.split(), k=num_bytes // 3))[:num_bytes]
    (tmp_path / "text").write_text(text)
    dataset, tokenizer = prepared(
        tmp_path / "out", "--text", tmp_path / "text", "--tokenizer", kind
    )
    assert dataset.manifest.split_names == ("train", "valid", "test")
    assert f"vocabulary: {tokenizer.vocabulary_size} ids of {kind}" in capsys.readouterr().out
    decoded = []
    for split in dataset.manifest.splits:
        assert split.bytes / num_bytes == pytest.approx(
            0.9 if split.name == "train" else 0.05, abs=0.01
        )
        token_ids = dataset.read_tokens(split.name, 0, split.tokens)
        decoded.append(tokenizer.decode(token_ids))
        assert tokenizer.encode(decoded[-1]).tolist() == token_ids.tolist()
    assert " ".join(" ".join(decoded).split()[:9]) == " ".join(text.split()[:9])


def test_a_list_of_words_is_a_vocabulary(tmp_path, text):
    words = tmp_path / "words.txt"
    words.write_bytes(b"line 5\na\t3e1\r\nline\n<unk> 1\n<eos> 1\n")
    options = ("--tokenizer", "words", "--vocabulary", words)
    dataset, tokenizer = prepared(tmp_path / "out", "--train-file", text, *options)
    assert tokenizer.tokens == [b"line", b"a", b"<unk>", b"<eos>"]
    assert dataset.read_tokens("train", 0, 5).tolist() == [1, 0, 2, 2, 3]
    words.write_bytes(b"\xef\xbb\xbf<eos>\nline\na\n<unk>\n")
    _, tokenizer = prepared(tmp_path / "marked", "--train-file", text, *options)
    assert tokenizer.tokens == [b"<eos>", b"line", b"a", b"<unk>"]
    for entry in (b"Note On_60", b"a 1 2", b"two \xff", b" "):
        words.write_bytes(b"<eos>\n" + entry + b"\n")
        with pytest.raises(DataDamagedError, match=r"words.txt, line 2, byte 6"):
            prepared(tmp_path / "events", "--train-file", text, *options)


def test_options_decide_where_documents_begin(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"one\ntwo\n==\nthree\n")
    records = tmp_path / "lines.jsonl"
    records.write_bytes(b'{"body": "one"}\n{"body": "two"}\n')
    formats = {
        1: ("--train-file", lines),
        2: ("--train-file", lines, "--document-separator", "=="),
        4: ("--train-file", lines, "--one-document-per", "line"),
    }
    for num_documents, options in formats.items():
        dataset, _ = prepared(tmp_path / str(num_documents), *options)
        assert dataset.manifest.split("train").documents == num_documents
    dataset, _ = prepared(
        tmp_path / "jsonl", "--train-file", records, "--format", "jsonl", "--field", "body"
    )
    assert bytes(dataset.read_tokens("train", 0, 6).astype("u1")) == b"onetwo"


def test_a_published_corpus_is_held_against_its_counts(tmp_path, monkeypatch):
    archive = tmp_path / "enwik8"
    archive.write_bytes(bytes(range(97, 117)) * 50)
    corpus = of_files(enwik8("keep"), {"enwik8": archive.read_bytes()})
    corpus = dataclasses.replace(corpus, counts={"test": {"bytes": 51, "words": 1, "tokens": 50}})
    monkeypatch.setitem(CORPORA, "enwik8", lambda newlines="keep": corpus)
    source = ("--corpus", "enwik8", "--newlines", "keep", "--archive", archive)
    with pytest.raises(DataDamagedError, match="number of bytes must be 51, but is 50"):
        prepared(tmp_path / "out", *source)
    assert not (tmp_path / "out").exists()
    corpus = dataclasses.replace(corpus, counts={"test": {"bytes": 50, "words": 1, "tokens": 51}})
    # With other tokens there is no published number of them.
    dataset, _ = prepared(tmp_path / "words", *source, "--tokenizer", "characters")
    assert dataset.num_tokens("test") == 50
    corpus = dataclasses.replace(corpus, counts={"test": {"bytes": 50, "words": 1, "tokens": 50}})
    dataset, _ = prepared(tmp_path / "out", *source)
    assert dataset.manifest.corpus_name == "enwik8"


def test_options_change_the_tokenizer_of_a_corpus(tmp_path):
    def tokenizer_of(*options):
        arguments = parsed(prepare, "--out", tmp_path / "out", *options)
        prepare.check_arguments(arguments)
        return prepare.choose_tokenizer(arguments)

    assert tokenizer_of("--corpus", "lm1b") == lm1b().tokenizer
    changed = tokenizer_of("--corpus", "lm1b", "--min-freq", 7, "--add-eos", "--lower-case")
    rule = WordRule(lower_case=True, add_eos=True)
    assert changed == dataclasses.replace(lm1b().tokenizer, rule=rule, min_frequency=7)


IDS = [[3, 1, 299], [0], [7] * 70_000, [2, 2, 13]]
VECTORS = {f"piece {number}": np.array(ids, np.int16) for number, ids in enumerate(IDS)}
ID_FILES = {
    "vectors.npz": lambda path: np.savez(path, **VECTORS),
    "lines.txt": lambda path: path.write_text("\n\n".join(" ".join(map(str, x)) for x in IDS)),
    "lines.jsonl": lambda path: path.write_text("\r\n".join(map(json.dumps, IDS))),
    "tracks.json": lambda path: path.write_text(json.dumps({"programs": [], "ids": IDS})),
}


@pytest.mark.parametrize("name", ID_FILES)
def test_ids_of_every_format_are_read(tmp_path, name):
    ID_FILES[name](tmp_path / name)
    options = ("--format", "ids", "--vocabulary-size", 300)
    options += ("--field", "ids") if name == "tracks.json" else ()
    dataset, tokenizer = prepared(tmp_path / "out", "--train-file", tmp_path / name, *options)
    assert (tokenizer.kind, tokenizer.vocabulary_size) == ("ids", 300)
    (split,) = dataset.manifest.splits
    assert (split.documents, split.bytes) == (len(IDS), 0)
    assert dataset.read_tokens("train", 0, split.tokens).tolist() == list(itertools.chain(*IDS))
    starts = np.flatnonzero(dataset.read_document_starts("train", 0, split.tokens))
    assert starts.tolist() == [0, 3, 4, 70_004]


@pytest.mark.parametrize("num_ids", [40, 200_000])
def test_a_vector_is_a_document_cut_between_ids_and_a_matrix_has_one_in_each_row(tmp_path, num_ids):
    ids = np.random.default_rng(0).integers(0, 70_000, num_ids)
    np.save(tmp_path / "ids.npy", ids)
    options = ("--format", "ids", "--vocabulary-size", 70_000)
    dataset, _ = prepared(tmp_path / "out", "--text", tmp_path / "ids.npy", *options)
    splits = dataset.manifest.splits
    parts = [dataset.read_tokens(split.name, 0, split.tokens).tolist() for split in splits]
    assert list(itertools.chain(*parts)) == ids.tolist()
    assert len(parts[1]) == pytest.approx(num_ids / 20, abs=2 + num_ids / 200)
    np.save(tmp_path / "ids.npy", ids.reshape(10, -1))
    dataset, _ = prepared(tmp_path / "rows", "--train-file", tmp_path / "ids.npy", *options)
    assert dataset.manifest.split("train").documents == 10


BAD_IDS = {
    "7 x 8": "line 2, index 1",
    "7 -1": "line 2, index 1",
    "[7, 8, 1.0]": "line 2, index 2",
    "[[7], [8, 300]]": "line 2, list 2, index 1",
    "[true]": "line 2, index 0",
    '{"ids": [7]}': "line 2",
}
BAD_ARRAYS = {
    "cube": (np.zeros([1, 1, 1], int), "array cube"),
    "large": (np.array([[1, 2], [3, 300]]), "array large, row 1, index 1"),
    "float": (np.zeros(3), "array float"),
    "object": (np.array([None]), "ids.npz"),
}


@pytest.mark.parametrize("line", BAD_IDS)
def test_a_bad_id_is_named_with_file_line_and_place(tmp_path, line):
    (tmp_path / "ids.txt").write_text(f"1\n{line}\n")
    with pytest.raises(DataDamagedError, match=f"ids.txt, {BAD_IDS[line]}\n"):
        list(map(b"".join, IdDocuments([str(tmp_path / "ids.txt")], 300)))


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_a_bad_array_is_named(tmp_path, name):
    array, place = BAD_ARRAYS[name]
    np.savez(tmp_path / "ids.npz", **{name: array})
    with pytest.raises(DataDamagedError, match=place):
        list(map(b"".join, IdDocuments([str(tmp_path / "ids.npz")], 300)))


def test_ids_need_a_vocabulary_of_ids(tmp_path, text):
    ids = ("--train-file", text, "--format", "ids")
    with pytest.raises(UsageError, match="vocabulary"):
        prepared(tmp_path / "none", *ids)
    prepared(tmp_path / "bytes", "--train-file", text)
    with pytest.raises(MismatchError, match="one of bytes"):
        prepared(tmp_path / "other", *ids, "--vocabulary", tmp_path / "bytes")
    text.write_text("0 1 2\n")
    (tmp_path / "labels").write_text("Bar\r\nNote On\n\n")
    prepared(tmp_path / "labelled", *ids, "--vocabulary", tmp_path / "labels")
    _, tokenizer = prepared(tmp_path / "same", *ids, "--vocabulary", tmp_path / "labelled")
    assert tokenizer.decode([0, 1, 2]) == "Bar Note_On 2"


VOCABULARIES = {
    "vocab.json": {"b": 1, "a": 0, "c": 3},
    "tokenizer.json": {
        "model": {"vocab": {"b": 1, "a": 0}},
        "added_tokens": [{"id": 3, "content": "c"}],
    },
    "unigram.json": {"model": {"vocab": [["a", -1.0], ["b", -2.0], ["", -3.0], ["c", -3.0]]}},
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_labels_come_from_the_json_of_a_vocabulary(tmp_path, name, capsys):
    (tmp_path / "ids.txt").write_text("0 1 2 3\n")
    (tmp_path / name).write_text(json.dumps(VOCABULARIES[name], indent=2))
    ids = ("--format", "ids", "--train-file", tmp_path / "ids.txt", "--vocabulary", tmp_path / name)
    dataset, tokenizer = prepared(tmp_path / "out", *ids)
    assert tokenizer.decode(dataset.read_tokens("train", 0, 4)) == "a b 2 c"
    assert "vocabulary: 4 ids\n" in capsys.readouterr().out
    (tmp_path / name).write_text('{"version": "1.0",\n "type": "BPE"}')
    with pytest.raises(DataDamagedError, match="no ids by label"):
        prepared(tmp_path / "other", *ids)


def test_a_column_of_csv_has_the_texts(tmp_path):
    (tmp_path / "texts.csv").write_text('id,body\n1,"one, two\nthree"\n2,\n3,four\n')
    options = ("--format", "csv", "--field", "body", "--train-file", tmp_path / "texts.csv")
    dataset, _ = prepared(tmp_path / "out", *options)
    content = dataset.read_tokens("train", 0, dataset.num_tokens("train"))
    assert bytes(content.astype("u1")) == b"one, two\nthreefour"
