"""Dynamic evaluation, which scores a segment and then takes a gradient step on it.

Shape letters used in this module: B rows, T segment length.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.distribution.step_context import current_value
from txl_tf.imports import is_on_jax, jax, tensorflow as tf
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.memory import Memory


class DynamicEvaluation:
    """Scorer of segments whose weights follow the text.

    The weights are a part of the state that `score` takes and returns, so the model keeps its
    trained weights. A token is scored by weights that have learned from earlier tokens
    only. Later weights read the memory as the earlier weights computed it.

    With the gradient `g` of the segment's mean loss, the learning rate `r` and the decay `d`, the
    weights `w` become `w - r * g + d * (w0 - w)`, where `w0` are the trained weights.

    References:
     - [Krause et al., 2018](https://arxiv.org/abs/1709.07432)
    """

    def __init__(self, model: keras.Model, config: EvaluationConfig) -> None:
        self._engine = InferenceEngine(model, keeps_states=True)
        self._variables = list(model.trainable_variables)
        self._constants = list(model.non_trainable_variables)
        self._learning_rate = config.dynamic_learning_rate
        self._decay = config.dynamic_decay or 0.0

    def trained_weights(self) -> list[Any]:
        """Returns the model's own weights, with which the scoring of a text begins."""
        return [current_value(variable) for variable in self._variables]

    def score(
        self,
        token_ids: Any,
        target_ids: Any,
        is_scored: Any,
        state: tuple[Memory, list[Any]],
        document_starts: Any,
    ) -> tuple[Any, tuple[Memory, list[Any]]]:
        """Scores one segment `(B, T)` of every row, then learns from its scored tokens.

        `state` is the pair of memory and weights. Returns the nats, float32 `(B, T)`, and the next
        state.
        """
        memory, weights = state
        # The values of an outer scope are passed on, because an inner scope hides them.
        constants = [(variable, variable.value) for variable in self._constants]

        def loss_of(weights: list[Any]) -> tuple[Any, tuple[Any, Memory]]:
            replacements = zip(self._variables, weights, strict=True)
            with keras.StatelessScope([*constants, *replacements]):
                nll, after = self._engine.score(
                    token_ids, target_ids, memory, document_starts=document_starts
                )
            scored_nll = ops.where(is_scored, nll, 0.0)
            loss = ops.sum(scored_nll) / ops.sum(ops.cast(is_scored, "float32"))
            return loss, (nll, after)

        (nll, after), gradients = _results_and_gradients(loss_of, weights)
        weights = [
            weight - self._learning_rate * gradient + self._decay * (trained_weight - weight)
            for weight, trained_weight, gradient in zip(
                weights, self.trained_weights(), gradients, strict=True
            )
        ]
        return nll, (after, weights)


def _results_and_gradients(
    function: Callable[[list[Any]], tuple[Any, Any]], values: list[Any]
) -> tuple[Any, list[Any]]:
    """Calls a function that returns a loss and results; returns the results and the gradients."""
    if is_on_jax():
        (_, results), gradients = jax.value_and_grad(function, has_aux=True)(values)
        return results, gradients
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss, results = function(values)
    gradients = tape.gradient(loss, values, unconnected_gradients="zero")
    # Gradients of embeddings are sparse.
    return results, [tf.convert_to_tensor(gradient) for gradient in gradients]
