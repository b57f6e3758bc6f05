"""A run has one result: interrupted or not, on any replicas, in parts, recomputed, compiled."""

import functools

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.small_models import (
    SEGMENT_LENGTH,
    VOCABULARY_SIZE,
    ToyBatches,
    largest_relative_difference,
    strategy_of,
    toy_experiment,
    toy_tokens,
)
from tests.training.task_experiments import task_experiment, task_trainer
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.training import step_compilation
from txl_tf.training.trainer import Trainer

NUM_STEPS = 8
HALF = NUM_STEPS // 2
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1}
CLUSTERS = {"cutoffs": (4,), "division_factor": 2, "embedding_dim": 8}
RECURRENT = {"vocabulary_size": VOCABULARY_SIZE, "num_layers": 2, "hidden_dim": 8}
RECURRENT |= {"segment_length": SEGMENT_LENGTH, "dropout": 0.2, "initializer_stddev": 0.3}
GATES = {**DROPOUT, "pre_norm": True, "residual_gate": "gru", "share_attention_biases": True}
# Sections of an experiment, or the configuration of a recurrent model.
RUNS = {
    "dropout": {
        "model": DROPOUT,
        "training": {"average_weights_from_step": 2},
        "optimizer": {"clip_norm": 1.0},
    },
    # Limits far above the norms of about 2, and far below.
    "clusters": {"model": CLUSTERS},
    "clipped": {"model": CLUSTERS, "optimizer": {"clip_norm": 0.02}},
    "gates": {"model": GATES, "training": {"average_weights_from_step": 2}},
    "adapters": {
        "training": {"adapter_rank": 2, "adapter_alpha": 3.0},
        "optimizer": {"learning_rate": 3e-2},
    },
    "lamb": {"optimizer": {"name": "lamb", "max_weight_norm": 1.5}},
    "muon": {"optimizer": {"name": "muon", "weight_decay": 0.3}},
    "lstm": LSTMConfig(**RECURRENT),
    "qrnn": QRNNConfig(**RECURRENT),
}


def new_trainer(name, num_replicas=1, num_rows=4, **training):
    """A trainer before its first step, in which rows restart in both halves of the run."""
    training = {"num_steps": NUM_STEPS, "global_batch_size": num_rows, **training}
    if name == "task":
        return task_trainer(task_experiment("classification", training=training), num_replicas)
    is_recurrent = not isinstance(RUNS[name], dict)
    sections = {} if is_recurrent else RUNS[name]
    training |= sections.get("training", {})
    experiment = toy_experiment(**{**sections, "training": training})
    if is_recurrent:
        experiment = experiment.replace(model=RUNS[name])
    # Six segments a row: the second half of the run begins another epoch.
    tokens = toy_tokens(6 * num_rows * SEGMENT_LENGTH + 1)
    batches = ToyBatches(tokens, num_rows, restarts=[(2, 1), (HALF, 1), (HALF + 1, 2)])
    return Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)


@functools.cache
def unbroken(name, num_replicas=1, **options):
    """Records of all steps, the state half way and at the end."""
    trainer, records, half_way = new_trainer(name, num_replicas, **options), [], None
    for report in trainer.run():
        records += report.records
        if report.step == HALF:
            half_way = trainer.arrays()
    return records, half_way, trainer.arrays()


@pytest.fixture
def widths_in_parts(monkeypatch):
    """Without a choice of the run, every width is compiled in parts."""
    widths = dict.fromkeys(step_compilation._NARROWEST_IN_PARTS, 1)
    monkeypatch.setattr(step_compilation, "_NARROWEST_IN_PARTS", widths)


def assert_same_bits(state, expected):
    assert state.keys() == expected.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize(
    ("name", "num_replicas", "training"),
    [
        ("dropout", 1, {}),
        slow_case("dropout", 2, {}),
        slow_case("dropout", 1, {"jit_compile": None}),
        ("adapters", 1, {}),
        *(slow_case(name, 1, {}) for name in ("lamb", "lstm", "task")),
        *(slow_case("muon", num_replicas, {}) for num_replicas in (1, 2)),
        slow_case("muon", 1, {"jit_compile": True}),
        ("qrnn", 1, {}),
    ],
)
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(
    name, num_replicas, training, widths_in_parts
):
    records, half_way, end = unbroken(name, num_replicas, **training)
    trainer = new_trainer(name, num_replicas, **training)
    trainer.load_arrays(half_way)
    assert trainer.step == HALF
    resumed = [record for report in trainer.run() for record in report.records]
    assert resumed == records[HALF:]
    assert_same_bits(trainer.arrays(), end)
    # The comparison means something only if the state was not the first one.
    assert np.all(half_way.get("memory/valid_length", 1) > 0)
    assert largest_relative_difference(half_way, end) > 1e-2


def assert_same_run(records, state, expected_records, expected_state, tolerance):
    for record, expected in zip(records, expected_records, strict=True):
        assert record.checksum == expected.checksum
        assert record.nats_per_token == pytest.approx(expected.nats_per_token, rel=tolerance)
        assert record.gradient_norm == pytest.approx(expected.gradient_norm, rel=tolerance)
    # Weights, optimizer and the memory of every row in its place.
    assert largest_relative_difference(state, expected_state) <= 10 * tolerance


IN_PARTS = {"gradient_accumulation_steps": 2, "rematerialize": True}


@pytest.mark.parametrize(
    ("name", "num_rows", "num_replicas", "training", "tolerance"),
    [
        # Replicas that clipped before the sum would have other gradients.
        ("clipped", 4, 2, {}, 1e-6),
        slow_case("clusters", 4, 2, {}, 1e-6),
        # Five rows: some are made up.
        slow_case("dropout", 5, 2, IN_PARTS, 1e-6),
        slow_case("dropout", 8, 1, {**IN_PARTS, "jit_compile": True}, 1e-5),
        slow_case("gates", 4, 1, {**IN_PARTS, "jit_compile": None}, 1e-5),
        slow_case("adapters", 4, 2, {"gradient_accumulation_steps": 2}, 1e-5),
        *(slow_case(name, 4, 2, {}, 1e-6) for name in ("lamb", "muon")),
        slow_case("muon", 4, 1, {"jit_compile": True}, 1e-5),
        slow_case("task", 4, 2, {"gradient_accumulation_steps": 2}, 1e-5),
        slow_case("task", 4, 1, {"jit_compile": True}, 1e-5),
    ],
)
def test_replicas_parts_recomputation_and_xla_change_no_number(
    name, num_rows, num_replicas, training, tolerance, widths_in_parts
):
    plain, _, plain_state = unbroken(name, num_rows=num_rows)
    records, _, state = unbroken(name, num_replicas, num_rows=num_rows, **training)
    assert_same_run(records, state, plain, plain_state, tolerance)
    if name == "clipped":
        assert all(record.gradient_norm > 0.2 for record in plain)  # ten times the limit
    if name == "dropout":  # masks belong to rows, and something was dropped
        dropped, others = (each["memory/states/000"] == 0.0 for each in (plain_state, state))
        np.testing.assert_array_equal(dropped, others)
        assert len(dropped) == num_rows and 0.1 < np.mean(dropped) < 0.3


@pytest.mark.slow
def test_a_limit_of_the_gradient_norm_changes_the_run():
    assert largest_relative_difference(unbroken("clusters")[2], unbroken("clipped")[2]) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_state_continues_on_another_number_of_replicas(before, after):
    records, half_way, end = unbroken("dropout", before)
    trainer = new_trainer("dropout", after)
    trainer.load_arrays(half_way)
    assert_same_bits(trainer.arrays(), half_way)
    continued = [record for report in trainer.run() for record in report.records]
    assert_same_run(continued, trainer.arrays(), records[HALF:], end, 1e-6)


def test_a_state_is_loaded_on_any_replicas():
    state = new_trainer("dropout").arrays()
    divided = new_trainer("dropout", 2)
    divided.load_arrays(state)
    assert_same_bits(divided.arrays(), state)


@pytest.mark.slow
def test_replicas_steps_and_seeds_have_dropout_masks_of_their_own():
    """The second half of the rows repeats the first, so only masks can tell them apart."""

    def masks(num_replicas, seed):
        """The embeddings that dropout set to 0 in two steps: the newest of the first memory."""
        experiment = toy_experiment({"dropout": 0.5}, {"num_steps": 2, "seed": seed})
        batches = ToyBatches(toy_tokens(), 4, twins=True)
        trainer = Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)
        states = [trainer.arrays()["memory/states/000"] for _ in trainer.run()]
        return [state[:, -SEGMENT_LENGTH:] == 0.0 for state in states]

    first_step, second_step = masks(2, seed=3)
    pairs = {
        "replicas": (first_step[:2], first_step[2:]),
        "replicas, next step": (second_step[:2], second_step[2:]),
        "steps": (first_step[:2], second_step[:2]),
        "steps across replicas": (first_step[2:], second_step[:2]),
        "seeds": (first_step[:2], masks(1, seed=4)[0][:2]),
    }
    for name, (first, second) in pairs.items():
        # 80 draws at a rate of 0.5: five standard deviations are 0.28.
        assert 0.22 < np.mean(first) < 0.78, name
        assert 0.22 < np.mean(first == second) < 0.78, name
