"""`txl convert`, from the command line to its result."""

import json
import pickle
import sys

import pytest

import txl_tf
from pipelines.command_line import main
from tests.convert.goldens import FOLDER, Golden
from tests.convert.models import assert_same_weights
from tests.pipelines.txl_process import error_lines, run_txl
from tests.slow_case import slow_case
from tests.small_models import small_config
from txl_tf import load_model
from txl_tf.data import prepare_dataset
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.model_folder import write_model_folder
from txl_tf.models.transformer_xl import TransformerXL

PREFIX = FOLDER / "tf1_wt103_like" / "model.ckpt-0"
FROM_TENSORFLOW = ("convert", "--from", "official_tensorflow", "--source", PREFIX)
SETTINGS = ("--set", "model.memory_length=12", "--set", "model.segment_length=8")
SETTINGS += ("--set", "model.same_length=true", "--set", "model.clamp_length=10")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "model"
    finished = run_txl(*FROM_TENSORFLOW, "--out", folder, *SETTINGS)
    assert finished.returncode == 0, finished.stderr
    assert f"written: {folder}" in finished.stdout
    rows = [line.split(maxsplit=2) for line in finished.stdout.splitlines()]
    assert ["model.memory_length", "12", "given"] in rows
    assert ["model.pre_norm", "false", "assumed: the default"] in rows
    return folder


def test_a_converted_model_is_the_original(converted):
    golden = Golden("tf1_wt103_like")
    model = load_model(converted)
    assert_same_weights(model, golden.load())
    assert model.config == golden.load().config
    assert max(golden.differences(model).values()) <= 2e-5
    assert json.loads((converted / "config.json").read_text())["model"]["cutoffs"] == [20, 60, 150]


@pytest.mark.slow
def test_the_tokenizer_of_the_data_is_kept(tmp_path):
    size = Golden("tf1_wt103_like").load().config.vocabulary_size
    words = [f"w{index}" for index in range(size)]
    tokenizer = WordTokenizer(words, WordRule())
    text = " ".join(words).encode()
    prepare_dataset({"train": [text]}, tokenizer, str(tmp_path / "data"), "toy")
    convert = (*FROM_TENSORFLOW, *SETTINGS, "--out")
    finished = run_txl(*convert, tmp_path / "model", "--data", tmp_path / "data")
    assert finished.returncode == 0, finished.stderr
    lm = txl_tf.load(tmp_path / "model")
    assert lm.tokenizer.fingerprint == tokenizer.fingerprint
    prepare_dataset({"train": [b"some bytes"]}, ByteTokenizer(), str(tmp_path / "bytes"), "toy")
    other = run_txl(*convert, tmp_path / "other", "--data", tmp_path / "bytes")
    assert other.returncode == 78, other.stderr
    assert "must have" in error_lines(other)[0]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        (("--set", "model.memory_length=x"), 2, "memory_length"),
        slow_case(("--set", "memory_length=4"), 2, "model.FIELD=VALUE"),
        (("--set", "model.memory_length=12", "--set", "model.num_layers=5"), 78, "num_layers is 3"),
    ],
)
def test_wrong_settings(settings, code, said, tmp_path):
    finished = run_txl(*FROM_TENSORFLOW, "--out", tmp_path / "model", *settings)
    assert finished.returncode == code
    assert said in finished.stderr
    assert len(error_lines(finished)) <= 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--from", "official_tensorflow"), 2),
        (("--from", "official_tensorflow", "--source", "nowhere"), 66),
        (("--from", "hugging_face", "--source", "nowhere"), 66),
        (("--from", "nvidia", "--source", ".", "--workdir", "."), 2),
        (("--to", "hugging_face"), 2),
        (("--to", "hugging_face", "--workdir", "nowhere"), 66),
        ((), 2),
    ],
)
def test_wrong_arguments(arguments, code, tmp_path):
    finished = run_txl("convert", *arguments, "--out", tmp_path / "out")
    assert finished.returncode == code, finished.stderr
    assert len(error_lines(finished)) <= 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_of_hugging_face_there_and_back(tmp_path):
    pytest.importorskip("safetensors")
    from txl_tf.convert import load_hugging_face

    source, ours, theirs = FOLDER / "hf_char.npz", tmp_path / "ours", tmp_path / "theirs"
    for words in (
        ("--from", "hugging_face", "--source", source, "--out", ours),
        ("--to", "hugging_face", "--workdir", ours, "--out", theirs),
    ):
        finished = run_txl("convert", *words)
        assert finished.returncode == 0, finished.stderr
    expected = Golden("hf_char").load()
    assert_same_weights(load_model(ours), expected)
    assert_same_weights(load_hugging_face(theirs), expected)


def test_what_hugging_face_has_not_is_a_usage_error(converted, tmp_path):
    arguments = ("convert", "--to", "hugging_face", "--workdir", converted)
    finished = run_txl(*arguments, "--out", tmp_path / "theirs")
    assert finished.returncode == 2
    assert "same_length_keys" in finished.stderr


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
    assert finished.returncode == 0, finished.stderr
    assert f"TransfoXLTokenizer(vocab_file='{out}/vocab.txt')" in finished.stdout
    assert (out / "vocab.txt").read_text().split() == words
    (out / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": words, "lower_case": False}))
    convert = ("convert", "--from", "hugging_face", "--source", out, "--out", back)
    assert f"--vocabulary {out}/vocab.pkl" in run_txl(*convert[:-1], tmp_path / "bare").stdout
    finished = run_txl(*convert, "--vocabulary", out / "vocab.pkl")
    assert finished.returncode == 0, finished.stderr
    assert txl_tf.load(back).tokenizer.fingerprint == tokenizer.fingerprint


def test_files_of_torch_are_refused_before_anything_is_loaded(tmp_path, monkeypatch, capsys):
    (tmp_path / "pytorch_model.bin").touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    convert = ["convert", "--from", "hugging_face", "--source", str(tmp_path)]
    assert main([*convert, "--out", str(tmp_path / "out")]) == 66
    assert "Install torch" in capsys.readouterr().err
