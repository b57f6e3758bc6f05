"""Evaluator of a task, which computes outputs and metrics of examples on all replicas.

Shape letters used in this module: B rows of a batch, E examples, L positions of a text, C outputs.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import EvaluatedModel
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.evaluation_model import (
    copy_values,
    create_evaluation_model,
    share_variables,
)
from txl_tf.evaluation.replica_rows import ReplicaRows
from txl_tf.evaluation.result import TaskResult
from txl_tf.imports import is_on_jax
from txl_tf.inference.segment_reader import power_of_two
from txl_tf.layers.compiled_parts import compiled, exact_products
from txl_tf.models.headed import create_headed_model, padded_inputs
from txl_tf.models.language_model import assign_weights
from txl_tf.tasks.answers import answers_of
from txl_tf.tasks.encoding import EncodedExamples
from txl_tf.tasks.metrics import compute_metrics

Track = Callable[[Iterable[Any], int], Iterable[Any]]


class TaskEvaluator:
    """Evaluator of a model with the head of a task.

    `variables`, if passed, are the weights of model and head, as described at `Evaluator`.
    """

    def __init__(
        self,
        config: EvaluatedModel,
        strategy: tf.distribute.Strategy | None = None,
        variables: Mapping[str, keras.Variable] | None = None,
    ) -> None:
        assert config.task is not None
        self.config = config
        self._task = config.task
        is_alone = is_on_jax() or strategy is tf.distribute.get_strategy()
        self._strategy = None if is_alone else strategy
        self._variables = variables
        self.reads_given_variables = variables is not None
        model = create_evaluation_model(
            config.model, config.evaluation.dtype_policy, self._strategy, variables
        )
        scope = tf.distribute.get_strategy() if self._strategy is None else self._strategy
        with scope.scope():
            self.model = create_headed_model(model, config.task)
        weights = [*self.model.language_model.weights, *self.model.head.weights]
        self._weights = {variable.path: variable for variable in weights}
        if variables is not None:
            share_variables(self.model.head.weights, variables)
        # TPUStrategy compiles this without being told. Elsewhere XLA is off under a strategy,
        # because it would read a mirrored variable of the wrong device.
        compiles = config.may_compile and self._strategy is None
        self._function = compiled(self._outputs, self.model, compiles)

    def load_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Loads weights of model and head by path; raises MismatchError if they do not fit."""
        assign_weights(self._weights, arrays)

    def evaluate(
        self,
        encoded: EncodedExamples,
        metrics: Sequence[str],
        *,
        split: str,
        step: int,
        track: Track | None = None,
    ) -> TaskResult:
        """Predicts the answers of all examples and compares them with the labels.

        `metrics` are names for `compute_metrics`. `track`, see `outputs`, may show progress. Raises
        NonFiniteError if an output is not finite.
        """
        begin = time.perf_counter()
        predictions, _ = answers_of(self._task, self.outputs(encoded, track))
        return TaskResult(
            split=split,
            step=step,
            figures=compute_metrics(
                metrics, self._task.kind, self._task.labels or (), encoded.examples, predictions
            ),
            num_examples=len(encoded.examples),
            num_tokens=len(encoded.token_ids),
            seconds=time.perf_counter() - begin,
        )

    @exact_products()
    def outputs(self, encoded: EncodedExamples, track: Track | None = None) -> np.ndarray:
        """Computes the model's outputs for each example, in order, float32 `(E, C)`.

        A batch has texts of similar length. All batches of a call have one shape, whose numbers of
        rows and segments are powers of two or the batch size, so that many calls need few programs.
        `track` gets the begins of the batches and their number, and yields the begins. Raises
        NonFiniteError if an output is not finite.
        """
        segment_length = self.config.model.segment_length
        num_segments = encoded.padded_length(segment_length) // segment_length
        length = segment_length * power_of_two(num_segments)
        num_rows = min(self.config.evaluation.batch_size, power_of_two(len(encoded.examples)))
        copy_values(self._weights.values(), self._variables)
        rows = ReplicaRows(self._strategy, num_rows)
        order = np.argsort(-encoded.num_tokens, kind="stable")
        begins = range(0, len(order), num_rows)
        outputs = np.zeros((len(order), self._task.num_outputs), np.float32)
        for begin in begins if track is None else track(begins, len(begins)):
            numbers = order[begin : begin + num_rows]
            batch = rows.split(_gather_batch(encoded, numbers, num_rows, length))
            if self._strategy is None:
                values = self._function(*batch)
            else:
                values = self._strategy.run(self._function, args=batch)
            outputs[numbers] = batch_outputs = rows.join(values)[: len(numbers)]
            is_finite = np.isfinite(batch_outputs).all(axis=1)
            if not is_finite.all():
                raise NonFiniteError(
                    "A prediction is not finite.",
                    where=encoded.examples[int(numbers[is_finite.argmin()])].where,
                    remedy="Name another checkpoint, or lower the learning rate.",
                )
        return outputs

    def _outputs(self, token_ids: Any, num_tokens: Any) -> Any:
        return self.model.call(padded_inputs(token_ids, num_tokens), training=False)


def gather_texts(stream: Any, offsets: Any, texts: Any, length: int) -> tuple[Any, Any]:
    """Returns the ids `(B, L)` of texts in a stream, padded with 0, and their lengths, int32.

    `offsets` are the places where texts begin, `texts` the numbers of the texts. TensorFlow
    computes this on any backend, because input pipelines of `tf.data` call it too.
    """
    begins = tf.gather(offsets, texts)
    counts = tf.gather(offsets, texts + 1) - begins
    places = tf.range(length, dtype=counts.dtype)
    is_token = places < counts[:, None]
    token_ids = tf.gather(stream, tf.where(is_token, begins[:, None] + places, 0))
    return tf.where(is_token, tf.cast(token_ids, tf.int32), 0), tf.cast(counts, tf.int32)


def _gather_batch(
    encoded: EncodedExamples, numbers: np.ndarray, num_rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens `(B, L)` and counts `(B,)` of examples; the last one fills missing rows."""
    numbers = np.pad(numbers, (0, num_rows - len(numbers)), mode="edge")
    token_ids, counts = gather_texts(encoded.token_ids, encoded.offsets, numbers, length)
    return np.asarray(token_ids), np.asarray(counts)
