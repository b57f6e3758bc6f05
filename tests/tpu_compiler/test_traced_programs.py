"""What else meets TPUStrategy, and what a TPU would refuse."""

import pytest
import tensorflow as tf

from pipelines.doctor import sum_of_replicas
from tests.toy_batches import VOCABULARY_SIZE, toy_experiment
from tests.tpu_bridge import (
    COLLECTIVES,
    assert_runs_on_replicas,
    through_the_bridge,
    traced_replicas,
)
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import LSTMConfig
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.distribution.strategy import set_chip
from txl_tf.evaluation.evaluator import Evaluator

# The last row of the second replica is made up.
NUM_ROWS = 3
MODEL = toy_experiment().model
LSTM = LSTMConfig(vocabulary_size=VOCABULARY_SIZE, num_layers=2, hidden_dim=8, segment_length=5)
EVALUATIONS = {
    "keys and values": (MODEL, {"memory_length": 9}, "float32", False),
    "documents apart": (MODEL, {"warm_up_tokens": "all"}, "mixed_bfloat16", True),
    "recurrent memory": (LSTM, {}, "float32", False),
}


def compiled(function):
    return tf.function(function, autograph=False).get_concrete_function()


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_is_two_programs_without_communication(name):
    model, values, policy, masks_documents = EVALUATIONS[name]
    evaluator = Evaluator(
        model,
        EvaluationConfig(batch_size=NUM_ROWS, dtype_policy=policy, **values),
        masks_documents=masks_documents,
        strategy=traced_replicas(),
    )
    for function in evaluator.trace(NUM_ROWS):
        program = through_the_bridge(function)
        assert_runs_on_replicas(program)
        assert program.num_written == 0
        assert not COLLECTIVES & program.cluster_operations.keys()


@pytest.mark.parametrize(
    ("values", "chip", "is_kernel"),
    [
        ({"attention_kernel": "always"}, "v5e", True),
        ({"attention_kernel": "always", "memory_length": 0}, "v5e", True),
        ({"memory_length": 8_000}, "v5e", True),
        ({"attention_kernel": "always"}, "v3", False),
        ({"attention_kernel": "never", "memory_length": 8_000}, "v5e", False),
        ({}, "v5e", False),
    ],
)
def test_an_evaluation_attends_by_a_kernel_where_the_chip_can_and_it_pays(values, chip, is_kernel):
    strategy = traced_replicas()
    set_chip(strategy, chip)
    evaluation = EvaluationConfig(batch_size=NUM_ROWS, **values)
    try:
        evaluator = Evaluator(MODEL, evaluation, strategy=strategy, masks_documents=True)
        reason = evaluator.attention_choice(NUM_ROWS).reason
        _, step = evaluator.trace(NUM_ROWS)
        program = through_the_bridge(step)
    finally:
        set_chip(strategy, "")
    assert_runs_on_replicas(program)
    assert program.cluster_operations["tf.XlaCallModule"] == MODEL.num_layers * is_kernel
    assert reason.startswith("kernel" if is_kernel else "plain operations: ")


def test_the_state_of_replicas_is_read_and_written_on_them():
    strategy = traced_replicas()
    specs = {"states": tf.TensorSpec([3, 2], tf.bfloat16), "is_full": tf.TensorSpec([], tf.bool)}
    state = ReplicaState(strategy, 2, specs, num_rows=NUM_ROWS)

    def read_all():
        return strategy.run(tf.function(state.read, autograph=False))

    def write_back():
        strategy.run(state.write, args=(parts,))

    parts = strategy.experimental_distribute_values_from_function(
        lambda _: {name: tf.zeros([2, *spec.shape], spec.dtype) for name, spec in specs.items()}
    )
    reading = through_the_bridge(compiled(read_all))
    assert_runs_on_replicas(reading)
    writing = through_the_bridge(compiled(write_back))
    assert_runs_on_replicas(writing)
    assert writing.num_written == len(specs)


def test_the_sum_that_doctor_tries_is_one_program():
    program = through_the_bridge(sum_of_replicas(traced_replicas()).get_concrete_function())
    assert_runs_on_replicas(program)
    assert program.summed_shapes == [()]
