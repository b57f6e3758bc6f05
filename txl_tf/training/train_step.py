"""What one replica does in one training step."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.models.memory import Memory
from txl_tf.training.training_objective import TrainingObjective
from txl_tf.training.weight_average import WeightAverage


class TrainStep:
    """Scores a batch, sums the gradients of all replicas, clips and applies.

    The objective of a replica is the sum of its token losses over the number
    of tokens of all replicas, so the sum of the replicas' gradients is the
    gradient of the mean over the global batch, whatever each replica's share
    is. Clipping comes after that sum: clipping each replica alone would
    make the limit depend on the number of replicas.

    Args:
        objective: `TrainingObjective`.
        optimizer: Keras optimizer from `create_optimizer`, built with
            `variables`.
        variables: all trainable variables of the run.
        replica_memory: `ReplicaState` of the rows of each replica, with the
            names that `memory_specs` returns.
        clip_norm: float. Largest global norm of the gradients.
        seed: int. Seed of the dropout masks.
        loss_mean: `keras.metrics.Mean` of nats per token.
        gradient_norm_mean: `keras.metrics.Mean` of the norm before clipping.
        weight_average: optional `WeightAverage`, which is kept up to date.
    """

    def __init__(
        self,
        *,
        objective: TrainingObjective,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        replica_memory: ReplicaState,
        clip_norm: float,
        seed: int,
        loss_mean: keras.metrics.Mean,
        gradient_norm_mean: keras.metrics.Mean,
        weight_average: WeightAverage | None = None,
    ) -> None:
        self._objective = objective
        self._optimizer = optimizer
        self._variables = list(variables)
        self._replica_memory = replica_memory
        self._clip_norm = clip_norm
        self._seed = seed
        self._loss_mean = loss_mean
        self._gradient_norm_mean = gradient_norm_mean
        self._weight_average = weight_average

    def __call__(self, batch: dict[str, tf.Tensor]) -> None:
        """Runs the step; inside `strategy.run` only.

        Args:
            batch: dict of int32 `token_ids` and `target_ids` `(B, T)` and bool
                `start_of_stream` `(B,)`, this replica's rows.
        """
        context = tf.distribute.get_replica_context()
        memory = memory_from_state(self._replica_memory.read())
        memory = memory.forget(batch["start_of_stream"])
        loss, gradients, memory = self._gradients(batch, memory, self._dropout_seed(context))
        self._replica_memory.write(memory_to_state(memory))

        loss, *gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, [loss, *gradients])
        gradients, norm = tf.clip_by_global_norm(gradients, self._clip_norm)
        self._optimizer.apply(gradients, self._variables)
        if self._weight_average is not None:
            self._weight_average.update(self._optimizer.iterations.value)
        self._loss_mean.update_state(loss)
        self._gradient_norm_mean.update_state(norm)

    def _gradients(
        self, batch: dict[str, tf.Tensor], memory: Memory, dropout_seed: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
        step = self._optimizer.iterations.value
        with tf.GradientTape() as tape:
            objective, loss, memory = self._objective(batch, memory, dropout_seed, step)
        gradients = tape.gradient(objective, [variable.value for variable in self._variables])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], memory

    def _dropout_seed(self, context: tf.distribute.ReplicaContext) -> tf.Tensor:
        """A seed that no other step and no other replica has."""
        fold_in = tf.random.experimental.stateless_fold_in
        seed = fold_in(tf.constant([self._seed, 0], tf.int32), self._optimizer.iterations.value)
        return fold_in(seed, tf.cast(context.replica_id_in_sync_group, tf.int32))


def memory_specs(memory: Memory) -> dict[str, tf.TensorSpec]:
    """Names and specs of one row of a memory, for a `ReplicaState`.

    Args:
        memory: `Memory` with any number of rows.

    Returns:
        Dict of name to `tf.TensorSpec` without the axis of rows.
    """
    return {
        name: tf.TensorSpec(tensor.shape[1:], tensor.dtype)
        for name, tensor in memory_to_state(memory).items()
    }


def memory_to_state(memory: Memory) -> dict[str, tf.Tensor]:
    """Gives every tensor of a memory its name."""
    state = {f"states/{layer:03d}": tensor for layer, tensor in enumerate(memory.states)}
    return {**state, "valid_length": memory.valid_length}


def memory_from_state(state: dict[str, tf.Tensor]) -> Memory:
    """The reverse of `memory_to_state`."""
    layers = sorted(name for name in state if name.startswith("states/"))
    return Memory(tuple(state[name] for name in layers), state["valid_length"])
