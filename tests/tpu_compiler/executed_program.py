"""Executes TPUStrategy's own program on host devices, and compares with MirroredStrategy.

    python -m tests.tpu_compiler.executed_program '{"replicas": 2, "policy": "mixed_bfloat16"}'
    python -m tests.tpu_compiler.executed_program '{"kernel": true}'

Trains 12 steps with dropout, memory, clipping and rows that are made up, under both, from the same
weights, and evaluates both. With `kernel`, the program attends by the kernel for TPUs,
interpreted, and MirroredStrategy by plain operations. Prints one line of JSON. Needs the extra
`tpu-compile`.
"""

import functools
import json
import os
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NUM_STEPS = 12
SETTINGS = {
    "plain": {},
    "parts": {
        "document_boundaries": "mask",
        "rematerialize": True,
        "gradient_accumulation_steps": 2,
    },
}
SEGMENT_LENGTH = 16
VOCABULARY_SIZE = 200


class TwoStrategies:
    """The same run under MirroredStrategy and as TPUStrategy's program."""

    def __init__(self, num_replicas, experiment, batches, chip=None):
        import tensorflow as tf

        from tests.tpu_compiler.host_replicas import HostReplicas
        from txl_tf.tpu_compiler.replica_program import ReplicaProgram, traced_tpu_strategy
        from txl_tf.training.trainer import Trainer

        self._batches = batches
        self._num_rows = experiment.training.rows_per_replica(num_replicas)
        self._num_replicas = num_replicas
        cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
        self.strategies = {
            "mirrored": tf.distribute.MirroredStrategy(cpus[:num_replicas]),
            "tpu": traced_tpu_strategy(num_replicas, chip=chip),
        }
        self.trainers = {
            name: Trainer(experiment, strategy, batches.dataset_function)
            for name, strategy in self.strategies.items()
        }
        program = ReplicaProgram.of(self.trainers["tpu"].trace())
        self.replicas = HostReplicas(program)

    def train(self):
        """Runs all steps under both."""
        for _ in self.trainers["mirrored"].run():
            pass
        rows = range(self._num_rows * self._num_replicas)
        parts = iter(self._batches.dataset_function(0, rows, self._num_rows, NUM_STEPS))
        for _ in range(NUM_STEPS):
            replicas = [next(parts) for _ in range(self._num_replicas)]
            values = [[each[name].numpy() for each in replicas] for name in sorted(replicas[0])]
            self.replicas(*values, [np.int32(0)] * self._num_replicas)
        self.replicas.write_back()

    def losses(self, name):
        """The loss of every step, as every replica knows it: `(replicas, steps)`."""
        return np.stack([each.numpy()[0] for each in self._records(name)["loss"].values])

    def _records(self, name):
        return self.trainers[name]._records._steps._variables

    def copies(self, name):
        """Every variable of weights and optimizer, with the copies of all replicas."""
        variables = self.trainers[name].state.by_name()
        return {
            path: [each.numpy() for each in variable.value.values]
            for path, variable in variables.items()
        }

    def memory(self, name):
        """The memory of all rows."""
        variables = self.trainers[name].replica_memory._variables
        return {
            key: np.concatenate([each.numpy() for each in variable.values]).astype("float64")
            for key, variable in variables.items()
        }


def small_experiment(num_rows, policy, setting):
    """Memory, dropout and a limit that clips every gradient; the plain one has two layers."""
    from tests.small_models import toy_experiment

    is_plain = setting == "plain" and policy == "float32"
    model = {
        "num_layers": 1 + is_plain,
        "hidden_dim": 32,
        "num_heads": 2,
        "head_dim": 16,
        "dropout": 0.1,
    }
    model |= {"intermediate_dim": 64, "segment_length": SEGMENT_LENGTH, "memory_length": 16}
    # As the published models are; the toy's large weights would carry rounding far.
    model |= {"initializer_stddev": 0.02, "vocabulary_size": VOCABULARY_SIZE}
    training = {"global_batch_size": num_rows, "num_steps": NUM_STEPS, "dtype_policy": policy}
    training |= {"steps_per_loop": NUM_STEPS, **SETTINGS[setting]}
    return toy_experiment(model, training, {"clip_norm": 0.25})


def batches_of(experiment):
    """Batches of a text, with documents where they are told apart."""
    from tests.small_models import ToyBatches, toy_tokens

    class Batches(ToyBatches):
        def batch(self, step):
            values = super().batch(step)
            if experiment.training.document_boundaries == "mask":
                values["document_starts"] = values["token_ids"] == 0
            return values

    num_rows = experiment.training.global_batch_size
    tokens = toy_tokens(num_rows * SEGMENT_LENGTH * NUM_STEPS // 2 + 1, VOCABULARY_SIZE)
    return Batches(tokens, num_rows, SEGMENT_LENGTH, restarts=[(3, 0)])


def use_interpreted_kernel():
    """Lets programs for a TPU attend by a kernel that a CPU can execute; returns the chip."""
    from txl_tf.tpu_kernels import attention_choice

    on_cpu = functools.partial(attention_choice.AttentionKernel, platform="cpu")
    attention_choice.AttentionKernel = on_cpu
    return "v5e"


def differences(runs):
    """How far the two runs are apart, as ratios."""
    mirrored, tpu = runs.losses("mirrored")[0], runs.losses("tpu")[0]
    theirs, ours = runs.copies("mirrored"), runs.copies("tpu")
    memories = runs.memory("mirrored"), runs.memory("tpu")
    return {
        "losses": float(np.max(np.abs(mirrored - tpu) / np.abs(mirrored))),
        "losses_alike": bool(np.all(runs.losses("tpu") == tpu)),
        "variables": max(relative(theirs[name][0], ours[name][0]) for name in theirs),
        "between_replicas": max(
            relative(copies[0], each) for copies in ours.values() for each in copies[1:]
        ),
        "memory": max(relative(memories[0][key], memories[1][key]) for key in memories[0]),
    }


def relative(first, second):
    """The largest difference over the largest entry."""
    first, second = np.float64(first), np.float64(second)
    scale = np.max(np.abs(first), initial=0.0) or 1.0
    return float(np.max(np.abs(first - second), initial=0.0) / scale)


def main(replicas=2, policy="float32", setting="plain", kernel=False):
    from tests.tpu_compiler.host_replicas import evaluation_differences, prepare

    prepare(replicas)
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)],
    )
    experiment = small_experiment(2 * replicas - 1, policy, setting)
    # Attention this small would be left to plain operations.
    always = experiment.training.replace(attention_kernel="always")
    experiment = experiment.replace(training=always) if kernel else experiment
    chip = use_interpreted_kernel() if kernel else None
    runs = TwoStrategies(replicas, experiment, batches_of(experiment), chip)
    runs.train()
    evaluation = evaluation_differences(runs, experiment)
    print(json.dumps({"policy": policy, "evaluation": evaluation, **differences(runs)}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
