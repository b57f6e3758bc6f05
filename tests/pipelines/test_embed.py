"""The job `txl embed`: its files, and what it refuses."""

import json

import numpy as np
import pytest

import txl_tf
from pipelines.command_line import main
from tests.small_models import small_config
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.models import create_model
from txl_tf.storage.array_archives import read_array_archive

TEXTS = ["bad cab face", "a", "dig a big bag in a cage"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A converted model; its tokenizer knows few letters."""
    folder = tmp_path_factory.mktemp("model") / "small"
    tokenizer = CharacterTokenizer(list("abcdefghijn "))
    model = create_model(small_config(4, 6, vocabulary_size=12), dtype="float32")
    TransformerXLCausalLM(model, tokenizer).save_to_preset(folder)
    return folder


@pytest.fixture
def embedded(folder, tmp_path, capsys):
    """A function that writes a text file and runs the job on it."""

    def run(content, *options, out="features.npz", workdir=folder):
        (tmp_path / "texts").write_bytes(content)
        words = ["embed", "--workdir", workdir, "--text", tmp_path / "texts"]
        exit_code = main([*map(str, words), "--out", str(tmp_path / out), *options])
        return exit_code, capsys.readouterr()

    return run


def arrays_of(path):
    with path.open("rb") as file:
        return read_array_archive(file)


def test_lines_of_text_become_rows_of_an_archive(embedded, folder, tmp_path):
    exit_code, shown = embedded("\n".join(TEXTS).encode())
    assert (exit_code, shown.err) == (0, "")
    assert "3 texts" in shown.out
    assert embedded("\ufeff".encode() + "\n".join(TEXTS).encode())[0] == 0
    arrays = arrays_of(tmp_path / "features.npz")
    expected = txl_tf.load(folder).embed(TEXTS)
    np.testing.assert_allclose(arrays["features"], expected, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_tokens_of_all_texts_follow_each_other(embedded, folder, tmp_path):
    options = ("--pooling", "tokens", "--layer", "1", "--batch-size", "2")
    assert embedded("\r\n".join(TEXTS).encode(), *options)[0] == 0
    arrays = arrays_of(tmp_path / "features.npz")
    assert arrays["lengths"].tolist() == list(map(len, TEXTS))
    parts = np.split(arrays["features"], np.cumsum(arrays["lengths"])[:-1])
    for part, expected in zip(parts, txl_tf.load(folder).embed(TEXTS, 1, "tokens"), strict=True):
        np.testing.assert_allclose(part, expected, atol=1e-5)


def test_a_field_of_json_lines_is_read_and_a_file_replaced(embedded, folder, tmp_path):
    lines = "".join(json.dumps({"id": 3, "body": text}) + "\n" for text in TEXTS)
    (tmp_path / "features.npz").write_text("what was there before")
    options = ("--field", "body", "--pooling", "last", "--layer", "0")
    assert embedded(lines.encode(), *options)[0] == 0
    expected = txl_tf.load(folder).embed(TEXTS, 0, "last")
    found = arrays_of(tmp_path / "features.npz")["features"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "options", "code", "message"),
    [
        (b"abc\n\nabc", (), 65, "line 2"),
        (b"", (), 65, "no text"),
        (b"abc\nxyz\n", (), 65, "line 2"),
        (b"abc\n\xff", (), 65, "line 2"),
        (b'{"text": "a"}\n{"text": 3}', ("--field", "text"), 65, "line 2"),
        (b'{"text": "a"}\n\n', ("--field", "text"), 65, "line 2"),
        (b'{"other": "a"}', ("--field", "text"), 65, "no field 'text'"),
        (b"abc", ("--layer", "3"), 2, "`layer` must be 0 to 2"),
        (b"abc", ("--pooling", "max"), 2, "Known are: tokens"),
        (b"abc", ("--step", "4"), 2, "no step can be chosen"),
    ],
)
def test_what_cannot_be_read_is_refused(embedded, tmp_path, content, options, code, message):
    exit_code, shown = embedded(content, *options)
    assert exit_code == code
    assert message in shown.err
    assert len(shown.err.splitlines()) <= 3
    assert not (tmp_path / "features.npz").exists()


def test_files_and_folders_that_are_not_there_are_named(embedded, tmp_path):
    assert embedded(b"abc", out="features.csv")[0] == 2
    assert embedded(b"abc", out="none/features.npz")[0] == 74
    exit_code, shown = embedded(b"abc", workdir=tmp_path)
    assert (exit_code, "There is no model in this folder." in shown.err) == (66, True)
