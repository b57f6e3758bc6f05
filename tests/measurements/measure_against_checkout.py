"""Speed of this checkout relative to another one, by what a user calls.

    python -m tests.measurements.measure_against_checkout --before /PATH/TO/CHECKOUT
    python -m tests.measurements.measure_against_checkout --before DIR --only evaluate

Both checkouts read one run of the size of enwik8_base. `txl evaluate` and
`txl generate` run in processes of their own, in turn, so that their figures
hold the start of Python too. The exports of both are loaded into one process,
without a line of either checkout, and called in turn.
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
PARTS = ("evaluate", "generate", "export")
SEGMENT_LENGTH = 128
NEW_TOKENS = 64
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
TRAINING = {"global_batch_size": 1, "num_steps": 1, "checkpoint_every_steps": 1}


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


def make_run(folder: Path, num_tokens: int) -> Path:
    """Trains one step, so that both checkouts have a run and `num_tokens` bytes to read."""
    for split in ("train", "valid", "test"):
        letters = np.random.default_rng(len(split)).choice(list(b"etaoin shrdlu "), num_tokens)
        (folder / split).write_bytes(letters.astype(np.uint8).tobytes())
    (folder / "config.json").write_text(json.dumps({"model": MODEL, "training": TRAINING}))
    data = folder / "data"
    run_txl(
        *(AFTER, "prepare", "--tokenizer", "bytes", "--out", data),
        *("--train-file", folder / "train", "--valid-file", folder / "valid"),
        *("--test-file", folder / "test"),
    )
    run_txl(
        *(AFTER, "train", "--config", folder / "config.json"),
        *("--data", data, "--workdir", folder / "run"),
    )
    return folder / "run"


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
        *("--max-tokens", 400, "--seed", 1, "--memory-length", memory_length),
    )


def export(checkout: Path, run: Path, memory_length: int) -> dict[str, Callable[..., object]]:
    """Exports the run and loads the signatures."""
    import tensorflow as tf

    folder = run.parent / f"{checkout.name}-{memory_length}"
    run_txl(
        *(checkout, "export", "--workdir", run, "--out", folder),
        *("--memory-length", memory_length, "--max-output-tokens", NEW_TOKENS),
    )
    loaded = tf.saved_model.load(str(folder / "1"))
    # The signatures belong to the loaded object, which has to be kept with them.
    return {"loaded": loaded, **loaded.signatures}


class Request:
    """A request that is answered again and again, with the memory that was answered last.

    Args:
        signature: function of a loaded export.
        inputs: dict of all inputs but memory.
    """

    def __init__(self, signature: Callable[..., dict], inputs: dict[str, np.ndarray]) -> None:
        self._signature = signature
        self._inputs = inputs
        num_rows = len(inputs["lengths"])
        self._memory = {
            "memory_states": np.zeros([num_rows, 0, 0, 0], np.float32),
            "memory_valid_length": np.zeros([num_rows], np.int32),
        }

    def seconds(self) -> float:
        """Asks once; returns the seconds to the answer."""
        begin = time.perf_counter()
        answer = self._signature(**self._inputs, **self._memory)
        answer = {name: value.numpy() for name, value in answer.items()}
        seconds = time.perf_counter() - begin
        self._memory = {name: answer[name] for name in self._memory}
        return seconds


def score_inputs(num_rows: int) -> dict[str, np.ndarray]:
    """Inputs of `score`: one segment in each row."""
    ids = np.random.default_rng(1).integers(97, 123, [num_rows, SEGMENT_LENGTH + 1], np.int32)
    lengths = np.full([num_rows], SEGMENT_LENGTH, np.int32)
    return {"token_ids": ids[:, :-1], "target_ids": ids[:, 1:], "lengths": lengths}


def generate_inputs(num_rows: int) -> dict[str, np.ndarray]:
    """Inputs of `generate`: one token before, `NEW_TOKENS` after it."""
    ones = np.ones([num_rows], np.int32)
    return {
        "token_ids": 97 * ones[:, None],
        "lengths": ones,
        "num_tokens": NEW_TOKENS * ones,
        "temperature": ones.astype(np.float32),
        "top_k": 40 * ones,
        "top_p": 0.9 * ones.astype(np.float32),
        "seed": np.arange(num_rows, dtype=np.int32),
        "stop_token_id": -ones,
    }


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


def compare_exports(before: Path, run: Path, memory_length: int, rounds: int) -> None:
    """Compares the signatures of both exports, with full memory."""
    exports = [export(checkout, run, memory_length) for checkout in (before, AFTER)]
    for name, inputs_of in (("score", score_inputs), ("generate", generate_inputs)):
        for num_rows in (1, 8):
            requests = [Request(each[name], inputs_of(num_rows)) for each in exports]
            for request in requests:
                # The first requests trace and fill the memory.
                for _ in range(-(-memory_length // SEGMENT_LENGTH) + 1):
                    request.seconds()
            label = f"export's {name}, {num_rows} rows, M = {memory_length}"
            compare(label, 3 * rounds, requests[0].seconds, requests[1].seconds)


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
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name), arguments.tokens)
        for length in arguments.memory_lengths:
            for part, job in (("evaluate", evaluate), ("generate", generate)):
                if part in arguments.only:
                    sides = [functools.partial(job, each, run, length) for each in (before, AFTER)]
                    compare(f"txl {part}, M = {length}", arguments.rounds, *sides)
            if "export" in arguments.only:
                compare_exports(before, run, length, arguments.rounds)


if __name__ == "__main__":
    main()
