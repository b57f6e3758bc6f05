"""Scores of continuations of any length.

Shape letters used in this module: S tokens, D hidden width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from txl_tf.causal_lm.layer_reader import LayerReader
from txl_tf.config.model import AnyModelConfig
from txl_tf.inference.segment_reader import power_of_two
from txl_tf.layers.compiled_parts import compiled, exact_products

# Positions of one softmax. More of them would fill the memory if the vocabulary is large.
_POSITIONS_AT_ONCE = 64


class Continuation(NamedTuple):
    """A text, int32 vector, whose first `num_context` tokens, at least 1, are only context."""

    token_ids: np.ndarray
    num_context: int


class ContinuationScore(NamedTuple):
    """Nats of each token, float64 `(S,)`, and true if each token is the most probable one."""

    nats: np.ndarray
    is_greedy: bool


class ContinuationScorer:
    """Scorer of continuations, several side by side, each read from an empty memory.

    With the model and `config` of an `Evaluator`, its numbers agree with the scores of whole texts.
    A call yields the index of each continuation and its `ContinuationScore`, in an order by which
    texts of similar length are read together.
    """

    def __init__(
        self, model: keras.Model, batch_size: int = 8, config: AnyModelConfig | None = None
    ) -> None:
        self._model = model
        self._reader = LayerReader(model, batch_size, config=config)
        self._step = compiled(self._score_positions, model)

    def __call__(
        self, continuations: Sequence[Continuation]
    ) -> Iterator[tuple[int, ContinuationScore]]:
        indices = []
        for place, (token_ids, num_context) in enumerate(continuations):
            if len(token_ids) > num_context:
                indices.append(place)
            else:
                yield place, ContinuationScore(np.zeros(0), True)
        for group in self._reader.groups([len(continuations[i].token_ids) for i in indices]):
            places = [indices[i] for i in group]
            yield from zip(places, self._score([continuations[i] for i in places]), strict=True)

    @exact_products()
    def _score(self, texts: Sequence[Continuation]) -> list[ContinuationScore]:
        states_of_row: list[list[np.ndarray]] = [[] for _ in texts]
        # Nothing follows the last token, so it is only a target.
        for row, start, states in self._reader.read([each.token_ids[:-1] for each in texts]):
            states_of_row[row].append(states[max(0, texts[row].num_context - 1 - start) :].copy())
        hidden = np.concatenate([states for row in states_of_row for states in row])  # [S, D]
        rows = [each.token_ids[each.num_context :].astype(np.int32) for each in texts]
        targets, parts = np.concatenate(rows), []
        for start in range(0, len(targets), _POSITIONS_AT_ONCE):
            piece = slice(start, start + _POSITIONS_AT_ONCE)
            count = len(targets[piece])
            # Powers of two limit the number of programs.
            padding = (0, power_of_two(count) - count)
            arrays = np.pad(hidden[piece], [padding, (0, 0)]), np.pad(targets[piece], padding)
            outputs = self._step(*map(ops.convert_to_tensor, arrays))
            parts.append([np.asarray(each)[:count] for each in outputs])
        stops = np.cumsum([len(each) for each in rows])[:-1]
        nats, is_best = (np.split(np.concatenate(each), stops) for each in zip(*parts, strict=True))
        return [
            ContinuationScore(each.astype(np.float64), bool(best.all()))
            for each, best in zip(nats, is_best, strict=True)
        ]

    def _score_positions(self, hidden: Any, target_ids: Any) -> tuple[Any, Any]:
        states = ops.cast(hidden, self._model.compute_dtype)[None]  # [1, S, D]
        log_probs = self._model.log_probs_of(states)[0]  # [S, V]
        nats = -ops.take_along_axis(log_probs, target_ids[:, None], axis=1)[:, 0]
        return nats, ops.equal(ops.cast(ops.argmax(log_probs, axis=1), "int32"), target_ids)
