"""Speed of this checkout relative to another one, by the jobs that a user calls.

    python -m tests.measurements.measure_against_checkout --before /PATH/TO/CHECKOUT
    python -m tests.measurements.measure_against_checkout --before DIR --only evaluate

Each checkout has a run of its own, of the size of enwik8_base. The jobs run in processes
of their own, in turn, so that the figures hold the start of Python too.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

AFTER = Path(__file__).resolve().parents[2]
PARTS = ("train", "evaluate", "generate")
SEGMENT_LENGTH = 128
MODEL = {
    "vocabulary_size": 256,
    "num_layers": 12,
    "hidden_dim": 512,
    "num_heads": 8,
    "head_dim": 64,
    "intermediate_dim": 2048,
    "segment_length": SEGMENT_LENGTH,
    "memory_length": SEGMENT_LENGTH,
}
TRAINING = {"global_batch_size": 1, "num_steps": 20, "checkpoint_every_steps": 20}


def run_txl(checkout: Path, *arguments: object) -> float:
    """Runs a job of a checkout; returns its seconds."""
    command = [sys.executable, "-m", "pipelines.command_line", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    begin = time.perf_counter()
    finished = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)} in {checkout}:\n{finished.stderr}")
    return seconds


def make_run(checkout: Path, folder: Path, num_tokens: int) -> Path:
    """Trains some steps, so that a checkout has a run and `num_tokens` bytes to read."""
    folder.mkdir()
    for split in ("train", "valid", "test"):
        letters = np.random.default_rng(len(split)).choice(list(b"etaoin shrdlu "), num_tokens)
        (folder / split).write_bytes(letters.astype(np.uint8).tobytes())
    (folder / "config.json").write_text(json.dumps({"model": MODEL, "training": TRAINING}))
    run_txl(
        *(checkout, "prepare", "--tokenizer", "bytes", "--out", folder / "data"),
        *("--train-file", folder / "train", "--valid-file", folder / "valid"),
        *("--test-file", folder / "test"),
    )
    train(checkout, folder / "run", 0)
    return folder / "run"


def train(checkout: Path, run: Path, memory_length: int) -> float:
    """Seconds of `txl train`: a new run where there is one, with a memory of a segment."""
    folder = run.parent
    workdir = tempfile.mkdtemp(dir=folder) + "/run" if run.exists() else run
    words = ("--config", folder / "config.json", "--data", folder / "data", "--workdir", workdir)
    return run_txl(checkout, "train", *words)


def evaluate(checkout: Path, run: Path, memory_length: int) -> float:
    """Seconds of `txl evaluate` with one row."""
    sizes = {"batch_size": 1, "segment_length": SEGMENT_LENGTH, "memory_length": memory_length}
    words = ["evaluate", "--workdir", run, "--data", run.parent / "data"]
    for name, value in sizes.items():
        words += ["--set", f"evaluation.{name}={value}"]
    return run_txl(checkout, *words)


def generate(checkout: Path, run: Path, memory_length: int) -> float:
    """Seconds of `txl generate` with one row."""
    return run_txl(
        *(checkout, "generate", "--workdir", run, "--prompt", "to be or not"),
        # The option had another name at first.
        *("--max-tokens" if checkout == AFTER else "--num-tokens", 400),
        *("--seed", 1, "--memory-length", memory_length),
    )


def compare(name: str, rounds: int, before: Callable[[], float], after: Callable[[], float]):
    """Calls both in turn and prints the ratio of their speeds."""
    seconds = np.array([[before(), after()] for _ in range(rounds)])
    ratios = seconds[:, 0] / seconds[:, 1]
    print(
        f"{name}: {statistics.median(ratios):.3f} times as fast as before "
        f"({ratios.min():.3f} to {ratios.max():.3f}); "
        f"{np.median(seconds[:, 0]):.3f} and {np.median(seconds[:, 1]):.3f} s",
        flush=True,
    )


def main() -> None:
    """Prints a line for every part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16_384, help="evaluated")
    parser.add_argument("--memory-lengths", type=int, nargs="+", default=[1600])
    arguments = parser.parse_args()
    before = arguments.before.resolve()
    jobs = {"train": train, "evaluate": evaluate, "generate": generate}
    with tempfile.TemporaryDirectory() as name:
        runs = {
            each: make_run(each, Path(name) / str(number), arguments.tokens)
            for number, each in enumerate((before, AFTER))
        }
        for length in arguments.memory_lengths:
            for part in arguments.only:
                sides = [
                    functools.partial(jobs[part], each, run, length) for each, run in runs.items()
                ]
                compare(f"txl {part}, M = {length}", arguments.rounds, *sides)


if __name__ == "__main__":
    main()
