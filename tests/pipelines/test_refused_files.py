"""One file of each format that is refused: the right exit code, and three lines at most."""

import gzip
import importlib.util
import io
import json
import pickle
import zipfile
from fractions import Fraction

import numpy as np
import pytest

from pipelines.command_line import main
from tests.convert.goldens import FOLDER
from txl_tf.storage import array_archives
from txl_tf.storage.strict_json import MAX_DEPTH

CHECKPOINT = FOLDER / "tf1_wt103_like"
ALLOWED_BYTES = 1000


def archive(**members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name.replace("_npy", ".npy"), data)
    return content.getvalue()


def npy(array):
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def safetensors(header):
    """A file whose header is one byte shorter than the file says."""
    return (len(header) + 1).to_bytes(8, "little") + header


DEEP = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
INDEX = (CHECKPOINT / "model.ckpt-0.index").read_bytes()
HEADER = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
CONVERT = "convert --out out --from"
PREPARE_IDS = "prepare --format ids --vocabulary-size 9"
# The files of each case, the command and its exit code.
CASES = {
    "configuration, nested": ({"a.toml": b"a = " + DEEP}, "config --config a.toml", 2),
    "configuration, no text": ({"a.json": b"\xff\xfe{}"}, "config --config a.json", 2),
    "description, cut": ({"run/run.json": b'{"experiment": {'}, "verify run", 65),
    "manifest, nested": ({"d/manifest.json": b'{"a": %s}' % DEEP}, "verify d", 65),
    "ids, large": (
        {"a.npz": archive(a_npy=npy(np.zeros(2 * ALLOWED_BYTES, "u1")))},
        f"{PREPARE_IDS} --text a.npz",
        65,
    ),
    "ids, objects": (
        {"a.npz": archive(header_npy=npy(np.array([Fraction(1, 2)], object)))},
        f"{PREPARE_IDS} --text a.npz",
        65,
    ),
    "checkpoint, damaged index": (
        {"m.index": INDEX[:-20], "m.data-00000-of-00001": b""},
        f"{CONVERT} official_tensorflow --source m",
        65,
    ),
    "checkpoint, no data": (
        {"m.index": INDEX, "m.data-00000-of-00001": b"short"},
        f"{CONVERT} official_tensorflow --source m",
        65,
    ),
    "PyTorch, objects": (
        {"model.pt": pickle.dumps(Fraction(1, 2))},
        f"{CONVERT} official_pytorch --source model.pt",
        65 if importlib.util.find_spec("torch") else 66,
    ),
    "safetensors, cut": (
        {"hf/model.safetensors": safetensors(json.dumps(HEADER).encode()), "hf/config.json": b"{}"},
        f"{CONVERT} hugging_face --source hf",
        65,
    ),
    "gzip of a text": ({"a.gz": gzip.compress(b"text " * 99)[:-9]}, "prepare --text a.gz", 65),
    "JSON Lines": ({"a.jsonl": b'{"text": 3}\n'}, "prepare --text a.jsonl --format jsonl", 65),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_refused_in_three_lines(case, tmp_path, monkeypatch, capsys):
    files, command, exit_code = CASES[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(array_archives, "_ALWAYS_ALLOWED_BYTES", ALLOWED_BYTES)
    monkeypatch.setattr(array_archives, "_MAX_RATIO", 1)
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    words = command.split() + (["--out", "out"] if command.startswith("prepare") else [])
    result = main(words)
    lines = capsys.readouterr().err.strip().split("\n")
    assert result == exit_code, lines
    assert len(lines) <= 3 and not any("Traceback" in line for line in lines)
