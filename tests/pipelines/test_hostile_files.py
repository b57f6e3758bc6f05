"""One hostile file of each format: the right exit code, three lines at most, and no code is run."""

import gzip
import importlib.util
import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from pipelines.command_line import main
from tests.convert.goldens import FOLDER

CHECKPOINT = FOLDER / "tf1_wt103_like"


class Attack:
    """A pickle of it makes a file when it is loaded."""

    def __reduce__(self):
        return open, ("marker", "w")


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
    return len(header).to_bytes(8, "little") + header


INDEX = (CHECKPOINT / "model.ckpt-0.index").read_bytes()
HUGE = {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
CONVERT = "convert --out out --from"
# The files of each case, the command and its exit code.
CASES = {
    "configuration, nested": ({"a.toml": b"a = " + b"[" * 10**5}, "config --config a.toml", 2),
    "configuration, no text": ({"a.json": b"\xff\xfe{}"}, "config --config a.json", 2),
    "description, cut": ({"run/run.json": b'{"experiment": {'}, "verify run", 65),
    "manifest, huge": ({"d/manifest.json": b"[" + b"[]," * 10**6}, "verify d", 65),
    "session, bomb": ({"a.npz": archive(a_npy=npy(np.zeros(1 << 25, "u1")))}, "verify a.npz", 65),
    "session, objects": (
        {"a.npz": archive(header_npy=npy(np.array([Attack()], object)))},
        "verify a.npz",
        65,
    ),
    "checkpoint, damaged index": (
        {"m.index": INDEX[:-20] + b"\xff" * 20, "m.data-00000-of-00001": b""},
        f"{CONVERT} official_tensorflow --source m",
        65,
    ),
    "checkpoint, no data": (
        {"m.index": INDEX, "m.data-00000-of-00001": b"short"},
        f"{CONVERT} official_tensorflow --source m",
        65,
    ),
    "PyTorch, code": (
        {"model.pt": pickle.dumps(Attack())},
        f"{CONVERT} official_pytorch --source model.pt",
        65 if importlib.util.find_spec("torch") else 66,
    ),
    "safetensors, huge": (
        {"hf/model.safetensors": safetensors(json.dumps(HUGE).encode()), "hf/config.json": b"{}"},
        f"{CONVERT} hugging_face --source hf",
        65,
    ),
    "gzip of a text": ({"a.gz": gzip.compress(b"text " * 99)[:-9]}, "prepare --text a.gz", 65),
    "JSON Lines": ({"a.jsonl": b'{"text": 3}\n'}, "prepare --text a.jsonl --format jsonl", 65),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_is_refused(case, tmp_path, monkeypatch, capsys):
    files, command, exit_code = CASES[case]
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    words = command.split() + (["--out", "out"] if command.startswith("prepare") else [])
    found = main(words)
    lines = capsys.readouterr().err.strip().split("\n")
    assert found == exit_code, lines
    assert len(lines) <= 3 and not any("Traceback" in line for line in lines)
    assert not (tmp_path / "marker").exists()
