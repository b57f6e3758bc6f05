"""Evaluations that read the variables of a run, and variables that only have a shape."""

import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_text import toy_text
from tests.toy_trainers import toy_trainer
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.unallocated_variables import unallocated_variables


def trainer_of(num_replicas, **training):
    return toy_trainer(num_replicas=num_replicas, training=training)


def evaluator_of(trainer, variables=None):
    return Evaluator(
        trainer.experiment.model,
        EvaluationConfig(batch_size=3, memory_length=9),
        jit_compile=False,
        strategy=trainer.strategy,
        variables=variables,
    )


@pytest.mark.parametrize(
    ("num_replicas", "training"), [(1, {}), slow_case(2, {"average_weights_from_step": 2})]
)
def test_an_evaluation_follows_the_run_without_copies(num_replicas, training):
    trainer = trainer_of(num_replicas, **training)
    text = toy_text(trainer.experiment.model.vocabulary_size)
    evaluator = evaluator_of(trainer, trainer.state.inference_variables())
    copy = evaluator_of(trainer)
    totals = []
    for _, _ in zip(trainer.run(), range(3), strict=False):
        copy.load_arrays(trainer.state.inference_weights())
        totals.append(evaluator.evaluate(text, step=trainer.step).total_nats)
        assert totals[-1] == copy.evaluate(text, step=trainer.step).total_nats
    assert len(set(totals)) == 3


def test_what_would_change_the_run_is_refused():
    trainer = trainer_of(1)
    evaluator = evaluator_of(trainer, trainer.state.inference_variables())
    before = trainer.state.inference_weights()
    with pytest.raises(ValueError, match="created without `variables`"):
        evaluator.load_arrays(before)
    dynamic = EvaluationConfig(batch_size=1, dynamic_learning_rate=1e-3)
    with pytest.raises(ValueError, match="changes weights on a single device"):
        Evaluator(trainer.experiment.model, dynamic, variables=trainer.state.inference_variables())
    for path, array in trainer.state.inference_weights().items():
        np.testing.assert_array_equal(array, before[path])


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_gigabytes_of_variables_take_no_memory():
    before = resident_bytes()
    with unallocated_variables():
        dense = keras.layers.Dense(2**14, dtype="mixed_bfloat16")
        dense.build((None, 2**14))
        state = tf.Variable(tf.zeros([2**20], tf.bfloat16))
    assert dense.kernel.shape == (2**14, 2**14)
    assert dense.kernel.value.dtype == tf.float32
    assert state.dtype == tf.bfloat16
    assert resident_bytes() - before < 2**28  # the kernel has 2**30 bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_unallocated_variables_read_as_zeros(dtype):
    with unallocated_variables():
        variable = tf.Variable(lambda: tf.ones([256, 256], dtype))
    assert float(tf.reduce_sum(tf.abs(tf.cast(variable, tf.float32)))) == 0.0
