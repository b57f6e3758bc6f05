"""`txl compile`: what it refuses, what it prints, and what the compiler says."""

import collections
import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.compile import compile_experiment, largest_rows, print_part
from tests.pipelines.conftest import EXPERIMENT
from tests.pipelines.txl_process import error_lines, run_txl
from tests.toy_batches import toy_experiment
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models.sizes import num_parameters
from txl_tf.tpu_compiler.compiler import CompiledProgram, TpuCompiler
from txl_tf.tpu_compiler.topologies import Topology
from txl_tf.training.ledger import parse_line

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
            flops=10**6 * rows,
            hbm_bytes=1000 * rows,
        )


@pytest.fixture
def lowers_nothing(monkeypatch):
    """The programs themselves do not matter to a compiler that only looks at their names."""
    from txl_tf.tpu_compiler import program

    empty = program.LoweredProgram(b"", 4, attention="as rows attend", num_tokens=640)

    def training_program(experiment):
        rows = experiment.training.global_batch_size
        return dataclasses.replace(empty, attention=f"as {rows} rows attend")

    monkeypatch.setattr(program, "traced_trainer", lambda experiment, *_: experiment)
    monkeypatch.setattr(program, "training_program", training_program)
    monkeypatch.setattr(program, "evaluation_program", lambda _: empty)


def parts_of(global_batch_size, **options):
    experiment = toy_experiment(training={"global_batch_size": global_batch_size})
    return list(compile_experiment(experiment, LinearCompiler(), lambda line: None, **options))


def compile_with(global_batch_size, **options):
    return dict(collections.ChainMap(*parts_of(global_batch_size, **options)))


def test_rows_are_looked_for_where_they_are_asked_for(lowers_nothing):
    report = compile_with(6, find_rows=True)
    assert report["training"]["fits"]
    # Other numbers of rows were compiled after these.
    assert report["training"]["attention"] == "as 6 rows attend"
    assert report["largest_rows_per_replica"] == 6
    assert report["largest"]["rows_per_replica"] == 6


def test_if_a_batch_does_not_fit_the_rows_that_do_are_found(lowers_nothing):
    report = compile_with(40)
    assert not report["training"]["fits"]
    assert report["largest_rows_per_replica"] == 6
    assert report["largest"]["fits"]
    assert report["fitting_settings"] is None


def test_rows_that_do_not_divide_are_padding(lowers_nothing):
    report = compile_with(6)
    assert "trials" not in report
    training, evaluation = report["training"], report["evaluation"]
    assert (training["rows_per_replica"], training["padding_rows"]) == (2, 2)
    num_tokens = 6 * toy_experiment().model.segment_length
    assert training["flops_per_token"] == pytest.approx(2e6 * 4 / num_tokens)
    # An evaluation is counted by the tokens that it reads at once.
    assert evaluation["flops_per_token"] == pytest.approx(evaluation["flops"] * 4 / 640)


@pytest.mark.parametrize("global_batch_size", [6, 40])
def test_parts_are_json_and_printed_as_they_come(lowers_nothing, global_batch_size, capsys):
    for part in parts_of(global_batch_size):
        print_part(json.loads(json.dumps(part)))
    printed = capsys.readouterr().out
    assert "MFLOP per token" in printed
    assert ("at most 6 rows" in printed) == (global_batch_size == 40)


LIMIT = 1000


def search(fixed, per_row, first, step=1, bend=0.0):
    """The most rows that fit of a program of `fixed + per_row * rows` bytes, and all trials."""

    def attempt(rows):
        needed = int(fixed + per_row * rows + bend * rows * rows)
        return CompiledProgram(needed_bytes=needed, limit_bytes=LIMIT)

    trials = largest_rows(attempt, {first: attempt(first)}, step)
    return max((rows for rows, each in trials.items() if each.fits), default=0), trials


@pytest.mark.parametrize("first", [1, 20, 64])
@pytest.mark.parametrize(("fixed", "per_row", "expected"), [(100, 50, 18), (0, 999, 1)])
def test_largest_is_found_from_any_start(fixed, per_row, expected, first):
    best, trials = search(fixed, per_row, first)
    assert best == expected and len(trials) <= 5


def test_a_search_ends_at_curves_parts_and_limits():
    best, trials = search(100, 10, first=40, bend=0.9)
    assert best == 26 and len(trials) <= 7
    assert search(1200, 1, first=8)[0] == 0
    best, trials = search(100, 50, first=8, step=4)
    assert best == 16 and all(rows % 4 == 0 for rows in trials)
    assert 0.98 * 4096 <= search(0, 0, first=2)[0] <= 4096


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "enwik8_base", "--topology", "v5e"], ["v5e:4x4"]),
        (["--config", "enwik8_base", "--topology", "v5e:16x16"], ["replicas", "24"]),
        (["--config", "enwik8_base"], ["--topology"]),
    ],
)
def test_wrong_arguments_are_exit_code_2(arguments, words):
    finished = run_txl("compile", *arguments)
    assert finished.returncode == 2, finished.stderr
    assert len(error_lines(finished)) <= 3
    assert all(word in finished.stderr for word in words)


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
def test_parts_and_rematerialization_save_memory_and_parts_cost_the_same_work(compiled):
    _, reports = compiled
    plain, parts, again = (reports[name]["training"] for name in reports)
    assert parts["temporary_bytes"] < plain["temporary_bytes"]
    assert again["temporary_bytes"] < plain["temporary_bytes"]
    assert parts["flops"] == pytest.approx(plain["flops"], rel=0.1)
    assert again["flops"] > 1.1 * plain["flops"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_a_saved_program_trains_as_the_run_does(config_file, data_folder, untouched, tmp_path):
    folder = tmp_path / "program"
    arguments = ["--config", config_file, "--data", data_folder, "--save-program", folder]
    # Two replicas.
    finished = run_txl("compile", *arguments, "--topology", "v2:1x1")
    assert finished.returncode == 0, finished.stderr
    script = Path(__file__).parents[1] / "measurements" / "run_saved_program.py"
    command = [sys.executable, script, folder]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    lines = (untouched / "ledger.jsonl").read_text().splitlines()[1:21]
    expected = [parse_line(line).nats_per_token for line in lines]
    assert json.loads(output)["losses"] == pytest.approx(expected, rel=1e-5)
