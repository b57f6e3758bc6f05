"""Compiles the steps of an experiment for TPUs, without a TPU: `txl compile`.

    txl compile --config enwik8_large --topology v5e:4x4
    txl compile --config FILE --topology v4:2x2x4 --set training.rematerialize=true

The training step and the evaluation step of a run's replicas, as
`tf.distribute.TPUStrategy` runs them, go through the TPU compiler. With `--backend jax`
it is the training step of a mesh alone. A step that does not fit the chips is a result
with exit code 0: the settings with which it fits. The size of the programs themselves,
some percent of the memory of a large model, is not counted.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.errors import UsageError
from txl_tf.imports import is_on_jax
from txl_tf.tpu_compiler.compiled_program import CompiledProgram, hbm_at_once
from txl_tf.tpu_compiler.compiler import TpuCompiler, require_tpu_compiler
from txl_tf.tpu_compiler.topologies import EXAMPLES, Topology

from ..configs import load_experiment
from ..shell.arguments import add_config_argument, add_json_argument, add_override_argument
from ..shell.progress import plain_table, say

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
    add_json_argument(parser)
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
    if not (topology.chip.has_tensorflow or is_on_jax()):
        raise UsageError(
            "TPU7x has no TensorFlow.",
            where=f"--topology {arguments.topology}",
            remedy="Compile for JAX, on which `txl train` runs too: add --backend jax.",
        )
    require_tpu_compiler()
    return CompileJob(arguments, experiment, topology)


def run(job: CompileJob) -> None:
    """Compiles, and prints the figures of each program once they are known."""
    arguments, topology = job.arguments, job.topology
    report = {
        "config": arguments.config,
        "topology": topology.name,
        "num_chips": topology.num_chips,
        "num_replicas": topology.num_replicas,
        "dtype_policy": job.experiment.training.dtype_policy,
    }
    if not arguments.json:
        print("{config} on {topology}: {num_chips} chips, {num_replicas} replicas".format(**report))
    for part in compile_experiment(job.experiment, TpuCompiler(topology), say):
        report |= part
        if not arguments.json:
            print_part(part)
    if arguments.json:
        print(json.dumps(report))


def compile_experiment(
    experiment: ExperimentConfig, compiler: TpuCompiler, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Compiles program by program; yields each part of the report, in JSON types, once known.

    `say` gets lines of progress.
    """
    trainer, program = _compile_training(experiment, compiler, say)
    topology, rows = compiler.topology, _rows_per_replica(experiment, compiler)
    padding_rows = rows * topology.num_replicas - experiment.training.global_batch_size
    yield {
        "training": {
            "rows_per_replica": rows,
            "padding_rows": padding_rows,
            "dtype_policy": experiment.training.dtype_policy,
            **_figures(program, topology),
        }
    }
    evaluation, figures, shared_bytes = _compile_evaluation(experiment, trainer, compiler, say)
    together = hbm_at_once(program, evaluation, shared_bytes)
    yield {"evaluation": figures, "together": together}
    if not together["fits"]:
        settings = _fitting_settings(experiment, compiler, say, evaluation, shared_bytes)
        yield {"fitting_settings": settings}


def _rows_per_replica(experiment: ExperimentConfig, compiler: TpuCompiler) -> int:
    return experiment.training.rows_per_replica(compiler.topology.num_replicas)


def _compile_training(
    experiment: ExperimentConfig, compiler: TpuCompiler, say: Callable[[str], None]
) -> tuple[Any, CompiledProgram]:
    """Returns the trainer whose step was traced, and its compiled program."""
    rows, topology = _rows_per_replica(experiment, compiler), compiler.topology
    say(f"compiling the training step: {rows} rows per replica")
    if is_on_jax():
        return None, compiler.compile_on_jax(experiment, f"training-{rows}-rows")
    from txl_tf.tpu_compiler.run_programs import traced_trainer, training_program

    trainer = traced_trainer(experiment, topology.num_replicas, topology.chip.name)
    program = compiler.compile(training_program(trainer), f"training-{rows}-rows")
    say(f"  {_verdict(program.fits)}: {program.needed_bytes:,} bytes")
    return trainer, program


def _compile_evaluation(
    experiment: ExperimentConfig,
    trainer: Any,
    compiler: TpuCompiler,
    say: Callable[[str], None],
) -> tuple[CompiledProgram | None, dict[str, Any] | None, int]:
    """Returns the evaluation's program, its figures, and the bytes it shares with training."""
    evaluation = experiment.evaluation
    if trainer is None:
        say("no evaluation step is compiled: on JAX one device evaluates")
        return None, None, 0
    from txl_tf.tpu_compiler.run_programs import evaluation_program

    if evaluation.dynamic_learning_rate is not None:
        say("no evaluation step is compiled: dynamic evaluation runs on the host")
        return None, None, 0
    rows = -(-evaluation.batch_size // compiler.topology.num_replicas)
    say(f"compiling the evaluation step: {rows} rows per replica")
    lowered_program = evaluation_program(trainer)
    program = compiler.compile(lowered_program, "evaluation")
    values = {
        "rows_per_replica": rows,
        "segment_length": evaluation.segment_length or experiment.model.segment_length,
        "dtype_policy": evaluation.dtype_policy,
        "shared_bytes": lowered_program.variable_bytes,
        **_figures(program, compiler.topology),
    }
    return program, values, lowered_program.variable_bytes


def _fitting_settings(
    experiment: ExperimentConfig,
    compiler: TpuCompiler,
    say: Callable[[str], None],
    evaluation: CompiledProgram | None,
    shared_bytes: int,
) -> dict[str, Any] | None:
    """Returns the first settings with which training and evaluation fit together."""
    is_transformer = isinstance(experiment.model, ModelConfig)
    for changes in _SAVING:
        num_parts = changes.get("gradient_accumulation_steps", 1)
        is_possible = num_parts <= _rows_per_replica(experiment, compiler)
        if not is_possible or ("rematerialize" in changes and not is_transformer):
            continue
        say("trying " + ", ".join(f"{name}={value}" for name, value in changes.items()))
        training = experiment.training.replace(**changes)
        _, program = _compile_training(experiment.replace(training=training), compiler, say)
        if hbm_at_once(program, evaluation, shared_bytes)["fits"]:
            return {f"training.{name}": value for name, value in changes.items()}
    return None


def _figures(program: CompiledProgram, topology: Topology) -> dict[str, Any]:
    roofline = program.roofline(topology)
    return {"fits": program.fits, **dataclasses.asdict(program), "roofline": roofline}


def print_part(part: dict[str, Any]) -> None:
    """Prints a part of the report of `compile_experiment`."""
    for name in ("training", "evaluation"):
        if (values := part.get(name)) is not None:
            _print_program(name, values)
    if (together := part.get("together")) is not None:
        print(
            f"HBM of both programs, GiB: {_gibibytes(together['while_training_bytes'])} while "
            f"training, {_gibibytes(together['while_evaluating_bytes'])} while evaluating, of "
            f"{_gibibytes(together['limit_bytes'])}: {_verdict(together['fits'])}"
        )
    if "fitting_settings" in part:
        settings = (part["fitting_settings"] or {}).items()
        names = " ".join(f"--set {name}={value}" for name, value in settings).lower()
        remedy = "lower training.global_batch_size, or take more chips"
        print(f"all rows fit with {names}" if names else f"no setting suffices: {remedy}")


def _verdict(fits: bool) -> str:
    return "fits" if fits else "does not fit"


def _print_program(name: str, values: dict[str, Any]) -> None:
    need, limit = _gibibytes(values["needed_bytes"]), _gibibytes(values["limit_bytes"])
    print(f"\n{name}: {values['rows_per_replica']} rows per replica, {values['dtype_policy']}")
    print(f"attention: {values['attention']}")
    print(f"{_verdict(values['fits'])}: {need} of {limit} GiB, without the size of the program")
    if padding := values.get("padding_rows"):
        print(f"padding rows, which make the replicas equal and are not counted: {padding}")
    figures = {
        "HBM, GiB: arguments": _gibibytes(values["argument_bytes"]),
        "  further output": _gibibytes(values["output_bytes"]),
        "  temporary": _gibibytes(values["temporary_bytes"]),
        "MB all-reduced": f"{values['all_reduce_bytes'] / 1e6:.1f}",
        "TFLOP": f"{values['flops'] / 1e12:.3f}",
        "GB to and from HBM": f"{values['hbm_bytes'] / 1e9:.2f}",
        "at least, ms: arithmetic": f"{1000 * values['roofline']['flop_seconds']:.2f}",
        "  HBM": f"{1000 * values['roofline']['hbm_seconds']:.2f}",
        "  all-reduce": f"{1000 * values['roofline']['all_reduce_seconds']:.2f}",
    }
    print(plain_table([("per step", ""), *figures.items()], right=[1]))


def _gibibytes(num_bytes: float) -> str:
    return f"{num_bytes / _GIBIBYTE:.2f}"
