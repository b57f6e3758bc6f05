"""The examples of `pipelines/EXAMPLES.md` run with the packages that they name."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.documented_code import blocks_of_python
from tests.jax_process import NEEDS_JAX
from tests.pipelines.prepared_data import prepared
from tests.slow_case import QUICK_XLA
from tests.source_tree import ROOT
from txl_tf.data.sources.id_files import IdDocuments

PAGES = "".join((ROOT / "pipelines" / name).read_text() for name in ("README.md", "EXAMPLES.md"))
CODES = blocks_of_python(PAGES)


def example(text):
    """Returns the code that has a text."""
    (code,) = (code for code in CODES if text in code)
    return code


def run_example(code):
    names = {}
    exec(compile(code, "example", "exec"), names)
    return names


def options_of(folder):
    """Returns the options of the command that writes a folder."""
    (options,) = re.findall(rf"^txl prepare (.*) --out {folder}$", PAGES, re.MULTILINE)
    return options.split()


FASTA = "; none\n>a variant A>G\nACgt\nNA\n>b\n\n>c\nGG\n"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["genome.fa", "genome.fa.gz"])
def test_sequences_of_fasta_are_documents(tmp_path, monkeypatch, line_end, name):
    monkeypatch.chdir(tmp_path)
    content = FASTA.replace("\n", line_end).encode()
    # BGZF is gzip in parts.
    parts = gzip.compress(content[:9]) + gzip.compress(content[9:])
    Path(name).write_bytes(parts if name.endswith("gz") else content)
    run_example(example("gzip").replace("genome.fa", name))
    result = [b"".join(ids) for ids in IdDocuments(["genome.npz"], 5)]
    assert result == [b"0 1 2 3 4 0 ", b"2 2 "]
    assert options_of("data/dna")[-3:] == ["genome.npz", "--vocabulary-size", "5"]


def test_wikitext_comes_back_from_parquet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = " \n = Title = \n \n Some text . \n \n"
    rows = ["" if line == " \n" else line for line in text.splitlines(keepends=True)]
    parquet.write_table(pyarrow.table({"text": rows}), "train.parquet")
    run_example(example("pyarrow"))
    assert Path("wiki.train.tokens").read_bytes() == text.encode()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Returns a function that installs packages and runs a program with them in a folder."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python, outside = folder / "bin" / "python", {**os.environ, "PYTHONPATH": ""}

    def run(packages, program, cwd):
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, env=outside)
        subprocess.run([python, "-W", "ignore", "-c", program], check=True, cwd=cwd, env=outside)

    return run


MIDI = """
import os, random, mido
os.makedirs("midi/below")
for number in range(30):
    track = mido.MidiTrack()
    for pitch in random.Random(number).choices([60, 62, 64, 65, 67], k=99):
        track.append(mido.Message("note_on", note=pitch, velocity=64, time=0))
        track.append(mido.Message("note_off", note=pitch, velocity=0, time=240))
    file = mido.MidiFile(ticks_per_beat=480)
    file.tracks.append(track)
    file.save(f"midi/{'below/' if number % 3 else ''}{number}.mid")
"""


@pytest.mark.slow
def test_music_is_prepared_from_the_tokens_of_miditok(tmp_path, monkeypatch, environment):
    packages = ["miditok==3.1.0", "mido==1.3.3"]
    environment(packages, MIDI + example("miditok"), tmp_path)
    monkeypatch.chdir(tmp_path)
    dataset, tokenizer = prepared("data/music", *options_of("data/music"))
    assert sum(split.documents for split in dataset.manifest.splits) == 30
    text = tokenizer.decode(dataset.read_tokens("train", 0, 9))
    assert re.match(r"Bar_None TimeSig_4/4 Position_\d+ Pitch_\d+", text)


@pytest.mark.slow
def test_a_time_series_is_forecast():
    names = run_example(example("forecast"))
    errors = np.abs(names["forecast"] - names["future"])
    assert errors.mean() < 0.5 * np.abs(names["future"]).mean()


@NEEDS_JAX[0]
@NEEDS_JAX[1]
def test_a_model_trains_and_writes_on_jax():
    program = example('"KERAS_BACKEND"]') + "import keras\nprint(keras.backend.backend())"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK_XLA}
    output = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    assert "\nAll layers " in output and output.endswith("jax\n")
