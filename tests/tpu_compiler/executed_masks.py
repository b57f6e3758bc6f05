"""The bits of dropout masks as TPUStrategy's program draws them."""

import numpy as np
import tensorflow as tf

from tests.tpu_compiler.host_replicas import HostReplicas
from txl_tf import stateless_random
from txl_tf.tpu_compiler.program import ReplicaProgram
from txl_tf.training.train_step import TrainStep

SHAPE = (16, 32)


def masks_are_identical(runs):
    """Whether every row's bits are those of MirroredStrategy, after the runs have ended."""
    drawn = {name: drawing_function(runs, name) for name in runs.trainers}
    mirrored = runs.strategies["mirrored"]
    theirs = [each.numpy() for each in mirrored.experimental_local_results(drawn["mirrored"]())]
    program = ReplicaProgram.of(drawn["tpu"].get_concrete_function())
    (ours,) = HostReplicas(program)()
    assert len({each.tobytes() for each in theirs}) == len(theirs)
    return all(np.array_equal(*pair) for pair in zip(theirs, ours, strict=True))


def drawing_function(runs, name):
    trainer, strategy = runs.trainers[name], runs.strategies[name]
    step = TrainStep(trainer.config, trainer._state, trainer.replica_memory, trainer._records)

    def draw():
        seeds = step.dropout_seeds(tf.identity(trainer._state.optimizer.iterations.value))
        return stateless_random.random_bits(seeds, SHAPE)

    def draw_on_replicas():
        return strategy.run(draw)

    return tf.function(draw_on_replicas, autograph=False)
