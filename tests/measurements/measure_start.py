"""Time from the command to the first training step and to the first token, beside another checkout.

    python -m tests.measurements.measure_start --before /PATH/TO/CHECKOUT

Both checkouts take turns with the model of the quickstart and one small data set. A first
round that is not counted brings the files into memory.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AFTER = Path(__file__).resolve().parents[2]
_STEP = re.compile(r"step 1/")


def start(checkout: Path, *arguments: object) -> subprocess.Popen[str]:
    """Starts a job of a checkout."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.command_line", *map(str, arguments)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def seconds_to_first_step(checkout: Path, data: Path, folder: Path) -> float:
    """Seconds from the command to the line of the first step, whose process is then ended."""
    begin = time.perf_counter()
    with start(
        checkout,
        *("train", "--config", "quickstart", "--data", data, "--workdir", folder / "run"),
        *("--set", "training.steps_per_loop=1"),
    ) as process:
        said = []
        for line in process.stdout or ():
            said.append(line)
            if _STEP.match(line):
                seconds = time.perf_counter() - begin
                process.kill()
                return seconds
    raise SystemExit(f"{checkout}:\n{''.join(said)}")


def seconds_of(checkout: Path, *arguments: object) -> float:
    """Seconds of a job."""
    begin = time.perf_counter()
    with start(checkout, *arguments) as process:
        said = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{checkout}:\n{said}")
    return time.perf_counter() - begin


def measure(checkout: Path, folder: Path) -> dict[str, float]:
    """Seconds of one round of a checkout, by name."""
    with tempfile.TemporaryDirectory() as own:
        step = seconds_to_first_step(checkout, folder / "data", Path(own))
    options = ("--workdir", folder / "run", "--prompt", "import ", "--num-tokens", 1)
    return {"first_step": step, "first_token": seconds_of(checkout, "generate", *options)}


def set_up(folder: Path) -> None:
    """Prepares the data of the quickstart, and a run of its model."""
    small = ("training.num_steps=2", "training.evaluate_tokens=2048", "optimizer.warmup_steps=1")
    for text, count in (("one", 100_000), ("two", 1_000)):
        (folder / f"{text}.txt").write_text(f"import {text}\n" * count)
    files = ("--train-file", folder / "one.txt", "--valid-file", folder / "two.txt")
    seconds_of(AFTER, "prepare", *files, "--tokenizer", "bytes", "--out", folder / "data")
    settings = [word for each in small for word in ("--set", each)]
    options = ("--data", folder / "data", "--workdir", folder / "run")
    seconds_of(AFTER, "train", "--config", "quickstart", *options, *settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before.resolve(), "after": AFTER}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        set_up(Path(folder))
        for number in range(arguments.rounds + 1):
            for name, checkout in checkouts.items():
                for what, seconds in measure(checkout, Path(folder)).items():
                    if number > 0:
                        found[name].setdefault(what, []).append(round(seconds, 2))
    for what, after in found["after"].items():
        before = found["before"][what]
        ratios = [one / other for one, other in zip(after, before, strict=True)]
        medians = {"before": statistics.median(before), "after": statistics.median(after)}
        ratio = round(statistics.median(ratios), 3)
        print(json.dumps({what: {**medians, "ratio": ratio}, "rounds": [before, after]}))


if __name__ == "__main__":
    main()
