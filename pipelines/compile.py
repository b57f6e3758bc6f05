"""Compiles the steps of an experiment for TPUs, without a TPU: `txl compile`.

    txl compile --config enwik8_large --topology v5e:4x4
    txl compile --config FILE --topology v4:2x2x4 --set training.rematerialize=true --find-rows

The training step and the evaluation step of a run's replicas, as
`tf.distribute.TPUStrategy` runs them, go through the TPU compiler. A step that does
not fit the chips is a result with exit code 0: the largest number of rows that fits,
and the settings with which all rows fit.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.imports import require_extra
from txl_tf.models.sizes import CheckpointCost
from txl_tf.tpu_compiler.chips import EXAMPLES, Topology
from txl_tf.tpu_compiler.compiler import (
    CompiledProgram,
    TpuCompiler,
    hbm_at_once,
    require_tpu_compiler,
)
from txl_tf.tpu_compiler.roofline import Roofline, Trial, largest_rows

from .arguments import (
    add_config_argument,
    add_json_argument,
    add_override_argument,
    load_experiment,
)
from .progress import say

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
_NUM_OPERATIONS = 8
_NUM_SAVED_STEPS = 20
_HINT = "float32 was compiled; see also --set training.dtype_policy=mixed_bfloat16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_config_argument(parser, required=True)
    parser.add_argument(
        "--topology",
        metavar="CHIP:SHAPE",
        required=True,
        help=f"the chips and how they are wired, such as {', '.join(EXAMPLES)}",
    )
    parser.add_argument(
        "--global-batch-size",
        type=int,
        metavar="N",
        help="rows of all replicas together (default: the experiment's)",
    )
    parser.add_argument(
        "--find-rows",
        action="store_true",
        help="find the largest number of rows that fits, even if the experiment's does",
    )
    add_json_argument(parser)
    parser.add_argument(
        "--text-folder",
        metavar="DIR",
        help="existing folder that the compiled programs are written to, as text",
    )
    parser.add_argument(
        "--save-program",
        metavar="DIR",
        help="write the training step as StableHLO, with the arguments of the first steps on "
        "--data, to this folder instead of compiling it",
    )
    parser.add_argument("--data", metavar="DIR", help="prepared data set, for --save-program")
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    overrides = list(arguments.overrides)
    if arguments.global_batch_size is not None:
        overrides.append(f"training.global_batch_size={arguments.global_batch_size}")
    arguments.experiment = load_experiment(arguments.config, overrides)
    arguments.parsed_topology = Topology.parse(arguments.topology)
    if arguments.text_folder is not None and not Path(arguments.text_folder).is_dir():
        raise InputMissingError(
            "There is no such folder.", where=f"--text-folder {arguments.text_folder}"
        )
    num_rows = arguments.experiment.training.global_batch_size
    if arguments.parsed_topology.num_replicas > num_rows:
        raise UsageError(
            "There are more replicas than rows.",
            where=f"--topology {arguments.topology}, training.global_batch_size={num_rows}",
            remedy="Take fewer chips or a larger --global-batch-size.",
        )
    if arguments.save_program is None:
        require_tpu_compiler()
    elif arguments.data is None:
        raise UsageError("The program is saved with batches of a data set.", where="--data")
    else:
        require_extra("tpu-kernel", "jax", purpose="Saving a program", where="--save-program")


def run(arguments: argparse.Namespace) -> None:
    """Compiles and prints the figures, or saves the program."""
    if arguments.save_program is not None:
        _save_program(arguments)
        return
    text_folder = arguments.text_folder
    compiler = TpuCompiler(arguments.parsed_topology, text_folder and Path(text_folder))
    report = compile_experiment(
        arguments.experiment, compiler, find_rows=arguments.find_rows, say=say
    )
    report = {"config": arguments.config, **report}
    if arguments.json:
        print(json.dumps(report))
    else:
        print_report(report)


def _save_program(arguments: argparse.Namespace) -> None:
    from txl_tf.tpu_compiler.replica_program import save_training_program

    from .training_data import TrainingData

    num_replicas = arguments.parsed_topology.num_replicas
    training = arguments.experiment.training
    num_steps = min(training.num_steps, _NUM_SAVED_STEPS)
    rows = training.rows_per_replica(num_replicas)
    reader = TrainingData(arguments.data, arguments.experiment).reader
    batches = reader.dataset_fn(0, range(rows * num_replicas), rows, num_steps)
    folder = Path(arguments.save_program)
    save_training_program(arguments.experiment, num_replicas, batches, folder)
    say(f"saved the program of {num_replicas} replicas and {num_steps} steps in {folder}")


def compile_experiment(
    experiment: ExperimentConfig,
    compiler: TpuCompiler,
    *,
    find_rows: bool = False,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Compiles the steps of an experiment and returns all figures as JSON values.

    With `find_rows`, the largest number of rows is searched even if the experiment fits. `say` gets
    lines of progress.
    """
    topology, settings = compiler.topology, experiment.training
    training = _TrainingCompilation(experiment, compiler, say)
    program = training.compile(training.rows)
    trials = training.search() if find_rows or not program.fits else []
    evaluation, figures, shared_bytes = _compile_evaluation(experiment, compiler, say)
    together = hbm_at_once(program, evaluation, shared_bytes)
    fitting = [trial.num_rows for trial in trials if trial.fits]
    largest = max(fitting, default=0)
    return {
        "topology": topology.name,
        "num_chips": topology.num_chips,
        "num_replicas": topology.num_replicas,
        "dtype_policy": settings.dtype_policy,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "rematerialize": settings.rematerialize,
        "attention": training.attention,
        "training": training.figures(training.rows),
        "largest_rows_per_replica": largest if trials else None,
        "largest": training.figures(largest) if largest not in (0, training.rows) else None,
        "trials": [vars(trial) for trial in trials],
        "checkpoint": CheckpointCost.of(experiment).to_dict(),
        "evaluation": figures,
        "together": together,
        "fitting_settings": None
        if together["fits"]
        else training.fitting_settings(evaluation, shared_bytes),
    }


class _TrainingCompilation:
    """Compilation of the training step with different numbers of rows."""

    def __init__(
        self, experiment: ExperimentConfig, compiler: TpuCompiler, say: Callable[[str], None]
    ) -> None:
        self._experiment = experiment
        self._compiler = compiler
        self._say = say
        self._programs: dict[int, CompiledProgram] = {}
        self.rows = experiment.training.rows_per_replica(compiler.topology.num_replicas)

    def compile(self, rows: int) -> CompiledProgram:
        """Compiles the step, once for each number of rows per replica."""
        from txl_tf.tpu_compiler.replica_program import training_program

        if rows not in self._programs:
            self._say(f"compiling the training step: {rows} rows per replica")
            chip, replicas = self._compiler.topology.chip.name, self._compiler.topology.num_replicas
            program = training_program(self._with_rows(rows), replicas, chip)
            if rows == self.rows:
                self.attention = program.attention
            self._programs[rows] = self._compiler.compile(program, f"training-{rows}-rows")
        return self._programs[rows]

    def search(self) -> list[Trial]:
        """Finds the largest number of rows that fits."""
        step = self._experiment.training.gradient_accumulation_steps
        return largest_rows(self._attempt, self._attempt(self.rows), step)

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
            other = _TrainingCompilation(changed, self._compiler, self._say)
            program = other.compile(other.rows)
            if hbm_at_once(program, evaluation, shared_bytes)["fits"]:
                return {f"training.{name}": value for name, value in changes.items()}
        return None

    def _attempt(self, rows: int) -> Trial:
        program = self.compile(rows)
        self._say(f"  {'fits' if program.fits else 'does not fit'}: {program.needed_bytes} bytes")
        return Trial(rows, program.fits, program.needed_bytes, program.limit_bytes)

    def figures(self, rows: int) -> dict[str, Any]:
        """Returns the figures of the training step with this number of rows per replica."""
        topology = self._compiler.topology
        program = self._programs[rows]
        global_batch_size = self._with_rows(rows).training.global_batch_size
        values = {
            "rows_per_replica": rows,
            "global_batch_size": global_batch_size,
            "padding_rows": rows * topology.num_replicas - global_batch_size,
            **dataclasses.asdict(program),
        }
        if program.fits:
            num_tokens = global_batch_size * self._experiment.model.segment_length
            values |= _speed(program, topology, num_tokens)
        return values

    def _with_rows(self, rows: int) -> ExperimentConfig:
        if rows == self.rows:
            return self._experiment
        global_batch_size = rows * self._compiler.topology.num_replicas
        changed = self._experiment.training.replace(global_batch_size=global_batch_size)
        return self._experiment.replace(training=changed)


def _compile_evaluation(
    experiment: ExperimentConfig, compiler: TpuCompiler, say: Callable[[str], None]
) -> tuple[CompiledProgram | None, dict[str, Any] | None, int]:
    """Returns the evaluation's program, its figures, and the bytes that it shares with training."""
    from txl_tf.tpu_compiler.replica_program import evaluation_program

    evaluation = experiment.evaluation
    if evaluation.dynamic_learning_rate is not None:
        say("the evaluation runs on the host: its weights follow the text")
        return None, None, 0
    topology = compiler.topology
    rows = -(-evaluation.batch_size // topology.num_replicas)
    say(f"compiling the evaluation step: {rows} rows per replica")
    lowered = evaluation_program(experiment, topology.num_replicas, topology.chip.name)
    program = compiler.compile(lowered, "evaluation")
    values = {
        "rows": evaluation.batch_size,
        "rows_per_replica": rows,
        "segment_length": evaluation.segment_length or experiment.model.segment_length,
        "dtype_policy": evaluation.dtype_policy,
        "tokens_per_step": lowered.num_tokens,
        "attention": lowered.attention,
        "shared_bytes": lowered.variable_bytes,
        **dataclasses.asdict(program),
    }
    if program.fits:
        values |= _speed(program, topology, lowered.num_tokens)
    return program, values, lowered.variable_bytes


def _speed(program: CompiledProgram, topology: Topology, num_tokens: int) -> dict[str, Any]:
    """Returns the costs per token of all replicas, and the speed at the chip's peaks."""
    roofline = Roofline.of(program, topology)
    seconds = roofline.step_seconds + roofline.all_reduce_seconds
    share = topology.num_replicas / num_tokens
    return {
        "roofline": dataclasses.asdict(roofline) | {"step_seconds": roofline.step_seconds},
        "flops_per_token": program.flops * share,
        "bytes_accessed_per_token": program.bytes_accessed * share,
        "hbm_bytes_per_token": program.hbm_bytes * share,
        "tokens_per_second_per_chip": num_tokens / seconds / topology.num_chips,
    }


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """Prints the report of `compile_experiment`, with `config` added, as tables."""
    console = console or Console()
    console.print(
        f"{report['config']} on {report['topology']}: {report['num_chips']} chips, "
        f"{report['num_replicas']} replicas, {report['dtype_policy']}"
    )
    console.print(f"attention: {report['attention']}", highlight=False)
    console.print(_verdict(report))
    columns = [("training", report["training"])]
    if report["largest"] is not None:
        columns.append(("training, most rows", report["largest"]))
    if (evaluation := report["evaluation"]) is not None:
        columns.append(("evaluation", evaluation))
        where = f"in evaluation, {evaluation['dtype_policy']}"
        console.print(f"{where}: {evaluation['attention']}", highlight=False)
    console.print(_figures([column for column in columns if column[1]["fits"]]))
    for name, values in columns:
        if values["fits"] and name != "evaluation":
            console.print(_work(name, values))
    cost = report["checkpoint"]
    console.print(
        f"checkpoint: {_gibibytes(cost['bytes'])} GiB, as much room in /tmp for gs://, about "
        f"{cost['upload_seconds']:.0f} s; {'fits' if cost['fits_notice'] else 'does not fit'} "
        "the 30 s that a spot VM is given",
        highlight=False,
    )
    if report["dtype_policy"] == "float32":
        console.print(_HINT, highlight=False)


def _verdict(report: dict[str, Any]) -> str:
    training = report["training"]
    rows, padding = training["rows_per_replica"], training["padding_rows"]
    lines = [
        f"{'fits' if training['fits'] else 'does not fit'}: {rows} rows per replica, "
        f"{_gibibytes(training['needed_bytes'])} of {_gibibytes(training['limit_bytes'])} GiB"
    ]
    if padding:
        lines.append(
            f"{training['global_batch_size']} rows are not a multiple of "
            f"{report['num_replicas']} replicas: {padding} more are computed and not counted"
        )
    if report["largest_rows_per_replica"] is not None:
        lines.append(f"at most {report['largest_rows_per_replica']} rows per replica fit")
    lines += _verdict_on_memory(report)
    return "\n".join(lines)


def _verdict_on_memory(report: dict[str, Any]) -> list[str]:
    """Describes the memory of training and evaluation together, and whether it fits."""
    evaluation, together = report["evaluation"], report["together"]
    lines = []
    if evaluation is not None and not evaluation["fits"]:
        lines.append(f"the evaluation's {evaluation['rows']} rows do not fit")
    elif report["training"]["fits"]:
        limit = _gibibytes(together["limit_bytes"])
        lines.append(
            f"in HBM at once: {_gibibytes(together['while_training_bytes'])} GiB while training, "
            f"{_gibibytes(together['while_evaluating_bytes'])} while evaluating, of {limit}"
        )
    if not together["fits"]:
        settings = report["fitting_settings"]
        names = " ".join(f"--set {name}={value}" for name, value in (settings or {}).items())
        fits = f"all rows fit with {names.lower()}" if names else "no setting makes all rows fit"
        lines.append(fits)
    return lines


def _figures(columns: list[tuple[str, dict[str, Any]]]) -> Table:
    table = Table("per step", *(name for name, _ in columns))
    rows = {
        "rows per replica": lambda v: str(v["rows_per_replica"]),
        "HBM, GiB: arguments": lambda v: _gibibytes(v["argument_bytes"]),
        "  further output": lambda v: _gibibytes(v["output_bytes"]),
        "  temporary": lambda v: _gibibytes(v["temporary_bytes"]),
        "  program": lambda v: _gibibytes(v["code_bytes"]),
        "  all of a replica's": lambda v: (
            f"{_gibibytes(v['needed_bytes'])} of {_gibibytes(v['limit_bytes'])}"
        ),
        "TFLOP": lambda v: f"{v['flops'] / 1e12:.3f}",
        "GB to and from HBM": lambda v: f"{v['hbm_bytes'] / 1e9:.2f}",
        "GB accessed, by the compiler's count": lambda v: f"{v['bytes_accessed'] / 1e9:.2f}",
        "MB all-reduced": lambda v: f"{v['all_reduce_bytes'] / 1e6:.1f}",
        "MFLOP per token": lambda v: f"{v['flops_per_token'] / 1e6:.1f}",
        "KB to and from HBM per token": lambda v: f"{v['hbm_bytes_per_token'] / 1e3:.1f}",
        "at least, ms: arithmetic": lambda v: f"{1000 * v['roofline']['flop_seconds']:.2f}",
        "  HBM": lambda v: f"{1000 * v['roofline']['hbm_seconds']:.2f}",
        "  all-reduce": lambda v: f"{1000 * v['roofline']['all_reduce_seconds']:.2f}",
        "at most, tokens/s per chip": lambda v: f"{v['tokens_per_second_per_chip']:,.0f}",
    }
    for name, text_of in rows.items():
        table.add_row(name, *(text_of(values) for _, values in columns))
    return table


def _work(name: str, values: dict[str, Any]) -> Table:
    """Describes where memory traffic and estimated cycles go."""
    table = Table(f"{name}: kind of work, then operation", "times", "HBM %", "cycles %")
    categories, operations = values["details"]["categories"], values["details"]["operations"]
    total_bytes = max(values["hbm_bytes"], 1)
    total_cycles = max(sum(group["estimated_cycles"] for group in categories.values()), 1)
    for title, group in [*categories.items(), *list(operations.items())[:_NUM_OPERATIONS]]:
        bytes_share = 100 * group["hbm_bytes"] / total_bytes
        cycles_share = 100 * group["estimated_cycles"] / total_cycles
        table.add_row(title, str(group["count"]), f"{bytes_share:.1f}", f"{cycles_share:.1f}")
    return table


def _gibibytes(num_bytes: float) -> str:
    return f"{num_bytes / _GIBIBYTE:.2f}"
