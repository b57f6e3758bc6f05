"""Speed and memory of training, evaluation and generation, compared with other code.

    python -m tests.measurements.benchmark evaluate generate --rows 1 8 --before CHECKOUT
    python -m tests.measurements.benchmark train --peer-python PYTHON_WITH_HUGGING_FACE

The sides are this checkout, an older checkout and Hugging Face's model. Each side has a process of
its own, see `benchmark_worker`. The sides run in turns, and every second round reverses the
order.
Shape letters: B rows, T segment length, M memory length.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.measurements import benchmark_worker

SUITES = ("train", "evaluate", "generate")
_CHECKOUT = Path(__file__).resolve().parents[2]
_LENGTH = 128


class Worker:
    """Process of one side, which ends when its context ends."""

    def __init__(self, words: Sequence[str], request: dict[str, Any], checkout: Path) -> None:
        self._process = subprocess.Popen(
            [words[0], "-W", "ignore", benchmark_worker.__file__, *words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )
        self._ask(json.dumps(request))

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()

    def turn(self, count: int) -> dict[str, Any]:
        """Repeats the work, and returns its figures with the `rate` in tokens per second."""
        figures = self._ask(str(count))
        return {**figures, "rate": figures["tokens"] / figures["seconds"]}

    def count_of(self, seconds: float) -> int:
        """Compiles the programs, and returns how often the work is repeated in some seconds."""
        count = 1
        for _ in range(4):
            self.turn(count)  # compiles
            wanted = round(count * seconds / max(self.turn(count)["seconds"], 1e-9))
            if wanted < 2 * count:
                break
            count = wanted
        return count

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("A measured process ended: run benchmark_worker.py by hand.")
        figures: dict[str, Any] = json.loads(answer)
        return figures


def request_of(suite: str, num_rows: int, memory_length: int, overrides: list[str]) -> dict:
    """Returns the request to a process of this project, in any checkout."""
    num_layers, num_heads = (6, 4) if suite == "train" else (12, 8)
    model = {"vocabulary_size": 256, "num_layers": num_layers, "hidden_dim": 64 * num_heads}
    model |= {"num_heads": num_heads, "head_dim": 64, "intermediate_dim": 256 * num_heads}
    model |= {"segment_length": _LENGTH, "memory_length": memory_length}
    sections = {"training": {"global_batch_size": num_rows, "num_steps": 1_000_000}}
    sections |= {"evaluation": {"batch_size": num_rows}, "model": model}
    return {"work": suite, "experiment": sections, "num_rows": num_rows, "overrides": overrides}


def peer_request_of(own: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Returns the request for the same work of Hugging Face's model.

    The optimizer has the default settings of this project.
    """
    sizes = {**own["experiment"]["model"], "dropout": 0.1, "attention_dropout": 0.0}
    rates = {"learning_rate": 2.5e-4, "clip_norm": 0.25, "dtype": dtype}
    return {"work": own["work"], "num_rows": own["num_rows"], **sizes, **rates}


def measure(own: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Measures all sides at one shape, and prints their rates, ratios and peaks of memory."""
    python = sys.executable
    with contextlib.ExitStack() as exits:
        request = {**own, "folder": exits.enter_context(tempfile.TemporaryDirectory())}
        sides = {"own": exits.enter_context(Worker([python, "own"], request, _CHECKOUT))}
        if arguments.before:
            folder = exits.enter_context(tempfile.TemporaryDirectory())
            request = {**own, "folder": folder}
            worker = Worker([python, "own"], request, arguments.before)
            sides["before"] = exits.enter_context(worker)
        if arguments.peer_python:
            for dtype in ("float32", "bfloat16"):
                request = peer_request_of(own, dtype)
                words = [arguments.peer_python, "hugging_face"]
                sides[f"peer, {dtype}"] = exits.enter_context(Worker(words, request, Path("/")))
        counts = {name: side.count_of(arguments.turn_seconds) for name, side in sides.items()}
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for number in range(arguments.rounds):
            for name in list(sides)[:: -1 if number % 2 else 1]:
                turns[name].append(sides[name].turn(counts[name]))
    for name, rounds in turns.items():
        rate = statistics.median(each["rate"] for each in rounds)
        ratios = [
            one["rate"] / each["rate"] for one, each in zip(turns["own"], rounds, strict=True)
        ]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        peak = rounds[-1]["peak_bytes"] / 1e9
        print(f"  {name}: {rate:,.1f} tokens/s, peak {peak:.2f} GB, own is {spread} times as fast")


def main() -> None:
    """Measures every suite with every number of rows and every length of memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="+", choices=SUITES)
    parser.add_argument("--rows", type=int, nargs="+", help="default: 8 in training, else 1 and 8")
    parser.add_argument("--memory-lengths", type=int, nargs="+", help="default: 128, 1600 and 3800")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="own setting")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="an older checkout")
    parser.add_argument("--peer-python", metavar="PATH", help="Python with torch, transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn-seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    for suite in arguments.suites:
        is_training = suite == "train"
        for memory_length in arguments.memory_lengths or (
            (_LENGTH,) if is_training else (1600, 3800)
        ):
            for num_rows in arguments.rows or ((8,) if is_training else (1, 8)):
                print(f"{suite}, T {_LENGTH}, M {memory_length:,}, B {num_rows}", flush=True)
                measure(request_of(suite, num_rows, memory_length, arguments.set), arguments)


if __name__ == "__main__":
    main()
