"""A tiny run of a job to interrupt, what interrupts it, and the checks after it.

A test interrupts a few times. As many times as one likes, with figures:

    INTERRUPTIONS=200 STEPS=1000 python -m pytest -n 0 -s -m slow tests/pipelines/run/test_kill.py
"""

import collections
import json
import math
import os
import random
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.pipelines.fork_server import ForkedRun, shared_server
from tests.pipelines.small_experiments import MODEL
from tests.pipelines.txl_process import run_txl
from tests.small_models import last_state_of
from txl_tf.training.metrics_log import MetricsLog

CHECKPOINT_EVERY_STEPS = 10
EVALUATE_EVERY_STEPS = 40
EXPERIMENT = {
    "model": {**MODEL, "segment_length": 8, "memory_length": 8},
    "training": {
        "global_batch_size": 4,
        "num_steps": 1000,
        "checkpoint_every_steps": CHECKPOINT_EVERY_STEPS,
        "evaluate_every_steps": EVALUATE_EVERY_STEPS,
        # Loops that end in the middle between two checkpoints.
        "steps_per_loop": 4,
        # It is the start of the process that takes the time, which compiling makes longer.
        "jit_compile": False,
    },
    "optimizer": {"learning_rate": 3e-3, "warmup_steps": 5},
    "evaluation": {"batch_size": 4},
}
_LAST_LINE = re.compile(rb'"step": (\d+)[^\n]*\n[^\n]*\Z')
_RESUMED = re.compile(r"Resuming from the checkpoint of step (\d+)\.")


def training_words(folder: Path) -> tuple[object, ...]:
    """Prepares a small text; returns the words of the job that trains on it."""
    lines = [f"{n} and {n * 7 % 101} make {n + n * 7 % 101}\n" for n in range(1500)]
    text, data, config = folder / "text.txt", folder / "data", folder / "tiny.json"
    text.write_text("".join(lines))
    config.write_text(json.dumps(EXPERIMENT))
    run_txl("prepare", "--text", text, "--tokenizer", "bytes", "--out", data)
    return "train", "--config", config, "--data", data


def fine_tuning_words(folder: Path) -> tuple[object, ...]:
    """Writes examples of several lengths; returns the words of the job that trains on them."""
    files = []
    for split, count in (("train", 45), ("valid", 12)):
        examples = [{"text": f"{n} " * (1 + n % 9), "label": f"{n % 3}"} for n in range(count)]
        files += [f"--{split}", folder / f"{split}.jsonl"]
        files[-1].write_text("".join(json.dumps(example) + "\n" for example in examples))
    config = folder / "tiny.json"
    config.write_text(json.dumps(EXPERIMENT))
    settings = EXPERIMENT["training"].items()
    sets = [f"--set=training.{name}={json.dumps(value)}" for name, value in settings]
    return "finetune", "--config", config, *files, *sets


class InterruptedRun:
    """One working folder and the job that trains in it, again and again."""

    def __init__(self, words: Sequence[object], workdir: Path, num_steps: int) -> None:
        self._words = [*words, "--workdir", workdir, "--set", f"training.num_steps={num_steps}"]
        self._num_starts = 0
        self._num_steps = num_steps
        self.workdir = workdir

    def start(self) -> ForkedRun:
        """Starts or resumes the run."""
        self._num_starts += 1
        log = self.workdir.with_name(f"{self.workdir.name}-{self._num_starts:04d}.log")
        return shared_server().start(*self._words, output=log)

    def finish(self) -> ForkedRun:
        """Trains to the end, and returns the process that has done it."""
        process = self.start()
        assert process.wait() == 0, process.output()
        self.check_finished()
        return process

    def ledger_step(self) -> int:
        """The last step in the ledger."""
        try:
            with open(self.workdir / "ledger.jsonl", "rb") as file:
                file.seek(max(file.seek(0, 2) - 1000, 0))
                match = _LAST_LINE.search(file.read())
        except FileNotFoundError:
            return 0
        return int(match.group(1)) if match else 0

    def checkpoint_step(self) -> int:
        """The step of the newest checkpoint, 0 without one."""
        paths = (self.workdir / "checkpoints").glob("step-*")
        return max((int(path.name[5:]) for path in paths), default=0)

    def is_saving(self) -> bool:
        """True if there is a checkpoint that is not complete."""
        return any((self.workdir / "checkpoints").glob(".step-*.tmp"))

    def is_locked(self) -> bool:
        """True if a process has begun to work in the folder."""
        return (self.workdir / ".lock").exists()

    def check_finished(self) -> None:
        """Fails unless the run is at its end, and no temporary file is left."""
        assert self.ledger_step() == self.checkpoint_step() == self._num_steps
        names = {str(path.relative_to(self.workdir)) for path in self.workdir.rglob("*")}
        assert [name for name in names if "tmp" in name or "lock" in name or "/." in name] == []
        files = {"config.json", "run.json", "ledger.jsonl", "metrics.jsonl"}
        top = {path.name for path in self.workdir.iterdir()}
        assert top == files | {"checkpoints", "tensorboard"}

    def check_same_as(self, unbroken: "InterruptedRun") -> None:
        """Fails unless ledger, last checkpoint and evaluations equal an unbroken run's."""
        self.check_finished()
        assert last_state_of(self.workdir) == last_state_of(unbroken.workdir)
        assert self._evaluations() == unbroken._evaluations()

    def _evaluations(self) -> list[dict[str, Any]]:
        """The evaluations in the metrics log; fails where a figure stands in it twice."""
        log = MetricsLog(self.workdir / "metrics.jsonl").read()
        assert log is not None and log.num_unreadable == 0
        figures = collections.Counter(
            (line["run"], line["step"], name)
            for line in log.lines
            # Two processes may begin at the same step.
            if line["run"] != "process"
            for name in line.keys() - {"run", "step"}
        )
        assert [figure for figure, count in figures.items() if count > 1] == []
        return [{**line["result"], "seconds": 0} for line in log.lines if "result" in line]


def resumed_step(process: ForkedRun) -> int:
    """The step from which a process resumed by its own words, 0 without any."""
    match = _RESUMED.search(process.output())
    return int(match.group(1)) if match else 0


class Interrupter:
    """Interrupts runs at random moments of all kinds until it has done so often enough."""

    kinds: Sequence[str]
    """Kinds of moments, in turn."""
    waits_for_lock = False

    def __init__(self, words: Sequence[object], folder: Path, num_steps: int, seed: int) -> None:
        self._words, self._folder = words, folder
        self._num_steps = int(os.environ.get("STEPS", num_steps))
        self._random = random.Random(seed)
        self._start_seconds = 0.0
        self.counts: collections.Counter[str] = collections.Counter()

    def interrupt(self, number: int) -> set[str]:
        """Interrupts runs and checks each of them; returns the kinds of moments there were."""
        number = int(os.environ.get("INTERRUPTIONS", number))
        unbroken = InterruptedRun(self._words, self._folder / "unbroken", self._num_steps)
        process = unbroken.start()
        if self.waits_for_lock:
            assert process.wait_until(unbroken.is_locked), process.output()
        begin = time.monotonic()
        assert process.wait_until(lambda: unbroken.ledger_step() > 0), process.output()
        self._start_seconds = time.monotonic() - begin
        assert process.wait() == 0, process.output()
        num_runs = 0
        while self.counts.total() < number:
            workdir = self._folder / f"interrupted-{num_runs}"
            run = InterruptedRun(self._words, workdir, self._num_steps)
            self._interrupt_run(run, number - self.counts.total())
            run.check_same_as(unbroken)
            num_runs += 1
        print(f"{dict(self.counts)} in {num_runs} runs, {time.monotonic() - begin:.0f} seconds")
        return set(self.counts)

    def _interrupt_run(self, run: InterruptedRun, number: int) -> None:
        # A save comes after the last of the moments.
        moments = range(self._num_steps - 2 * CHECKPOINT_EVERY_STEPS)
        for step in sorted(self._random.choice(moments) for _ in range(number)):
            kind = self.kinds[self.counts.total() % len(self.kinds)]
            reached = run.checkpoint_step()
            process = run.start()
            self._wait(run, process, kind, max(step, reached + 1))
            if not self.end(run, process, reached):
                return  # it was faster; another run takes the rest
            self.counts[kind] += 1
            print(f"{self.counts.total()}: {kind}, step {run.ledger_step()}", flush=True)
        reached = run.checkpoint_step()
        assert resumed_step(run.finish()) == reached

    def end(self, run: InterruptedRun, process: ForkedRun, reached: int) -> bool:
        """Ends a process and checks its folder; False if it had come to its own end."""
        raise NotImplementedError

    def _wait(self, run: InterruptedRun, process: ForkedRun, kind: str, step: int) -> None:
        """Waits for the moment; a process may end before it comes."""
        reached, moment = run.checkpoint_step(), math.inf
        if self.waits_for_lock:
            process.wait_until(run.is_locked)
        if kind == "start":
            step = reached + 1
            moment = time.monotonic() + self._random.uniform(0.0, self._start_seconds)
        period = EVALUATE_EVERY_STEPS if kind == "evaluation" else 1

        def is_due(is_reached: bool) -> bool:
            return is_reached or time.monotonic() >= moment

        # The lines of the process before are cut off before there are new ones.
        process.wait_until(lambda: is_due(run.ledger_step() <= reached))
        process.wait_until(
            lambda: is_due(run.ledger_step() >= step and run.ledger_step() % period == 0)
        )
        if kind == "save":
            process.wait_until(run.is_saving)
        # An evaluation takes longer than steps, because every process traces it again.
        time.sleep(self._random.uniform(0.0, 0.5 if kind == "evaluation" else 0.01))
