"""Trainers of the smallest experiment: new ones, and ones whose step is traced already."""

import functools

from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens
from txl_tf.training.trainer import Trainer

NUM_ROWS = 4


def toy_trainer(batches=None, num_replicas=1, describe_row=None, **sections):
    """A new trainer; `sections` go to `toy_experiment`."""
    batches = batches or ToyBatches(toy_tokens(), NUM_ROWS)
    return Trainer(
        toy_experiment(**sections),
        strategy_of(num_replicas),
        batches.dataset_function,
        describe_row,
    )


class _Source:
    """Batches that can be replaced."""

    def dataset_function(self, **arguments):
        return self.batches.dataset_function(**arguments)


def shared_trainer(batches=None, num_replicas=1, **sections):
    """A trainer before its first step, which other tests have used with other batches.

    To trace a step takes two seconds. A trainer that was stopped cannot be shared.
    """
    trainer, source, first_state = _traced(toy_experiment(**sections), num_replicas)
    source.batches = batches or ToyBatches(toy_tokens(), NUM_ROWS)
    trainer.load_arrays(first_state)
    return trainer


@functools.lru_cache(maxsize=8)
def _traced(experiment, num_replicas):
    source = _Source()
    trainer = Trainer(experiment, strategy_of(num_replicas), source.dataset_function)
    return trainer, source, trainer.arrays()
