import pytest

from tests.data.corpora.synthetic import (
    archive_of,
    like,
    resized,
    texts_of,
    write_folder,
    write_tar,
)
from txl_tf.data.corpora.penn_treebank import PennTreebank
from txl_tf.errors import DataDamagedError, InputMissingError

TEXTS = {
    "train": b" no it was n't <unk> monday \n and <unk> the N \n" * 100,
    "valid": b" consumers may want to \n",
    "test": b" no \n",
}
FILES = {f"simple-examples/data/ptb.{name}.txt": text for name, text in TEXTS.items()}
MEMBERS = {name: resized(member, TEXTS[name]) for name, member in PennTreebank.split_files.items()}


@pytest.fixture
def small_class():
    return like(PennTreebank, split_files=MEMBERS)


def test_the_archive_is_unpacked_beside_itself(tmp_path, small_class):
    path = write_tar(tmp_path / "simple-examples.tgz", FILES | {"simple-examples/readme": b"x"})
    corpus = archive_of(small_class, path)()
    splits = texts_of(corpus.splits(str(path)))
    assert splits == {name: [text] for name, text in TEXTS.items()}
    assert (tmp_path / "simple-examples.tgz.unpacked").is_dir()
    elsewhere = tmp_path / "elsewhere"
    assert texts_of(corpus.splits(str(path), unpack_folder=str(elsewhere))) == splits
    assert elsewhere.is_dir()


@pytest.mark.parametrize("prefix", ["simple-examples/data/ptb.", "data/ptb.", "ptb.", ""])
def test_folders_are_read_as_far_as_they_were_unpacked(tmp_path, small_class, prefix):
    files = {f"{prefix}{name}.txt": text for name, text in TEXTS.items()}
    splits = small_class().splits(str(write_folder(tmp_path, files)))
    assert texts_of(splits) == {name: [text] for name, text in TEXTS.items()}


def test_another_text_and_a_missing_file_are_named(tmp_path, small_class):
    files = {f"{name}.txt": text for name, text in TEXTS.items()}
    write_folder(tmp_path, files | {"test.txt": b" na \n"})
    with pytest.raises(DataDamagedError, match=r"ptb\.test\.txt must have SHA-256"):
        small_class().splits(str(tmp_path))
    (tmp_path / "test.txt").unlink()
    with pytest.raises(InputMissingError, match=r"ptb\.test\.txt") as caught:
        small_class().splits(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_single_file_is_not_the_corpus(tmp_path, small_class):
    path = tmp_path / "ptb.train.txt"
    path.write_bytes(TEXTS["train"])
    with pytest.raises(DataDamagedError, match=r"neither simple-examples\.tgz nor a folder"):
        small_class().splits(str(path))


def test_tokens_are_words_and_lines():
    lines = {"train": 42_068, "valid": 3_370, "test": 3_761}
    for counts in PennTreebank().expected_counts:
        assert counts.tokens - counts.words == lines[counts.split]
    assert PennTreebank().vocabulary_sizes == (10_000,)
    assert PennTreebank().tokenizer_options.lower_case
