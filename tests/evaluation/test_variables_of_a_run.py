"""Evaluations that read the variables of a run, and variables without memory."""

import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.small_models import toy_text, toy_trainer
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.unallocated_variables import unallocated_variables


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
    trainer = toy_trainer(num_replicas=num_replicas, training=training)
    text = toy_text(trainer.experiment.model.vocabulary_size)
    evaluator = evaluator_of(trainer, trainer.state.inference_variables())
    copy, totals = evaluator_of(trainer), []
    for _, _ in zip(trainer.run(), range(3), strict=False):
        copy.load_arrays(trainer.state.inference_weights())
        totals.append(evaluator.evaluate(text, step=trainer.step).total_nats)
        assert totals[-1] == copy.evaluate(text, step=trainer.step).total_nats
    assert len(set(totals)) == 3


def test_an_evaluator_never_changes_the_weights_of_a_run():
    trainer = toy_trainer(num_replicas=1)
    variables = trainer.state.inference_variables()
    dynamic = EvaluationConfig(batch_size=1, dynamic_learning_rate=1e-3)
    before = trainer.state.inference_weights()
    evaluator = Evaluator(trainer.experiment.model, dynamic, variables=variables)
    evaluator.evaluate(toy_text(trainer.experiment.model.vocabulary_size), step=0)
    for name, array in trainer.state.inference_weights().items():
        np.testing.assert_array_equal(array, before[name])


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_unallocated_variables_are_zeros_that_take_no_memory():
    before = resident_bytes()
    with unallocated_variables():
        dense = keras.layers.Dense(2**14, dtype="mixed_bfloat16")
        dense.build((None, 2**14))
        state = tf.Variable(tf.zeros([2**20], tf.bfloat16))
    assert dense.kernel.shape == (2**14, 2**14)
    assert dense.kernel.value.dtype == tf.float32
    assert state.dtype == tf.bfloat16
    assert resident_bytes() - before < 2**28  # the kernel has 2**30 bytes
    assert float(tf.reduce_sum(tf.cast(state, tf.float32))) == 0.0
