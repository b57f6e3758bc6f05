"""However preparation ends, there is a complete output or none, and a second run succeeds."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.data.corpus_files import contents
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import WordTraining
from txl_tf.errors import StorageError

POINTS = 100
TEXT = b"".join(b"line %d of %d lines\n" % (number, number % 97) for number in range(6000))
TRAINING = WordTraining(rule=WordRule(add_eos=True), unknown_token="<unk>")


def splits():
    pieces = [TEXT[start : start + 4000] for start in range(0, len(TEXT), 4000)]
    return {"train": [pieces], "valid": [b"line 1\n"]}


def prepare(folder):
    return prepare_dataset(
        splits(),
        TRAINING,
        str(folder),
        "test",
        tokens_per_record=512,
        shard_bytes=20_000,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    prepare(folder)
    return contents(folder)


def with_full_disk(num_bytes, function):
    """Calls a function while no file can be longer than `num_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        function()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_any_point_leaves_nothing(tmp_path, whole):
    largest = max(map(len, whole.values()))
    for point in range(POINTS):
        with pytest.raises(StorageError):
            with_full_disk(point * largest // POINTS, lambda: prepare(tmp_path / "out"))
        assert os.listdir(tmp_path) == []
    prepare(tmp_path / "out")
    assert contents(tmp_path / "out") == whole


def run_until(server, words, out, seconds=None):
    """Runs `txl prepare`, kills it after some seconds, and returns how long it ran."""
    begin = time.monotonic()
    process = server.start("prepare", *words, "--out", out, output=out.with_suffix(".log"))
    if seconds is not None:
        time.sleep(seconds)
        process.send(signal.SIGKILL)
    assert process.wait() in ((0,) if seconds is None else (0, -signal.SIGKILL)), process.output()
    return time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "stride"), [(1, 2), (2, 5)])
def test_a_kill_at_any_point_leaves_a_whole_output_or_none(tmp_path, server, num_workers, stride):
    train, valid, folder = tmp_path / "train.txt", tmp_path / "valid.txt", tmp_path / "outputs"
    train.write_bytes(TEXT)
    valid.write_bytes(TEXT)
    folder.mkdir()
    words = ("--train-file", train, "--valid-file", valid, "--tokenizer", "words")
    words += ("--shard-megabytes", 0.02, "--workers", num_workers)
    num_killed = 0
    out = folder / "out"
    for point in range(0, POINTS, stride):
        if point % 10 == 0:  # how long it takes changes with the load
            longest = run_until(server, words, tmp_path / "whole")
            whole = contents(tmp_path / "whole")
            shutil.rmtree(tmp_path / "whole")
        run_until(server, words, out, point * longest / POINTS)
        if out.exists():
            PreparedDataset.open(str(out))
        else:
            num_killed += 1
            run_until(server, words, out)
        assert contents(out) == whole
        # A process that is killed after its output has its name leaves the lock to the next.
        assert {*os.listdir(folder)} - {".out.lock", "out.log"} == {"out"}
        shutil.rmtree(out)
    assert num_killed > POINTS // (3 * stride)


MEMORY = """
import resource, sys
import tensorflow
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.sources.text_files import TextDocuments
from txl_tf.data.vocabulary_training import WordTraining
from txl_tf.data.tokenizers.word_tokenizer import WordRule

text, out = sys.argv[1:]
begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
documents = TextDocuments([text], check_utf8=True)
prepare_dataset({"train": documents}, WordTraining(rule=WordRule()), out, "line")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin) // 1024)
"""


@pytest.mark.slow
def test_a_line_of_100_megabytes_needs_little_memory(tmp_path):
    path = tmp_path / "line.txt"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(b"some text and " * 71_429)
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 300
