"""The job `txl embed`: its files, and what it refuses."""

import json

import numpy as np
import pytest

import txl_tf
from tests.small_models import small_config
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.models import create_model
from txl_tf.storage.array_archives import read_array_archive

TEXTS = ["bad cab face", "a", "dig a big bag in a cage"]
LINES = "\n".join(TEXTS).encode()
JSON_LINES = "".join(json.dumps({"id": 3, "body": text}) + "\n" for text in TEXTS).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A converted model; its tokenizer knows few letters."""
    folder = tmp_path_factory.mktemp("model") / "small"
    tokenizer = CharacterTokenizer(list("abcdefghijn "))
    model = create_model(small_config(4, 6, vocabulary_size=12), dtype="float32")
    TransformerXLCausalLM(model, tokenizer).save_to_preset(folder)
    return folder


@pytest.fixture
def embed(folder, txl, tmp_path):
    """A function that runs the job on a text file."""

    def run(content, *options, out="features.npz", workdir=folder, **end):
        (tmp_path / "texts").write_bytes(content)
        files = ("--text", tmp_path / "texts", "--out", tmp_path / out)
        return txl("embed", "--workdir", workdir, *files, *options, **end)

    return run


@pytest.mark.parametrize(
    ("content", "options", "layer", "pooling"),
    [
        (LINES, (), None, "mean"),
        ("\ufeff".encode() + LINES, (), None, "mean"),
        (JSON_LINES, ("--field", "body", "--pooling", "last", "--layer", "0"), 0, "last"),
        (LINES.replace(b"\n", b"\r\n"), ("--pooling", "tokens", "--layer", "1"), 1, "tokens"),
    ],
)
def test_each_text_of_a_file_has_its_features_in_an_archive(
    embed, folder, tmp_path, content, options, layer, pooling
):
    (tmp_path / "features.npz").write_text("an older file, which is replaced")
    assert "3 texts" in embed(content, *options, "--batch-size", "2")
    with (tmp_path / "features.npz").open("rb") as file:
        arrays = read_array_archive(file)
    expected = txl_tf.load(folder).embed(TEXTS, layer, pooling)
    if pooling == "tokens":
        assert arrays["lengths"].tolist() == list(map(len, TEXTS))
        expected = np.concatenate(expected)
    np.testing.assert_allclose(arrays["features"], expected, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.npz", "texts"]


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
def test_a_text_or_option_that_cannot_be_read_is_refused(
    embed, tmp_path, content, options, code, message
):
    embed(content, *options, code=code, says=message)
    assert not (tmp_path / "features.npz").exists()


def test_a_folder_or_output_that_is_not_there_is_refused(embed, tmp_path):
    embed(b"abc", out="features.csv", code=2)
    embed(b"abc", out="none/features.npz", code=74)
    embed(b"abc", workdir=tmp_path, code=66, says="There is no model in this folder.")
