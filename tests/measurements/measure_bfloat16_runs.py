"""Why runs in bfloat16 differ: the same run by different compilers, kernels and optimizers.

    python -m tests.measurements.measure_bfloat16_runs

Every run begins with the same weights and draws the same masks. For Adam and for plain gradient
descent, prints for each pair the largest relative difference of the losses, and of the weights
over their largest entry. Needs the extra `tpu-compile`.
"""

import json
import os

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NUM_REPLICAS = 2
NUM_ROWS = 3
PAIRS = (
    ("mirrored, kernels", "tpu's program"),
    ("mirrored, kernels", "tpu's program, rounding everywhere"),
    ("one device, kernels", "one device, XLA"),
    ("mirrored, kernels", "one device, kernels"),
    ("tpu's program", "one device, XLA"),
    ("mirrored, kernels", "float32"),
    ("tpu's program", "float32"),
)


def run_of(trainer):
    losses = [record.nats_per_token for report in trainer.run() for record in report.records]
    return np.array(losses), weights_of(trainer)


def weights_of(trainer):
    return {path: value for path, value in trainer.state().items() if path.startswith("model/")}


def both_strategies(experiment, options=None):
    from tests.measurements.measure_executed_program import TwoStrategies, batches_of

    runs = TwoStrategies(NUM_REPLICAS, experiment, batches_of(experiment), options)
    runs.train()
    found = {}
    for name in runs.trainers:
        copies = runs.copies(name)
        weights = {key: each[0] for key, each in copies.items() if key.startswith("model/")}
        found[name] = runs.losses(name)[0], weights
    return found


def all_runs(make_experiment):
    import tensorflow as tf

    from tests.measurements.measure_executed_program import batches_of
    from txl_tf.training.trainer import Trainer

    experiment = make_experiment("mixed_bfloat16")
    runs = both_strategies(experiment)
    rounding = both_strategies(experiment, {"xla_allow_excess_precision": False})
    found = {
        "mirrored, kernels": runs["mirrored"],
        "tpu's program": runs["tpu"],
        "tpu's program, rounding everywhere": rounding["tpu"],
    }
    alone = {"one device, kernels": False, "one device, XLA": True}
    for name, jit_compile in alone.items():
        training = experiment.training.replace(jit_compile=jit_compile)
        changed = experiment.replace(training=training)
        batches = batches_of(changed)
        trainer = Trainer(changed, tf.distribute.get_strategy(), batches.dataset_function)
        found[name] = run_of(trainer)
    exact = make_experiment("float32")
    trainer = Trainer(exact, tf.distribute.get_strategy(), batches_of(exact).dataset_function)
    return {**found, "float32": run_of(trainer)}


def began_as_zeros(name):
    return name.endswith(("bias", "beta"))


def compared(found):
    from tests.measurements.measure_executed_program import relative

    lines = []
    for first, second in PAIRS:
        losses, weights = zip(found[first], found[second], strict=True)
        apart = {name: relative(weights[0][name], weights[1][name]) for name in weights[0]}
        lines.append(
            {
                "pair": [first, second],
                "losses": float(np.max(np.abs(losses[0] - losses[1]) / losses[0])),
                "weights": max(apart.values()),
                "of": max(apart, key=apart.get),
                "of_those_that_began_as_zeros": max(
                    (apart[name] for name in apart if began_as_zeros(name)), default=0.0
                ),
                "of_the_others": max(apart[name] for name in apart if not began_as_zeros(name)),
            }
        )
    return lines


def main():
    from tests.tpu_compiler.host_replicas import prepare

    prepare(NUM_REPLICAS)
    import tensorflow as tf

    from tests.measurements import measure_executed_program

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(NUM_REPLICAS)],
    )
    for optimizer in ("adam", "sgd"):

        def make_experiment(policy, optimizer=optimizer):
            experiment = measure_executed_program.small_experiment(NUM_ROWS, policy, "plain")
            if optimizer == "adam":
                return experiment
            changed = experiment.optimizer.replace(name="sgd", epsilon=1e-8, learning_rate=0.3)
            return experiment.replace(optimizer=changed)

        for line in compared(all_runs(make_experiment)):
            print(json.dumps({"optimizer": optimizer, **line}), flush=True)


if __name__ == "__main__":
    main()
