"""A tiny run of `txl train` to interrupt, and the checks after it."""

import argparse
import collections
import json
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.pipelines.fork_server import ForkedRun, ForkServer
from tests.pipelines.small_experiments import MODEL
from txl_tf.training.checkpoints import read_checkpoint
from txl_tf.training.metrics import MetricsLog
from txl_tf.training.run_time import run_time_of

CHECKPOINT_EVERY_STEPS = 10
EVALUATE_EVERY_STEPS = 40
EXPERIMENT = {
    "model": {**MODEL, "segment_length": 8, "memory_length": 8},
    "training": {
        "global_batch_size": 4,
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


class InterruptedRun:
    """One working folder and the command that trains in it, again and again."""

    def __init__(self, server: ForkServer, folder: Path, name: str, num_steps: int) -> None:
        self._server = server
        self._folder = folder
        self._num_starts = 0
        self.num_steps = num_steps
        self.workdir = folder / name

    @staticmethod
    def set_up(server: ForkServer, folder: Path) -> None:
        """Prepares a small text, and writes the configuration."""
        lines = [f"{n} and {n * 7 % 101} make {n + n * 7 % 101}\n" for n in range(1500)]
        (folder / "text.txt").write_text("".join(lines))
        (folder / "tiny.json").write_text(
            json.dumps({**EXPERIMENT, "training": {**EXPERIMENT["training"], "num_steps": 1000}})
        )
        preparation = server.start(
            "prepare",
            "--text",
            folder / "text.txt",
            "--tokenizer",
            "bytes",
            "--out",
            folder / "data",
            output=folder / "prepare.log",
        )
        assert preparation.wait() == 0, preparation.output()

    def finish(self) -> ForkedRun:
        """Trains to the end, and returns the process that has done it."""
        process = self.start()
        assert process.wait() == 0, process.output()
        self.check_finished()
        return process

    def start(self, *arguments: str) -> ForkedRun:
        """Starts or resumes the run, with more arguments."""
        self._num_starts += 1
        return self._server.start(
            *self._job(),
            "--workdir",
            self.workdir,
            "--set",
            f"training.num_steps={self.num_steps}",
            *arguments,
            output=self._folder / f"{self.workdir.name}-{self._num_starts:04d}.log",
        )

    def _job(self) -> tuple[object, ...]:
        data = self._folder / "data"
        return ("train", "--config", self._folder / "tiny.json", "--data", data)

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
        return max((int(path.name[5:]) for path in self._checkpoints("step-*")), default=0)

    def is_saving(self) -> bool:
        """Whether there is a checkpoint that is not complete."""
        return bool(self._checkpoints(".step-*.tmp"))

    def is_locked(self) -> bool:
        """Whether a process has begun to work in the folder."""
        return (self.workdir / ".lock").exists()

    def has_gone_on_from(self, process: ForkedRun) -> int:
        """The step a process says that it went on from, 0 if it says nothing."""
        match = _RESUMED.search(process.output())
        return int(match.group(1)) if match else 0

    def check_finished(self) -> None:
        """Fails unless the run is at its end and has left nothing lying about."""
        assert self.ledger_step() == self.num_steps
        assert self.checkpoint_step() == self.num_steps
        names = {str(path.relative_to(self.workdir)) for path in self.workdir.rglob("*")}
        leftovers = [name for name in names if "tmp" in name or "lock" in name or "/." in name]
        assert leftovers == []
        top = {path.name for path in self.workdir.iterdir()}
        files = {"config.json", "run.json", "ledger.jsonl", "metrics.jsonl", "time.jsonl"}
        assert top == files | {"checkpoints", "tensorboard"}
        self._check_time()

    def _check_time(self) -> None:
        """Fails unless the time of all starts is known; what was done again is lost."""
        found = run_time_of(MetricsLog(self.workdir / "time.jsonl").read().lines)
        assert found is not None and 1 <= found.num_starts <= self._num_starts
        assert 0.0 < found.goodput < 1.0
        assert (found.seconds["lost"] > 0.0) <= (found.num_starts > 1)

    def _evaluations(self) -> list[dict[str, Any]]:
        """The evaluations in the metrics log; fails where a figure stands in it twice."""
        found = MetricsLog(self.workdir / "metrics.jsonl").read()
        assert found is not None and found.num_unreadable == 0
        names = [
            (line["run"], line["step"], name)
            for line in found.lines
            # Two processes may begin at the same step.
            if line["run"] != "process"
            for name in line.keys() - {"run", "step"}
        ]
        twice = [name for name, count in collections.Counter(names).items() if count > 1]
        assert [name for name in twice if "checkpoint_seconds" not in name[2]] == []
        results = (line["result"] for line in found.lines if "result" in line)
        return [{**result, "seconds": 0} for result in results]

    def check_same_as(self, unbroken: "InterruptedRun") -> None:
        """Fails unless ledger and last checkpoint equal an unbroken run's, bit for bit."""
        self.check_finished()
        assert (self.workdir / "ledger.jsonl").read_bytes() == (
            unbroken.workdir / "ledger.jsonl"
        ).read_bytes()
        assert self._evaluations() == unbroken._evaluations()
        expected, received = unbroken._arrays(), self._arrays()
        assert received.keys() == expected.keys()
        different = [name for name in expected if received[name] != expected[name]]
        assert different == []

    def _arrays(self) -> dict[str, Any]:
        folder = self.workdir / "checkpoints" / f"step-{self.num_steps:08d}"
        _, arrays = read_checkpoint(str(folder))
        return {name: (str(array.dtype), array.tobytes()) for name, array in arrays.items()}

    def _checkpoints(self, pattern: str) -> list[Path]:
        folder = self.workdir / "checkpoints"
        return list(folder.glob(pattern))


class InterruptedFineTuning(InterruptedRun):
    """A run of `txl finetune`, of texts of several lengths, likewise."""

    @staticmethod
    def set_up(server: ForkServer, folder: Path) -> None:
        """Writes examples and the configuration."""
        for split, count in (("train", 45), ("valid", 12)):
            lines = [{"text": f"{n} " * (1 + n % 9), "label": f"{n % 3}"} for n in range(count)]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"{split}.jsonl").write_text(text)
        (folder / "tiny.json").write_text(
            json.dumps({**EXPERIMENT, "training": {**EXPERIMENT["training"], "num_steps": 1000}})
        )

    def _job(self) -> tuple[object, ...]:
        training = EXPERIMENT["training"]
        settings = [f"training.{name}={json.dumps(value)}" for name, value in training.items()]
        return (
            "finetune",
            "--config",
            self._folder / "tiny.json",
            "--train",
            self._folder / "train.jsonl",
            "--valid",
            self._folder / "valid.jsonl",
            *(word for setting in settings for word in ("--set", setting)),
        )


class Interrupter:
    """Interrupts runs until the number of interruptions is reached."""

    run_type = InterruptedRun

    def __init__(self, server: ForkServer, folder: Path, num_steps: int, seed: int) -> None:
        self._server = server
        self._folder = folder
        self._num_steps = num_steps
        self._random = random.Random(seed)
        self._start_seconds = 0.0
        self.kinds = collections.Counter()
        self.num_runs = 0

    @property
    def num_interruptions(self) -> int:
        return sum(self.kinds.values())

    def interrupt(self, number: int) -> set[str]:
        """Interrupts so often and checks every run; returns the kinds there were."""
        self.run_type.set_up(self._server, self._folder)
        unbroken = self.run_type(self._server, self._folder, "unbroken", self._num_steps)
        process = unbroken.start()
        self._wait_for_begin(unbroken, process)
        begin = time.monotonic()
        assert process.wait_until(lambda: unbroken.ledger_step() > 0), process.output()
        self._start_seconds = time.monotonic() - begin
        assert process.wait() == 0, process.output()
        while self.num_interruptions < number:
            name = f"interrupted-{self.num_runs}"
            run = self.run_type(self._server, self._folder, name, self._num_steps)
            self._interrupt_run(run, number - self.num_interruptions)
            run.check_same_as(unbroken)
            self.num_runs += 1
        assert self.num_interruptions == number
        return set(self.kinds)

    def _moments(self, number: int) -> list[int]:
        """Steps, with a save to come after the last of them."""
        moments = range(self._num_steps - 2 * CHECKPOINT_EVERY_STEPS)
        return sorted(self._random.choice(moments) for _ in range(number))

    def _wait_for_begin(self, run: InterruptedRun, process: ForkedRun) -> None:
        """Waits until there is something to interrupt."""

    def _interrupt_run(self, run: InterruptedRun, number: int) -> None:
        raise NotImplementedError


def interrupt_as_asked(
    made: dict[str, type["Interrupter"]], option: str, times: int, steps: int
) -> Any:
    """Interrupts runs as the command line says, and prints how long each took."""
    parser = argparse.ArgumentParser()
    parser.add_argument(f"--{option}", type=int, default=times, dest="times")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", choices=made, default=next(iter(made)))
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ForkServer() as server:
        interrupter = made[arguments.job](server, Path(folder), arguments.steps, arguments.seed)
        interrupter.interrupt(arguments.times)
    seconds = time.monotonic() - begin
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(interrupter.kinds.items()))
    print(f"{arguments.times} {option} ({kinds}), {interrupter.num_runs} runs, ", end="")
    print(f"{arguments.steps} steps each; {seconds:.0f} s, {seconds / arguments.times:.2f} s each")
    return interrupter
