"""`txl compile`: its refusals, its output and the compiler's errors."""

import collections
import dataclasses
import importlib.util
import json

import pytest

from pipelines.jobs.compile import compile_experiment, print_part
from tests.pipelines.conftest import EXPERIMENT
from tests.small_models import toy_experiment
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models.sizes import num_parameters
from txl_tf.tpu_compiler.compiled_program import CompiledProgram
from txl_tf.tpu_compiler.compiler import TpuCompiler
from txl_tf.tpu_compiler.topologies import Topology

HAS_COMPILER = all(importlib.util.find_spec(name) is not None for name in ("jax", "libtpu"))
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="jax and libtpu are not installed")
BYTES_PER_ROW = 300
FIXED_BYTES = 1000
LIMIT_BYTES = 3000


class LinearCompiler:
    """Stands in for the compiler: memory grows with the rows of the batch."""

    topology = Topology.parse("v5e:2x2")

    def compile(self, program, name):
        rows = int(name.split("-")[1]) if name.startswith("training") else 1
        return CompiledProgram(
            needed_bytes=FIXED_BYTES + BYTES_PER_ROW * rows,
            limit_bytes=LIMIT_BYTES,
            attention=program.attention,
        )


@pytest.fixture
def lowers_nothing(monkeypatch):
    """The programs themselves do not matter to a compiler that only looks at their names."""
    from txl_tf.tpu_compiler import run_programs

    empty = run_programs.LoweredProgram(b"", 4, attention="as rows attend")

    def training_program(experiment):
        rows = experiment.training.global_batch_size
        return dataclasses.replace(empty, attention=f"as {rows} rows attend")

    monkeypatch.setattr(run_programs, "traced_trainer", lambda experiment, *_: experiment)
    monkeypatch.setattr(run_programs, "training_program", training_program)
    monkeypatch.setattr(run_programs, "evaluation_program", lambda _: empty)


def parts_of(global_batch_size):
    experiment = toy_experiment(training={"global_batch_size": global_batch_size})
    return list(compile_experiment(experiment, LinearCompiler(), lambda line: None))


@pytest.mark.parametrize(("global_batch_size", "fits"), [(6, True), (40, False)])
def test_rows_are_padded_to_replicas_and_too_many_are_reported(
    lowers_nothing, global_batch_size, fits, capsys
):
    parts = parts_of(global_batch_size)
    for part in parts:
        print_part(json.loads(json.dumps(part)))
    assert ("no setting suffices" in capsys.readouterr().out) != fits
    report = dict(collections.ChainMap(*parts))
    assert ("fitting_settings" in report) != fits
    assert report["training"]["padding_rows"] == -global_batch_size % 4


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        (["--topology", "v5e"], "v5e:4x4"),
        (["--topology", "v5e:16x16"], "24"),
        ([], "--topology"),
        (["--topology", "tpu7x:2x2x1"], "--backend jax"),
    ],
)
def test_wrong_topologies_are_exit_code_2(txl, topology, words):
    txl("compile", "--config", "enwik8_base", *topology, code=2, says=words)


@pytest.fixture(scope="module")
def compiled():
    """A small experiment on 16 replicas, plain, in parts and with blocks computed again.

    Attention is by plain operations: the kernel has arithmetic of its own.
    """
    values = {**EXPERIMENT, "training": {**EXPERIMENT["training"], "global_batch_size": 1024}}
    values["training"]["attention_kernel"] = "never"
    values["model"] = {**EXPERIMENT["model"], "num_layers": 4, "hidden_dim": 128, "num_heads": 2}
    values["model"] |= {"head_dim": 64, "intermediate_dim": 512, "segment_length": 128}
    values["model"] |= {"memory_length": 128}
    experiment = ExperimentConfig.from_dict(values)
    compiler = TpuCompiler(Topology.parse("v5e:4x4"))

    def report(**training):
        changed = experiment.replace(training=experiment.training.replace(**training))
        return dict(collections.ChainMap(*compile_experiment(changed, compiler, lambda line: None)))

    return experiment, {
        "plain": report(),
        "parts": report(gradient_accumulation_steps=4),
        "rematerialized": report(rematerialize=True),
    }


@pytest.mark.slow
@needs_compiler
def test_sixteen_replicas_sum_every_gradient_and_the_loss(compiled):
    experiment, reports = compiled
    num_bytes = 4 * (num_parameters(experiment.model) + 1)
    for report in reports.values():
        assert report["training"]["fits"]
        assert report["training"]["all_reduce_bytes"] == num_bytes
        assert report["evaluation"]["all_reduce_bytes"] == 0


@pytest.mark.slow
@needs_compiler
def test_parts_and_rematerialization_save_memory(compiled):
    _, reports = compiled
    plain, parts, again = (reports[name]["training"] for name in reports)
    assert parts["temporary_bytes"] < plain["temporary_bytes"]
    assert again["temporary_bytes"] < plain["temporary_bytes"]
