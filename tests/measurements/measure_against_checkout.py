"""Speed of this checkout relative to another one, by the jobs that a user calls.

    python -m tests.measurements.measure_against_checkout --before /PATH/TO/CHECKOUT
    python -m tests.measurements.measure_against_checkout --before DIR --only evaluate

Each checkout has a run of its own, of the size of enwik8_base. The jobs run in processes
of their own, in turn, so that the figures hold the start of Python too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

AFTER = Path(__file__).resolve().parents[2]
PARTS = ("train", "evaluate", "generate")
LENGTH = 128
MODEL = {"vocabulary_size": 256, "num_layers": 12, "hidden_dim": 512, "num_heads": 8}
MODEL |= {"head_dim": 64, "intermediate_dim": 2048}
MODEL |= {"segment_length": LENGTH, "memory_length": LENGTH}
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
    files = []
    for split in ("train", "valid", "test"):
        letters = np.random.default_rng(len(split)).choice(list(b"etaoin shrdlu "), num_tokens)
        (folder / split).write_bytes(letters.astype(np.uint8).tobytes())
        files += [f"--{split}-file", folder / split]
    (folder / "config.json").write_text(json.dumps({"model": MODEL, "training": TRAINING}))
    run_txl(checkout, "prepare", "--tokenizer", "bytes", "--out", folder / "data", *files)
    run_txl(checkout, *words_of("train", checkout, folder, folder / "run", 0))
    return folder


def words_of(
    part: str, checkout: Path, folder: Path, run: Path, memory_length: int
) -> list[object]:
    """The command of a part, with one row: `train` begins a run, the others read it."""
    data = ["--data", folder / "data"]
    if part == "train":
        return ["train", "--config", folder / "config.json", *data, "--workdir", run]
    if part == "evaluate":
        sizes = {"batch_size": 1, "segment_length": LENGTH, "memory_length": memory_length}
        settings = [f"--set=evaluation.{name}={value}" for name, value in sizes.items()]
        return ["evaluate", "--workdir", run, *data, *settings]
    # The option had another name in older checkouts.
    job = (checkout / "pipelines" / "generate.py").read_text()
    option = "--max-tokens" if "--max-tokens" in job else "--num-tokens"
    words = ["generate", "--workdir", run, "--prompt", "to be or not", option, 400]
    return [*words, "--seed", 1, "--memory-length", memory_length]


def main() -> None:
    """Prints a line for every part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16_384, help="evaluated")
    parser.add_argument("--memory-length", type=int, default=1600)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sides = [
            (checkout, make_run(checkout, Path(name) / side, arguments.tokens))
            for side, checkout in (("before", arguments.before.resolve()), ("after", AFTER))
        ]
        for part in arguments.only:
            rounds = []
            for number in range(arguments.rounds):
                rounds.append([])
                for checkout, folder in sides:
                    run = folder / (f"run {number}" if part == "train" else "run")
                    words = words_of(part, checkout, folder, run, arguments.memory_length)
                    rounds[-1].append(run_txl(checkout, *words))
            seconds = np.array(rounds)
            ratios = seconds[:, 0] / seconds[:, 1]
            print(
                f"txl {part}, M = {arguments.memory_length}: {np.median(ratios):.3f} times as fast "
                f"as before ({ratios.min():.3f} to {ratios.max():.3f}); "
                f"{np.median(seconds[:, 0]):.3f} and {np.median(seconds[:, 1]):.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
