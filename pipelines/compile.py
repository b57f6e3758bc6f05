"""Compiles the steps of an experiment for TPUs, without a TPU: `txl compile`.

    txl compile --config enwik8_large --topology v5e:4x4
    txl compile --config FILE --topology v4:2x2x4 --set training.rematerialize=true --find-rows

What a run's replicas execute under `tf.distribute.TPUStrategy`, the training step
and the step of the evaluation, goes through the TPU compiler. What does not fit
the chips is a result like any other, with exit code 0, the number of rows that
does fit, and the settings with which all of them do.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.arguments import add_override_argument, load_experiment
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.tpu_compiler.chips import EXAMPLES, Topology
from txl_tf.tpu_compiler.compiler import (
    CompiledProgram,
    TpuCompiler,
    hbm_at_once,
    require_tpu_compiler,
)
from txl_tf.tpu_compiler.roofline import Roofline, Trial, largest_rows
from txl_tf.training.checkpoint_cost import CheckpointCost

# What saves memory, the cheapest first.
_SAVING = (
    {"gradient_accumulation_steps": 2},
    {"rematerialize": True},
    {"gradient_accumulation_steps": 4},
    {"rematerialize": True, "gradient_accumulation_steps": 2},
    {"rematerialize": True, "gradient_accumulation_steps": 4},
    {"rematerialize": True, "gradient_accumulation_steps": 8},
)

if TYPE_CHECKING:
    from collections.abc import Callable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument(
        "--config",
        metavar="NAME|FILE",
        required=True,
        help="named experiment or .json or .toml file",
    )
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
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--text-folder",
        metavar="DIR",
        help="existing folder that the compiled programs are written to, as text",
    )
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
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
    require_tpu_compiler()


def run(arguments: argparse.Namespace) -> None:
    """Compiles and prints the figures."""
    text_folder = None if arguments.text_folder is None else Path(arguments.text_folder)
    compiler = TpuCompiler(arguments.parsed_topology, text_folder)
    report = compile_experiment(
        arguments.experiment,
        compiler,
        find_rows=arguments.find_rows,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    report = {"config": arguments.config, **report}
    if arguments.json:
        print(json.dumps(report))
        return
    from pipelines.compilation_tables import print_report

    print_report(report)


def compile_experiment(
    experiment: ExperimentConfig,
    compiler: TpuCompiler,
    *,
    find_rows: bool = False,
    say: "Callable[[str], None]",
) -> dict[str, Any]:
    """Compiles the steps of an experiment.

    Args:
        experiment: `ExperimentConfig`.
        compiler: `TpuCompiler`.
        find_rows: bool. Whether the largest number of rows is looked for even
            if the experiment's fits; if it does not, it always is.
        say: function that is told what is being done.

    Returns:
        Dict of all figures, as JSON can hold it.
    """
    topology = compiler.topology
    training = _TrainingCompilation(experiment, compiler, say)
    program = training.compile(training.rows)
    trials: list[Trial] = []
    if find_rows or not program.fits:
        trials = training.search()
    evaluation, figures, shared_bytes = _compile_evaluation(experiment, compiler, say)
    together = hbm_at_once(program, evaluation, shared_bytes)
    settings = None
    if not together["fits"]:
        settings = training.fitting_settings(evaluation, shared_bytes)
    fitting = [trial.num_rows for trial in trials if trial.fits]
    checkpoint_cost = CheckpointCost.of(experiment)
    report = {
        "topology": topology.name,
        "num_chips": topology.num_chips,
        "num_replicas": topology.num_replicas,
        "dtype_policy": experiment.training.dtype_policy,
        "gradient_accumulation_steps": experiment.training.gradient_accumulation_steps,
        "rematerialize": experiment.training.rematerialize,
        "training": training.figures(training.rows),
        "largest_rows_per_replica": max(fitting, default=0) if trials else None,
        "largest": None,
        "trials": [vars(trial) for trial in trials],
        "checkpoint": checkpoint_cost.to_dict(),
        "evaluation": figures,
        "together": together,
        "fitting_settings": settings,
    }
    if fitting and max(fitting) != training.rows:
        report["largest"] = training.figures(max(fitting))
    return report


class _TrainingCompilation:
    """Compilation of the training step with different numbers of rows."""

    def __init__(
        self,
        experiment: ExperimentConfig,
        compiler: TpuCompiler,
        say: "Callable[[str], None]",
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
            replicas = self._compiler.topology.num_replicas
            program = training_program(self._with_rows(rows), replicas)
            self._programs[rows] = self._compiler.compile(program, f"training-{rows}-rows")
        return self._programs[rows]

    def search(self) -> list[Trial]:
        """Finds the largest number of rows that fits."""
        step = self._experiment.training.gradient_accumulation_steps
        return largest_rows(self._attempt, self._attempt(self.rows), step)

    def fitting_settings(
        self, evaluation: CompiledProgram | None, shared_bytes: int
    ) -> dict[str, Any] | None:
        """Returns the first settings with which all rows fit, the evaluation beside them."""
        is_transformer = isinstance(self._experiment.model, ModelConfig)
        for changes in _SAVING:
            num_parts = changes.get("gradient_accumulation_steps", 1)
            if num_parts > self.rows or ("rematerialize" in changes and not is_transformer):
                continue
            names = ", ".join(f"{name}={value}" for name, value in changes.items())
            self._say(f"trying {names}")
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
            **program.to_dict(),
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
    experiment: ExperimentConfig, compiler: TpuCompiler, say: "Callable[[str], None]"
) -> tuple[CompiledProgram | None, dict[str, Any] | None, int]:
    """The evaluation's program, what is known of it, and bytes that it shares with training."""
    from txl_tf.tpu_compiler.replica_program import evaluation_program

    evaluation = experiment.evaluation
    if evaluation.dynamic_learning_rate is not None:
        say("the evaluation runs on the host: its weights follow the text")
        return None, None, 0
    rows = -(-evaluation.batch_size // compiler.topology.num_replicas)
    say(f"compiling the evaluation step: {rows} rows per replica")
    lowered = evaluation_program(experiment, compiler.topology.num_replicas)
    program = compiler.compile(lowered, "evaluation")
    segment_length = evaluation.segment_length or experiment.model.segment_length
    values = {
        "rows": evaluation.batch_size,
        "rows_per_replica": rows,
        "segment_length": segment_length,
        "shared_bytes": lowered.variable_bytes,
        **program.to_dict(),
    }
    if program.fits:
        num_tokens = evaluation.batch_size * segment_length
        values |= _speed(program, compiler.topology, num_tokens)
    return program, values, lowered.variable_bytes


def _speed(program: CompiledProgram, topology: Topology, num_tokens: int) -> dict[str, Any]:
    """Costs per token of all replicas, and the speed that the chip's peaks allow."""
    roofline = Roofline.of(program, topology)
    seconds = roofline.step_seconds + roofline.all_reduce_seconds
    share = topology.num_replicas / num_tokens
    return {
        "roofline": roofline.to_dict(),
        "flops_per_token": program.flops * share,
        "bytes_accessed_per_token": program.bytes_accessed * share,
        "hbm_bytes_per_token": program.hbm_bytes * share,
        "tokens_per_second_per_chip": num_tokens / seconds / topology.num_chips,
    }


if __name__ == "__main__":
    from pipelines.command_line import run_job

    sys.exit(run_job("compile"))
