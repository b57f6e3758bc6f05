"""Compiles the steps of an experiment for TPUs, without a TPU: `txl compile`.

    txl compile --config enwik8_large --topology v5e:4x4
    txl compile --config FILE --topology v4:2x2x4 --set training.rematerialize=true --find-rows

The training step and the evaluation step of a run's replicas, as
`tf.distribute.TPUStrategy` runs them, go through the TPU compiler. A step that does
not fit the chips is a result with exit code 0: the largest number of rows that fits,
and the settings with which all rows fit. The size of the programs themselves, some
percent of the memory of a large model, is only counted with --code.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.errors import UsageError
from txl_tf.imports import require_extra
from txl_tf.models.sizes import num_adapter_parameters, num_parameters, optimizer_copies
from txl_tf.tpu_compiler.compiler import (
    CompiledProgram,
    TpuCompiler,
    hbm_at_once,
    require_tpu_compiler,
)
from txl_tf.tpu_compiler.topologies import EXAMPLES, Topology

from .arguments import add_config_argument, add_json_argument, add_override_argument
from .configs import load_experiment
from .progress import plain_table, say

NOTICE_SECONDS = 30.0
"""Notice of a spot VM's end: files not in the store by then are lost."""
# A client sends one stream: 10 GB took one to two minutes.
_UPLOAD_BYTES_PER_SECOND = 100e6
# Settings that save memory, the cheapest first.
_SAVING = (
    {"gradient_accumulation_steps": 2},
    {"rematerialize": True},
    {"gradient_accumulation_steps": 4},
    {"rematerialize": True, "gradient_accumulation_steps": 2},
    {"rematerialize": True, "gradient_accumulation_steps": 4},
    {"rematerialize": True, "gradient_accumulation_steps": 8},
)
_GIBIBYTE = 2**30
_NUM_SAVED_STEPS = 20
_MAX_ROWS = 4096
_RESOLUTION = 50


@dataclasses.dataclass(frozen=True)
class CompileJob:
    """Checked arguments of `txl compile`, and what they name."""

    arguments: argparse.Namespace
    experiment: ExperimentConfig
    topology: Topology


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_config_argument(parser, required=True)
    parser.add_argument(
        "--topology",
        metavar="CHIP:SHAPE",
        required=True,
        help=f"chips and their arrangement, such as {', '.join(EXAMPLES)}",
    )
    parser.add_argument(
        "--find-rows",
        action="store_true",
        help="find the most rows per replica that fit (default: only if the experiment does not)",
    )
    parser.add_argument(
        "--code",
        action="store_true",
        help="also generate the code, to count its size and to compile it whole; takes minutes",
    )
    add_json_argument(parser)
    parser.add_argument(
        "--save-program",
        metavar="DIR",
        help="write the training step as StableHLO, with the arguments of the first steps on "
        "--data, to this folder instead of compiling it",
    )
    parser.add_argument("--data", metavar="DIR", help="prepared data set, for --save-program")
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> CompileJob:
    """Checks the arguments before TensorFlow is imported."""
    experiment = load_experiment(arguments.config, arguments.overrides)
    experiment = experiment.with_policy("mixed_bfloat16")
    topology = Topology.parse(arguments.topology)
    num_rows = experiment.training.global_batch_size
    if topology.num_replicas > num_rows:
        raise UsageError(
            f"The {topology.num_replicas} replicas are more than the {num_rows} rows of a batch.",
            where=f"--topology {arguments.topology}, training.global_batch_size={num_rows}",
            remedy="Take fewer chips, or more rows by --set training.global_batch_size=N.",
        )
    if arguments.save_program is None:
        require_tpu_compiler()
    elif arguments.data is None:
        raise UsageError("--save-program needs --data.", where="--data", remedy="Add --data DIR.")
    else:
        require_extra("tpu-kernel", "jax", purpose="Saving a program", where="--save-program")
    return CompileJob(arguments, experiment, topology)


def run(job: CompileJob) -> None:
    """Compiles and prints the figures of each program once known, or saves the program."""
    arguments, topology = job.arguments, job.topology
    if arguments.save_program is not None:
        _save_program(job)
        return
    report = {
        "config": arguments.config,
        "topology": topology.name,
        "num_chips": topology.num_chips,
        "num_replicas": topology.num_replicas,
        "dtype_policy": job.experiment.training.dtype_policy,
    }
    if not arguments.json:
        print("{config} on {topology}: {num_chips} chips, {num_replicas} replicas".format(**report))
    compiler = TpuCompiler(topology, arguments.code)
    for part in compile_experiment(job.experiment, compiler, say, arguments.find_rows):
        report |= part
        if not arguments.json:
            print_part(part)
    if arguments.json:
        print(json.dumps(report))


def _save_program(job: CompileJob) -> None:
    from txl_tf.tpu_compiler.program import save_training_program

    from .training_data import TrainingData

    num_replicas, training = job.topology.num_replicas, job.experiment.training
    num_steps = min(training.num_steps, _NUM_SAVED_STEPS)
    rows = training.rows_per_replica(num_replicas)
    reader = TrainingData(job.arguments.data, job.experiment).reader
    batches = reader.dataset_fn(0, range(rows * num_replicas), rows, num_steps)
    folder = Path(job.arguments.save_program)
    save_training_program(job.experiment, num_replicas, batches, folder)
    say(f"saved the program of {num_replicas} replicas, {num_steps} steps in {folder}")


def compile_experiment(
    experiment: ExperimentConfig,
    compiler: TpuCompiler,
    say: Callable[[str], None],
    find_rows: bool = False,
) -> Iterator[dict[str, Any]]:
    """Compiles program by program; yields each part of the report, in JSON types, once known.

    With `find_rows`, the largest number of rows is searched even if the experiment fits. `say` gets
    lines of progress.
    """
    step = _TrainingStep(experiment, compiler, say)
    program = step.compile(step.rows)
    yield {"training": step.figures(step.rows, program)}
    evaluation, figures, shared_bytes = step.compile_evaluation()
    together = hbm_at_once(program, evaluation, shared_bytes)
    yield {"evaluation": figures, "together": together}
    yield {"checkpoint": checkpoint_cost(experiment)}
    if not together["fits"]:
        yield {"fitting_settings": step.fitting_settings(evaluation, shared_bytes)}
    if find_rows or not program.fits:
        num_parts = experiment.training.gradient_accumulation_steps
        trials = largest_rows(step.compile, {step.rows: program}, num_parts)
        largest = max((rows for rows, each in trials.items() if each.fits), default=0)
        is_new = largest not in (0, step.rows)
        yield {
            "trials": {str(rows): each.needed_bytes for rows, each in trials.items()},
            "largest_rows_per_replica": largest,
            "largest": step.figures(largest, trials[largest]) if is_new else None,
        }


class _TrainingStep:
    """Compilation of a training step with different numbers of rows, and of its evaluation."""

    def __init__(
        self, experiment: ExperimentConfig, compiler: TpuCompiler, say: Callable[[str], None]
    ) -> None:
        self._experiment, self._compiler, self._say = experiment, compiler, say
        self._trainer: Any = None
        self.rows = experiment.training.rows_per_replica(compiler.topology.num_replicas)

    def compile(self, rows: int) -> CompiledProgram:
        """Compiles the step with a number of rows per replica, at first its own."""
        from txl_tf.tpu_compiler.program import traced_trainer, training_program

        self._say(f"compiling the training step: {rows} rows per replica")
        topology = self._compiler.topology
        trainer = traced_trainer(self._with_rows(rows), topology.num_replicas, topology.chip.name)
        self._trainer = self._trainer or trainer
        program = self._compiler.compile(training_program(trainer), f"training-{rows}-rows")
        self._say(f"  {_verdict(program.fits)}: {program.needed_bytes:,} bytes")
        return program

    def compile_evaluation(self) -> tuple[CompiledProgram | None, dict[str, Any] | None, int]:
        """Returns the evaluation's program, its figures, and the bytes it shares with training."""
        from txl_tf.tpu_compiler.program import evaluation_program

        evaluation, topology = self._experiment.evaluation, self._compiler.topology
        if evaluation.dynamic_learning_rate is not None:
            self._say("no evaluation step is compiled: dynamic evaluation runs on the host")
            return None, None, 0
        rows = -(-evaluation.batch_size // topology.num_replicas)
        self._say(f"compiling the evaluation step: {rows} rows per replica")
        lowered = evaluation_program(self._trainer)
        program = self._compiler.compile(lowered, "evaluation")
        values = {
            "rows_per_replica": rows,
            "segment_length": evaluation.segment_length or self._experiment.model.segment_length,
            "dtype_policy": evaluation.dtype_policy,
            "shared_bytes": lowered.variable_bytes,
            **_figures(program, topology, lowered.num_tokens),
        }
        return program, values, lowered.variable_bytes

    def fitting_settings(
        self, evaluation: CompiledProgram | None, shared_bytes: int
    ) -> dict[str, Any] | None:
        """Returns the first settings with which training and evaluation fit together."""
        is_transformer = isinstance(self._experiment.model, ModelConfig)
        for changes in _SAVING:
            num_parts = changes.get("gradient_accumulation_steps", 1)
            if num_parts > self.rows or ("rematerialize" in changes and not is_transformer):
                continue
            self._say("trying " + ", ".join(f"{name}={value}" for name, value in changes.items()))
            training = self._experiment.training.replace(**changes)
            changed = self._experiment.replace(training=training)
            program = _TrainingStep(changed, self._compiler, self._say).compile(self.rows)
            if hbm_at_once(program, evaluation, shared_bytes)["fits"]:
                return {f"training.{name}": value for name, value in changes.items()}
        return None

    def figures(self, rows: int, program: CompiledProgram) -> dict[str, Any]:
        """Returns the figures of the training step with this number of rows per replica."""
        topology, experiment = self._compiler.topology, self._with_rows(rows)
        num_rows = experiment.training.global_batch_size
        return {
            "rows_per_replica": rows,
            "padding_rows": rows * topology.num_replicas - num_rows,
            "dtype_policy": experiment.training.dtype_policy,
            **_figures(program, topology, num_rows * experiment.model.segment_length),
        }

    def _with_rows(self, rows: int) -> ExperimentConfig:
        if rows == self.rows:
            return self._experiment
        global_batch_size = rows * self._compiler.topology.num_replicas
        changed = self._experiment.training.replace(global_batch_size=global_batch_size)
        return self._experiment.replace(training=changed)


def _figures(program: CompiledProgram, topology: Topology, num_tokens: int) -> dict[str, Any]:
    """Returns memory, costs per token of all replicas, and the speed at the chip's peaks."""
    roofline = program.roofline(topology)
    seconds = roofline["step_seconds"] + roofline["all_reduce_seconds"]
    share = topology.num_replicas / num_tokens
    return {
        "tokens_per_step": num_tokens,
        "fits": program.fits,
        **dataclasses.asdict(program),
        "roofline": roofline,
        "flops_per_token": program.flops * share,
        "hbm_bytes_per_token": program.hbm_bytes * share,
        "tokens_per_second_per_chip": num_tokens / seconds / topology.num_chips,
    }


def checkpoint_cost(experiment: ExperimentConfig) -> dict[str, Any]:
    """Returns the most bytes of a checkpoint, its upload seconds, and if a notice is enough."""
    model, training = experiment.model, experiment.training
    has_average = training.average_weights_from_step is not None
    copies = 1 + optimizer_copies(experiment.optimizer) + has_average
    num_stored = num_parameters(model)
    if training.adapter_rank is not None and isinstance(model, ModelConfig):
        num_stored = num_adapter_parameters(model, training.adapter_rank)
    num_bytes = 4 * copies * num_stored
    # Some vectors of a recurrent model are negligible beside millions of weights.
    if isinstance(model, ModelConfig):
        width = 4 if training.dtype_policy == "float32" else 2
        row_bytes = model.num_layers * model.memory_length * model.hidden_dim * width
        num_bytes += training.global_batch_size * row_bytes
    seconds = num_bytes / _UPLOAD_BYTES_PER_SECOND
    fits_notice = seconds <= NOTICE_SECONDS
    return {"bytes": num_bytes, "upload_seconds": seconds, "fits_notice": fits_notice}


def largest_rows(
    compile_rows: Callable[[int], CompiledProgram], trials: dict[int, CompiledProgram], step: int
) -> dict[int, CompiledProgram]:
    """Finds the largest number of rows, a multiple of `step`, that fits; adds to the trials.

    Memory grows almost linearly with the rows, so each guess is where the line through the two
    trials nearest to the limit meets it, within the known bounds; if guesses stop closing in, it
    bisects. The largest trial that fits is exact below 100 rows and else within 2 %, or
    `_MAX_ROWS`; no trial fits if `step` rows do not.
    """
    while True:
        low = max((rows for rows, each in trials.items() if each.fits), default=0)
        high = min((rows for rows, each in trials.items() if not each.fits), default=None)
        high = max(_MAX_ROWS + step if high is None else high, low)
        # One row of hundreds is not worth a compilation.
        if high - low <= max(step, low // _RESOLUTION):
            return trials
        is_slow = len(trials) > 4 and high <= _MAX_ROWS
        guess = ((low + high) // 2 if is_slow else _guess(trials)) // step * step
        guess = min(max(guess, low + step), high - step)
        trials[guess] = compile_rows(guess)


def _guess(trials: dict[int, CompiledProgram]) -> int:
    excess = {rows: each.needed_bytes - each.limit_bytes for rows, each in trials.items()}
    near, *others = sorted(trials, key=lambda rows: abs(excess[rows]))
    if not others:
        # The part that does not depend on rows is still unknown.
        return int(near * min(4.0, trials[near].limit_bytes / max(trials[near].needed_bytes, 1)))
    slope = (excess[others[0]] - excess[near]) / (others[0] - near)
    if slope > 0:
        return int(near - excess[near] / slope)
    last = [*trials][-1]
    return last * 2 if trials[last].fits else last // 2


def print_part(part: dict[str, Any]) -> None:
    """Prints a part of the report of `compile_experiment`."""
    for name, title in (("training", "training"), ("evaluation", "evaluation"), ("largest", "")):
        if (values := part.get(name)) is not None:
            _print_program(title or "training with the most rows", values)
    if (together := part.get("together")) is not None:
        print(
            f"HBM of both programs, GiB: {_gibibytes(together['while_training_bytes'])} while "
            f"training, {_gibibytes(together['while_evaluating_bytes'])} while evaluating, of "
            f"{_gibibytes(together['limit_bytes'])}: {_verdict(together['fits'])}"
        )
    if "fitting_settings" in part:
        settings = (part["fitting_settings"] or {}).items()
        names = " ".join(f"--set {name}={value}" for name, value in settings).lower()
        print(f"all rows fit with {names}" if names else "no setting tried makes all rows fit")
    if "largest_rows_per_replica" in part:
        print(f"at most {part['largest_rows_per_replica']} rows per replica fit")
    if (cost := part.get("checkpoint")) is not None:
        print(
            f"checkpoint: {_gibibytes(cost['bytes'])} GiB, and for gs:// as much in /tmp; upload "
            f"takes about {cost['upload_seconds']:.0f} s and {_verdict(cost['fits_notice'])} "
            "the 30 s of notice of a spot VM"
        )


def _verdict(fits: bool) -> str:
    return "fits" if fits else "does not fit"


def _print_program(name: str, values: dict[str, Any]) -> None:
    rows, roofline = values["rows_per_replica"], values["roofline"]
    needed, limit = _gibibytes(values["needed_bytes"]), _gibibytes(values["limit_bytes"])
    print(f"\n{name}: {rows} rows per replica, {values['dtype_policy']}")
    print(f"attention: {values['attention']}")
    print(f"{_verdict(values['fits'])}: {needed} of {limit} GiB", end="")
    print(", without the size of the program: see --code" if values["code_bytes"] is None else "")
    if padding := values.get("padding_rows"):
        print(f"padding rows, which make the replicas equal and are not counted: {padding}")
    figures = {
        "HBM, GiB: arguments": _gibibytes(values["argument_bytes"]),
        "  further output": _gibibytes(values["output_bytes"]),
        "  temporary": _gibibytes(values["temporary_bytes"]),
        "  program": _gibibytes(values["code_bytes"] or 0),
        "TFLOP": f"{values['flops'] / 1e12:.3f}",
        "GB to and from HBM": f"{values['hbm_bytes'] / 1e9:.2f}",
        "MB all-reduced": f"{values['all_reduce_bytes'] / 1e6:.1f}",
        "MFLOP per token": f"{values['flops_per_token'] / 1e6:.1f}",
        "KB to and from HBM per token": f"{values['hbm_bytes_per_token'] / 1e3:.1f}",
        "at least, ms: arithmetic": f"{1000 * roofline['flop_seconds']:.2f}",
        "  HBM": f"{1000 * roofline['hbm_seconds']:.2f}",
        "  all-reduce": f"{1000 * roofline['all_reduce_seconds']:.2f}",
        "at most, tokens/s per chip": f"{values['tokens_per_second_per_chip']:,.0f}",
    }
    if values["code_bytes"] is None:
        del figures["  program"]
    if not values["fits"]:
        figures = dict(list(figures.items())[:3])
    print(plain_table([("per step", ""), *figures.items()], right=[1]))


def _gibibytes(num_bytes: float) -> str:
    return f"{num_bytes / _GIBIBYTE:.2f}"
