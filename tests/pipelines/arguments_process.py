"""Runs `txl` until its arguments are checked, many times in one process.

The process answers a line of JSON for every line with arguments that it reads.
A job whose arguments are right would now begin: it has the exit code `STARTS`.
TensorFlow cannot be imported there, because checking must not need it.
"""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

from txl_tf.data.manifest import FORMAT_VERSION, Manifest, ShardManifest, SplitManifest

STARTS = "starts"
ROOT = Path(__file__).resolve().parent.parent.parent
MAX_CHARACTERS = 420


class Answer(NamedTuple):
    """How a job ended: exit code or `STARTS`, lines on stderr, seconds."""

    exit_code: int | str
    lines: list[str]
    seconds: float

    def check(self) -> "Answer":
        """Asserts what holds for whatever the arguments are."""
        assert self.exit_code in (0, STARTS, 2, 65, 66, 73, 74, 78), self
        if self.exit_code not in (0, STARTS):
            assert 1 <= len(self.lines) <= 3, self
        for line in self.lines:
            assert len(line) <= MAX_CHARACTERS, self
            assert line.isprintable(), self
        assert self.seconds < 10.0, self
        return self


class ArgumentsProcess:
    """The tests' end; a context that ends the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data_folder = folder / "d"

    def __enter__(self) -> Self:
        """Begins the process, beside a data set `d` that has only its manifest."""
        self._data_folder.mkdir(exist_ok=True)
        shard = ShardManifest(
            file="train-00000-of-00001.tfrecord", tokens=9, records=1, bytes=9, sha256="0" * 64
        )
        counts = dict.fromkeys(("tokens", "bytes", "characters"), 9)
        Manifest(
            format_version=FORMAT_VERSION,
            corpus_name="none",
            tokenizer_kind="bytes",
            tokenizer_sha256="0" * 64,
            vocabulary_size=256,
            token_bytes=1,
            tokens_per_record=9,
            splits=(SplitManifest(name="train", words=1, documents=1, shards=(shard,), **counts),),
        ).write(str(self._data_folder))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.pipelines.arguments_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        )
        return self

    def __exit__(self, *unused: object) -> None:
        with self._process:
            pass

    def run(self, *arguments: object) -> Answer:
        """Runs a job."""
        line = json.dumps([str(argument) for argument in arguments]) + "\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process has ended with {self._process.wait()}"
        return Answer(*json.loads(answer))


class _StartedError(BaseException):
    """Not an `Exception`, so that no job catches it."""


class _NoTensorFlow:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name in ("tensorflow", "keras", "jax"):
            raise AssertionError(f"{name} was imported to check arguments")


def _answer(arguments: list[str]) -> Answer:
    from pipelines.command_line import main

    begin, errors = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            exit_code = main(arguments)
        except SystemExit as error:
            exit_code = error.code
        except _StartedError:
            exit_code = STARTS
    # Split at line feeds alone: all other breaks must have been escaped.
    lines = [line for line in errors.getvalue().split("\n") if line]
    return Answer(exit_code, lines, time.monotonic() - begin)


def serve() -> None:
    """Answers until there is nothing more to read."""
    from pipelines.command_line import JOBS

    def start(arguments: Any) -> None:
        raise _StartedError

    sys.meta_path.insert(0, _NoTensorFlow())
    for name in JOBS:
        importlib.import_module(f"pipelines.{name}").run = start
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
