"""`txl convert`, from the command line to its result."""

import json
import pickle
import sys

import pytest

import txl_tf
from tests.convert.goldens import FOLDER, Golden
from tests.convert.models import assert_same_weights
from tests.pipelines.txl_process import run_txl
from tests.small_models import small_config
from txl_tf import load_model
from txl_tf.data import prepare_dataset
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.model_folder import write_model_folder
from txl_tf.models.transformer_xl import TransformerXL

PREFIX = FOLDER / "tf1_wt103_like" / "model.ckpt-0"
FROM_TENSORFLOW = ("convert", "--from", "official_tensorflow", "--source", PREFIX)
SETTINGS = ("--set", "model.memory_length=12", "--set", "model.segment_length=8")
SETTINGS += ("--set", "model.same_length=true", "--set", "model.clamp_length=10")


def test_a_converted_model_is_the_original(txl, tmp_path):
    folder = tmp_path / "model"
    output = txl(*FROM_TENSORFLOW, "--out", folder, *SETTINGS)
    assert f"written: {folder}" in output
    rows = [line.split(maxsplit=2) for line in output.splitlines()]
    assert ["model.memory_length", "12", "given"] in rows
    assert ["model.pre_norm", "false", "assumed: the default"] in rows
    golden, model = Golden("tf1_wt103_like"), load_model(folder)
    assert_same_weights(model, golden.load())
    assert model.config == golden.load().config
    assert max(golden.differences(model).values()) <= 2e-5
    assert json.loads((folder / "config.json").read_text())["model"]["cutoffs"] == [20, 60, 150]


@pytest.mark.slow
def test_the_tokenizer_of_the_data_is_kept(tmp_path):
    size = Golden("tf1_wt103_like").load().config.vocabulary_size
    words = [f"w{index}" for index in range(size)]
    tokenizer = WordTokenizer(words, WordRule())
    text = " ".join(words).encode()
    prepare_dataset({"train": [text]}, tokenizer, str(tmp_path / "data"), "toy")
    convert = (*FROM_TENSORFLOW, *SETTINGS, "--out")
    run_txl(*convert, tmp_path / "model", "--data", tmp_path / "data")
    lm = txl_tf.load(tmp_path / "model")
    assert lm.tokenizer.fingerprint == tokenizer.fingerprint
    prepare_dataset({"train": [b"some bytes"]}, ByteTokenizer(), str(tmp_path / "bytes"), "toy")
    run_txl(*convert, tmp_path / "other", "--data", tmp_path / "bytes", code=78, says="must have")
    assert not (tmp_path / "other").exists()


LAYERS = ("--set", "model.memory_length=12", "--set", "model.num_layers=5")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((*FROM_TENSORFLOW[1:], "--set", "model.memory_length=x"), 2, "memory_length"),
        ((*FROM_TENSORFLOW[1:], "--set", "memory_length=4"), 2, "model.FIELD=VALUE"),
        ((*FROM_TENSORFLOW[1:], *LAYERS), 78, "num_layers is 3"),
        (("--from", "official_tensorflow"), 2, ""),
        (("--from", "official_tensorflow", "--source", "nowhere"), 66, "nowhere"),
        (("--from", "hugging_face", "--source", "nowhere"), 66, "nowhere"),
        (("--from", "nvidia", "--source", ".", "--workdir", "."), 2, ""),
        (("--to", "hugging_face"), 2, ""),
        (("--to", "hugging_face", "--workdir", "nowhere"), 66, "nowhere"),
        ((), 2, ""),
    ],
)
def test_wrong_arguments_are_refused_and_write_nothing(txl, arguments, code, message, tmp_path):
    txl("convert", *arguments, "--out", tmp_path / "out", code=code, says=message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_words_go_to_hugging_face_and_come_back(tmp_path):
    words = ["<eos>", "<unk>", *(f"w{index}" for index in range(9))]
    config = small_config(3, 5, vocabulary_size=len(words), same_length_keys="memory")
    tokenizer = WordTokenizer(words, WordRule(add_eos=True), unknown_token="<unk>")
    write_model_folder(TransformerXL(config), tmp_path / "own", tokenizer)
    out, back = tmp_path / "theirs", tmp_path / "back"
    finished = run_txl(
        "convert", "--to", "hugging_face", "--workdir", tmp_path / "own", "--out", out
    )
    assert f"TransfoXLTokenizer(vocab_file='{out}/vocab.txt')" in finished.stdout
    assert (out / "vocab.txt").read_text().split() == words
    (out / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": words, "lower_case": False}))
    convert = ("convert", "--from", "hugging_face", "--source", out, "--out", back)
    assert f"--vocabulary {out}/vocab.pkl" in run_txl(*convert[:-1], tmp_path / "bare").stdout
    run_txl(*convert, "--vocabulary", out / "vocab.pkl")
    assert txl_tf.load(back).tokenizer.fingerprint == tokenizer.fingerprint


def test_files_of_torch_are_refused_before_anything_is_loaded(txl, tmp_path, monkeypatch):
    (tmp_path / "pytorch_model.bin").touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    files = ("--source", tmp_path, "--out", tmp_path / "out")
    txl("convert", "--from", "hugging_face", *files, code=66, says="Install torch")
