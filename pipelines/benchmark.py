"""Measures speed and memory of training, evaluation and generation: `txl benchmark`.

    txl benchmark evaluate --memory-lengths 800,1600,3200
    txl benchmark train --peer-python PATH --json

Each case has a process of its own, and takes turns with the peer. Settings that are not part
of a shape are those of `--config`, or the defaults of the jobs. Shape letters: B rows, T segment
length, M memory length.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from typing import IO, Any, Self, cast

from txl_tf import __version__
from txl_tf.config.base import MAX_TOKENS
from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig, TrainingConfig
from txl_tf.config.model import ModelConfig
from txl_tf.errors import InputMissingError, JobError, UsageError
from txl_tf.models.sizes import reading_flops_per_token, run_flops_per_token

from . import benchmark_worker
from .arguments import (
    MAX_COUNT,
    MAX_SECONDS,
    add_config_argument,
    add_json_argument,
    add_number,
    add_numbers,
    add_override_argument,
    override,
)
from .configs import load_experiment
from .memory_needs import describe_bytes
from .progress import plain_table, say

SUITES = ("train", "evaluate", "generate")
_PEER = "hugging_face"
_READ_BY_PEERS = (
    *("vocabulary_size", "num_layers", "hidden_dim", "num_heads", "head_dim"),
    *("intermediate_dim", "segment_length", "memory_length", "dropout", "attention_dropout"),
)
# Settings that hardly change the amount of work.
_WITHOUT_WORK = (
    *("embedding_dim", "layer_norm_epsilon", "initializer", "initializer_stddev"),
    *("initializer_range", "projection_stddev", "share_attention_biases"),
    *("clamp_length", "same_length", "same_length_keys"),
)
# More steps than any measurement takes.
_NUM_STEPS = 1_000_000
_MAX_TRIALS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the table: a suite, a shape in words, and the requests of both sides."""

    suite: str
    shape: str
    request: dict[str, Any]
    flops_per_token: int | None
    peer_request: dict[str, Any] | None
    """None if the peer would do different work."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument("suites", metavar="SUITE", nargs="+", choices=SUITES, help="/".join(SUITES))
    shapes = parser.add_argument_group("shapes")
    add_config_argument(shapes, help="experiment or .json or .toml file (default: built-in shapes)")
    add_override_argument(shapes)
    meaning = "tokens read at a time; in training also the default memory"
    add_numbers(shapes, "--segment-lengths", 1, MAX_TOKENS, meaning, unit="N")
    meaning = "tokens of memory (default: 128 in training, else 1600,3800)"
    add_numbers(shapes, "--memory-lengths", 1, MAX_TOKENS, meaning, unit="N")
    rounds = parser.add_argument_group("rounds")
    add_number(rounds, "--rounds", 1, MAX_COUNT, "rounds, whose medians are reported", default=5)
    meaning = "approximate seconds of a turn"
    add_number(rounds, "--turn-seconds", 1e-3, MAX_SECONDS, meaning, default=2.0, metavar="S")
    meaning = "Python with Hugging Face's model, to compare with"
    rounds.add_argument("--peer-python", metavar="PATH", help=meaning)
    add_json_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> tuple[argparse.Namespace, list[Case]]:
    """Checks the arguments before TensorFlow is imported; returns them and the cases."""
    python = arguments.peer_python
    if python is not None and shutil.which(python) is None:
        raise InputMissingError("There is no such program.", where=f"--peer-python {python}")
    cases = [case for each in dict.fromkeys(arguments.suites) for case in cases_of(each, arguments)]
    for case in cases:
        if python is not None and case.peer_request is None:
            raise UsageError(
                f"Hugging Face's model cannot do the same work: {case.suite} {case.shape}.",
                where=f"--peer-python {python}",
                remedy="Take a plain Transformer-XL, full softmax and Adam, or no --peer-python.",
            )
    return arguments, cases


def default_experiment(suite: str, memory_length: int) -> ExperimentConfig:
    """Returns the settings of a suite without `--config`."""
    num_layers, num_heads = (6, 4) if suite == "train" else (12, 8)
    model = ModelConfig(
        vocabulary_size=256,
        num_layers=num_layers,
        hidden_dim=64 * num_heads,
        num_heads=num_heads,
        head_dim=64,
        intermediate_dim=256 * num_heads,
        segment_length=128,
        memory_length=memory_length,
    )
    training = TrainingConfig(global_batch_size=8, num_steps=_NUM_STEPS)
    evaluation = EvaluationConfig(batch_size=1)
    return ExperimentConfig(model=model, training=training, evaluation=evaluation)


def cases_of(suite: str, arguments: argparse.Namespace) -> list[Case]:
    """Lists the cases of a suite; settings that conflict are a UsageError."""
    if arguments.config is not None:
        experiments = [load_experiment(arguments.config, arguments.overrides)]
    else:
        memory_lengths = (128,) if suite == "train" else (1600, 3800)
        defaults = [default_experiment(suite, length) for length in memory_lengths]
        experiments = [override(each, arguments.overrides) for each in defaults]
    # Generation reads one token at a time, whatever the segment length.
    segments = None if suite == "generate" else arguments.segment_lengths
    cases: list[Case] = []
    for experiment, segment, memory in itertools.product(
        experiments, segments or [None], arguments.memory_lengths or [None]
    ):
        if suite == "train" and memory is None:
            memory = segment
        changed = _with_lengths(experiment, suite, segment, memory)
        training, evaluation = changed.training, changed.evaluation
        own = training.global_batch_size if suite == "train" else evaluation.batch_size
        rows = (1, 8) if suite == "generate" else (own,)
        cases += [_case(suite, changed, num_rows) for num_rows in rows]
    # Options can make two default shapes equal.
    return [case for place, case in enumerate(cases) if case not in cases[:place]]


def _with_lengths(
    experiment: ExperimentConfig, suite: str, segment: int | None, memory: int | None
) -> ExperimentConfig:
    if suite == "evaluate":
        own = experiment.evaluation
        segment, memory = segment or own.segment_length, memory or own.memory_length
        evaluation = own.replace(segment_length=None, memory_length=None)
        experiment = experiment.replace(evaluation=evaluation)
    lengths = {"segment_length": segment, "memory_length": memory}
    given = [f"model.{name}={length}" for name, length in lengths.items() if length is not None]
    return override(experiment, given)


def _case(suite: str, experiment: ExperimentConfig, num_rows: int) -> Case:
    model = experiment.model
    settings = experiment.training if suite == "train" else experiment.evaluation
    policy = "auto" if suite == "generate" else settings.dtype_policy
    segment_length = 1 if suite == "generate" else model.segment_length
    lengths, flops = f"T {segment_length:,}", None
    if isinstance(model, ModelConfig):
        lengths += f", M {model.effective_memory_length:,}"
        if suite == "train":
            flops = run_flops_per_token(experiment)
        else:
            flops = reading_flops_per_token(model.replace(segment_length=segment_length))
    return Case(
        suite,
        f"{model.num_layers} x {model.hidden_dim}, {lengths}, B {num_rows:,}, {policy}",
        {"work": suite, "experiment": experiment.to_dict(), "num_rows": num_rows},
        flops,
        _peer_request(suite, experiment, num_rows),
    )


def _peer_request(suite: str, experiment: ExperimentConfig, num_rows: int) -> dict[str, Any] | None:
    """Returns the request to the peer; `None` if its model would do different work."""
    model, optimizer = experiment.model, experiment.optimizer
    if not isinstance(model, ModelConfig) or (suite == "train" and optimizer.name != "adam"):
        return None
    sizes = {field: getattr(model, field) for field in _READ_BY_PEERS}
    models = (model, ModelConfig(**sizes))
    needs = [{**each.to_dict(), **dict.fromkeys(_WITHOUT_WORK)} for each in models]
    if needs[0] != needs[1] or model.embedding_dim not in (None, model.hidden_dim):
        return None
    rates = {"learning_rate": optimizer.learning_rate, "clip_norm": optimizer.clip_norm}
    return {"work": suite, "num_rows": num_rows, **sizes, **rates}


class Worker:
    """Process of `benchmark_worker`, ended by its context; a failed start is a JobError."""

    def __init__(self, command: Sequence[str], request: dict[str, Any], turn_seconds: float):
        self._command = command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `__exit__` closes it
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        try:
            self._ask(json.dumps(request))
            self.times = self._times_in(turn_seconds)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def turn(self) -> dict[str, Any]:
        """Returns the figures of one turn, with its `rate` in tokens per second."""
        figures = self._ask(str(self.times))
        return {**figures, "rate": figures["tokens"] / figures["seconds"]}

    def _times_in(self, turn_seconds: float) -> int:
        """Finds how often the work fits into a turn, and compiles its programs."""
        times = 1
        for _ in range(_MAX_TRIALS):
            self._ask(str(times))  # compiles
            wanted = times * turn_seconds / max(self._ask(str(times))["seconds"], 1e-9)
            if wanted < 2 * times:
                break
            times = min(round(wanted), _NUM_STEPS)
        return times

    def _ask(self, line: str) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            requests = cast(IO[str], self._process.stdin)
            requests.write(f"{line}\n")
            requests.flush()
        answer = cast(IO[str], self._process.stdout).readline()
        with contextlib.suppress(ValueError):
            return cast(dict[str, Any], json.loads(answer))
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise JobError(
            f"A measured process ended with exit code {self._process.wait()}: {said[:300]}",
            where=" ".join(self._command)[:200],
            remedy="Check that its packages are installed and that the memory suffices.",
        )


def _start_peer(case: Case, python: str, turn_seconds: float) -> tuple[str, Worker]:
    """Starts the peer in its faster precision."""
    command = [python, "-W", "ignore", benchmark_worker.__file__, _PEER]
    found: list[tuple[float, str, Worker]] = []
    for dtype in ("float32", "bfloat16"):
        worker = Worker(command, {**(case.peer_request or {}), "dtype": dtype}, turn_seconds)
        found.append((worker.turn()["rate"], dtype, worker))
    slower, faster = sorted(found, key=lambda each: each[0])
    slower[2].__exit__()
    return faster[1:]


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measures a case in rounds, every other one in the opposite order of sides."""
    say(f"measuring {case.suite}: {case.shape}")
    seconds, dtype = arguments.turn_seconds, ""
    command = [sys.executable, "-W", "ignore", "-m", benchmark_worker.__name__, "own"]
    with contextlib.ExitStack() as exits:
        folder = exits.enter_context(tempfile.TemporaryDirectory())
        own = Worker(command, {**case.request, "folder": folder}, seconds)
        workers = {"own": exits.enter_context(own)}
        if arguments.peer_python is not None:
            dtype, peer = _start_peer(case, arguments.peer_python, seconds)
            workers["peer"] = exits.enter_context(peer)
        turns: dict[str, list[dict[str, Any]]] = {side: [] for side in workers}
        for index in range(arguments.rounds):
            for side in list(workers)[:: -1 if index % 2 else 1]:
                turns[side].append(workers[side].turn())
    row: dict[str, Any] = {"suite": case.suite, "shape": case.shape, **_figures(turns["own"])}
    row["flops_per_token"] = case.flops_per_token
    if dtype:
        pairs = zip(turns["own"], turns["peer"], strict=True)
        ratios = spread([own["rate"] / peer["rate"] for own, peer in pairs])
        description = {"name": _PEER, "dtype": dtype, "times_faster": ratios}
        row["peer"] = description | _figures(turns["peer"])
    return row


def _figures(turns: list[dict[str, Any]]) -> dict[str, Any]:
    rates = spread([each["rate"] for each in turns])
    return {"tokens_per_second": rates, "peak_bytes": turns[-1]["peak_bytes"]}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns median, least, most and all values of the rounds."""
    middle = statistics.median(values)
    return {"median": middle, "least": min(values), "most": max(values), "rounds": [*values]}


def run(job: tuple[argparse.Namespace, list[Case]]) -> None:
    """Measures all cases and prints their figures."""
    arguments, cases = job
    rows = [measure(case, arguments) for case in cases]
    machine = {"cpus": os.cpu_count(), "processor": platform.processor() or platform.machine()}
    machine |= {"tensorflow": metadata.version("tensorflow"), "txl_tf": __version__}
    report = {"machine": machine, "rounds": arguments.rounds, "rows": rows}
    print(json.dumps(report) if arguments.json else describe(report))


def describe(report: dict[str, Any]) -> str:
    """Returns the figures as a table; time and FLOPs are relative to the suite's first row."""
    machine = report["machine"]
    head = ["suite", "shape", "tokens/s", "from - to", "time", "FLOPs", "memory"]
    if "peer" in report["rows"][0]:
        head += ["peer", "tokens/s", "ratio", "from - to"]
    cells, firsts = [head], dict[str, dict[str, Any]]()
    for row in report["rows"]:
        first, speed = firsts.setdefault(row["suite"], row), row["tokens_per_second"]
        time = first["tokens_per_second"]["median"] / speed["median"]
        flops = row["flops_per_token"]
        cells.append([row["suite"], row["shape"], _short(speed["median"])])
        cells[-1] += [f"{_short(speed['least'])} - {_short(speed['most'])}", f"{time:.2f}"]
        cells[-1] += [f"{flops / first['flops_per_token']:.2f}" if flops else ""]
        cells[-1] += [describe_bytes(row["peak_bytes"])]
        if "peer" in row:
            peer, ratio = row["peer"], row["peer"]["times_faster"]
            rate = _short(peer["tokens_per_second"]["median"])
            cells[-1] += [f"{peer['name']}, {peer['dtype']}", rate, f"{ratio['median']:.2f}"]
            cells[-1] += [f"{ratio['least']:.2f} - {ratio['most']:.2f}"]
    right = [place for place, name in enumerate(head) if name not in ("suite", "shape", "peer")]
    return (
        f"{machine['cpus']} CPUs, {machine['processor']}, TensorFlow {machine['tensorflow']}; "
        f"median of {report['rounds']} rounds\n{plain_table(cells, right=right)}\n"
        "time, FLOPs: of a token, relative to the first row of the suite"
    )


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
