"""However preparation ends, there is a complete output or none, and a second run succeeds."""

import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from tests.data.test_preparation import contents
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import WordTraining
from txl_tf.errors import OutputExistsError, StorageError

POINTS = 100
TEXT = b"".join(b"line %d of %d lines\n" % (number, number % 97) for number in range(6000))
TRAINING = WordTraining(rule=WordRule(add_eos=True), unknown_token="<unk>")


def splits():
    pieces = [TEXT[start : start + 4000] for start in range(0, len(TEXT), 4000)]
    return {"train": [pieces], "valid": [b"line 1\n"]}


def prepare(folder, num_workers=1):
    return prepare_dataset(
        splits(),
        TRAINING,
        str(folder),
        "test",
        tokens_per_record=512,
        shard_bytes=20_000,
        num_workers=num_workers,
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


def test_a_disk_that_is_full_at_any_point(tmp_path, whole):
    largest = max(map(len, whole.values()))
    for point in range(POINTS):
        with pytest.raises(StorageError):
            with_full_disk(point * largest // POINTS, lambda: prepare(tmp_path / "out"))
        assert os.listdir(tmp_path) == []
    prepare(tmp_path / "out")
    assert contents(tmp_path / "out") == whole


# A server that forks for every run: importing TensorFlow takes seconds. Its
# only thread at that time is its own, as TensorFlow has done nothing yet.
SERVER = """
import os, signal, sys, time
import tensorflow
from tests.data.test_preparation_interruption import prepare

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
print("ready", flush=True)
for line in sys.stdin:
    folder, num_workers, seconds = line.split()
    pid = os.fork()
    if pid == 0:
        prepare(folder, int(num_workers))
        os._exit(0)
    begin = time.monotonic()
    if seconds != "-":
        time.sleep(float(seconds))
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    print(status, time.monotonic() - begin, flush=True)
"""


@pytest.fixture(scope="module")
def server():
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()


def run_until(server, folder, num_workers, seconds):
    """Prepares, kills the job after some seconds, and returns how long it ran."""
    server.stdin.write(f"{folder} {num_workers} {'-' if seconds is None else seconds}\n")
    server.stdin.flush()
    status, ran_seconds = server.stdout.readline().split()
    assert int(status) in (0, signal.SIGKILL)
    return float(ran_seconds)


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "stride"), [(1, 2), (2, 5)])
def test_a_kill_at_any_point(tmp_path, whole, server, num_workers, stride):
    num_killed = 0
    out = tmp_path / "out"
    for point in range(0, POINTS, stride):
        if point % 10 == 0:  # how long it takes changes with what else runs
            longest = run_until(server, tmp_path / "whole", num_workers, None)
            assert contents(tmp_path / "whole") == whole
            shutil.rmtree(tmp_path / "whole")
        run_until(server, out, num_workers, point * longest / POINTS)
        if out.exists():
            PreparedDataset.open(str(out))
        else:
            num_killed += 1
            run_until(server, out, num_workers, None)
        assert contents(out) == whole
        # A process that is killed after its output has its name leaves the lock to the next.
        assert {*os.listdir(tmp_path)} - {".out.lock"} == {"out"}
        shutil.rmtree(out)
    assert num_killed > POINTS // (3 * stride)


def test_two_at_once_into_one_folder(tmp_path, whole):
    """The second one is refused, however far the first one is, and harms nothing."""
    refused = []

    def documents():
        for piece in splits()["train"]:
            with pytest.raises(OutputExistsError, match="Another process"):
                prepare(tmp_path / "out")
            refused.append(True)
            yield piece

    class Documents:
        def __iter__(self):
            return documents()

    prepare_dataset(
        {"train": Documents(), "valid": splits()["valid"]},
        TRAINING,
        str(tmp_path / "out"),
        "test",
        tokens_per_record=512,
        shard_bytes=20_000,
    )
    assert refused
    assert contents(tmp_path / "out") == whole
    with pytest.raises(OutputExistsError, match="exists"):
        prepare(tmp_path / "out")


MEMORY = """
import resource, sys
import tensorflow
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.text_files import TextDocuments
from txl_tf.data.vocabulary_training import WordTraining
from txl_tf.data.tokenizers.word_tokenizer import WordRule

text, out = sys.argv[1:]
begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
documents = TextDocuments([text], check_utf8=True)
prepare_dataset({"train": documents}, WordTraining(rule=WordRule()), out, "line")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin) // 1024)
"""


@pytest.mark.slow
def test_memory_for_a_line_of_100_megabytes(tmp_path):
    path = tmp_path / "line.txt"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(b"some text and " * 71_429)
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 300
