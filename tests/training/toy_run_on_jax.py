"""Trains the toy model on JAX, and prints losses and writes states for comparison.

    KERAS_BACKEND=jax python -m tests.training.toy_run_on_jax FOLDER

`begin.npz` and `half.npz` of the folder are states of another backend at the steps 0 and 100. With
`TF_CONFIG` the processes train together; `XLA_FLAGS` sets the number of devices.
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.small_models import ToyBatches, toy_experiment, toy_tokens
from txl_tf.distribution.strategy import create_strategy, is_chief
from txl_tf.training.trainer import Trainer

NUM_STEPS, HALF, NUM_CROSSED = 200, 100, 20
NUM_ROWS = 4
DROPPED = {"dropout": 0.1, "attention_dropout": 0.1}


def new_trainer(strategy, **training):
    """A trainer of four layers, with dropout, clipping and an average of the weights."""
    experiment = toy_experiment(
        model={"num_layers": 4, **DROPPED},
        training={
            "num_steps": NUM_STEPS,
            "steps_per_loop": 20,
            "average_weights_from_step": 50,
            **training,
        },
        optimizer={"clip_norm": 0.5, "warmup_steps": 10},
    )
    return Trainer(experiment, strategy, batches().dataset_function)


def batches():
    """Text in which a row begins again in the second half."""
    return ToyBatches(toy_tokens(), NUM_ROWS, restarts=[(HALF + 3, 1)])


def losses_until(trainer, step):
    """Losses of the steps to a step, a multiple of the steps of a loop."""
    losses = []
    while trainer.step < step:
        losses += [record.nats_per_token for record in trainer.take_steps().records]
    return losses


def resumed(strategy, arrays, step, **training):
    """A trainer that continues from a state, and its losses until a step."""
    trainer = new_trainer(strategy, **training)
    trainer.load_arrays(arrays)
    return trainer, losses_until(trainer, step)


def megabytes(trainer, batch):
    """Memory of intermediate results of a step."""
    program = trainer.mesh_program.lower(batch).compile()
    return program.memory_analysis().temp_size_in_bytes / 1e6


def load(path):
    """The arrays of a state."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def main(folder):
    """Prints a report, and writes `half_on_jax.npz`, which the tests of the module read."""
    strategy = create_strategy()
    trainer, losses = resumed(strategy, load(folder / "begin.npz"), HALF)
    half = trainer.arrays()
    report = {"losses": losses + losses_until(trainer, NUM_STEPS)}
    end = trainer.arrays()
    again, report["resumed"] = resumed(strategy, half, NUM_STEPS)
    report["same_bits"] = all(
        np.array_equal(array, end[name]) for name, array in again.arrays().items()
    )
    states = trainer.replica_memory.arrays["states/000"]
    report["rows_on_a_device"] = states.addressable_shards[0].data.shape[0]
    batch = {name: strategy.divided(array) for name, array in batches().batch(0).items()}
    lines = trainer.mesh_program.lower(batch).as_text().splitlines()
    products = [line for line in lines if "dot_general" in line]
    report["exact_products"] = all("HIGHEST, HIGHEST" in line for line in products)
    if (folder / "half.npz").exists():
        until = HALF + NUM_CROSSED
        saving, report["rematerialized"] = resumed(strategy, half, until, rematerialize=True)
        report["megabytes"] = [megabytes(each, batch) for each in (trainer, saving)]
        report["crossed"] = resumed(strategy, load(folder / "half.npz"), until)[1]
        report["parts"] = resumed(strategy, half, until, gradient_accumulation_steps=2)[1]
    if is_chief(strategy):
        np.savez(folder / "half_on_jax.npz", **half)
        print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
