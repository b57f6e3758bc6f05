"""Scores of continuations, the last tokens of texts that are read with memory.

Shape letters used in this module:
  R texts, B rows read side by side, S scored tokens, D hidden width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.causal_lm.text_features import LayerReader, groups_by_length
from txl_tf.evaluation.evaluation_model import exact_products
from txl_tf.models.sizes import hidden_layer

# Positions per softmax: with a large vocabulary more would fill the memory.
_POSITIONS_AT_ONCE = 64


class Continuation(NamedTuple):
    """Tokens of a text, of a context and the continuation to score."""

    token_ids: np.ndarray
    """int32 vector of the tokens: the context and its continuation."""
    num_context: int
    """Number of context tokens, at least 1, which are read but not scored."""


class ContinuationScore(NamedTuple):
    """Negative log-likelihood of a continuation."""

    nats: np.ndarray
    """float64 vector `(S,)` of the nats of each token."""
    is_greedy: bool
    """True if each token is the most probable one."""


class ContinuationScorer:
    """Scorer of continuations, many side by side.

    Each text may have any length and is read segment by segment, from an empty memory. With the
    model of an `Evaluator` the results are equal. The softmax is computed only for the scored
    tokens. `batch_size` limits the texts read side by side and has no influence on scores.

    A call returns an iterator of pairs: the index of a continuation and its `ContinuationScore`;
    texts of similar length come together. Without `checks_greedy`, `is_greedy` is False, which
    saves the probabilities of all other tokens. Raises ValueError for a continuation without
    context.
    """

    def __init__(self, model: keras.Model, batch_size: int = 8) -> None:
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        self._model = model
        self._batch_size = batch_size
        self._readers: dict[int, LayerReader] = {}
        self._step = tf.function(self._score_positions, autograph=False)

    def __call__(
        self, continuations: Sequence[Continuation], *, checks_greedy: bool = True
    ) -> Iterator[tuple[int, ContinuationScore]]:
        if any(each.num_context < 1 for each in continuations):
            raise ValueError(
                "A continuation must have a context of at least 1 token. "
                f"Received: {[each.num_context for each in continuations]}"
            )
        scored = []
        for place, (token_ids, num_context) in enumerate(continuations):
            if len(token_ids) > num_context:
                scored.append(place)
            else:
                yield place, ContinuationScore(np.zeros(0), True)
        num_rows = min(self._batch_size, len(scored))
        lengths = [len(continuations[place].token_ids) for place in scored]
        for group in groups_by_length(lengths, num_rows) if scored else ():
            places = [scored[i] for i in group]
            texts = [continuations[place] for place in places]
            yield from zip(places, self._score_group(texts, num_rows, checks_greedy), strict=True)

    @exact_products()
    def _score_group(
        self, texts: Sequence[Continuation], num_rows: int, checks_greedy: bool
    ) -> list[ContinuationScore]:
        kept = [_LastStates(each.num_context - 1) for each in texts]
        # Nothing follows the last token, so it is only a target.
        rows = [each.token_ids[:-1] for each in texts]
        self._reader(num_rows).read(rows, [each.add for each in kept])
        targets = [each.token_ids[each.num_context :] for each in texts]
        nats, is_best = self._score(
            np.concatenate([each.states() for each in kept]), np.concatenate(targets), checks_greedy
        )
        stops = np.cumsum([len(each) for each in targets])[:-1]
        pairs = zip(np.split(nats, stops), np.split(is_best, stops), strict=True)
        return [ContinuationScore(each, bool(best.all())) for each, best in pairs]

    def _reader(self, num_rows: int) -> LayerReader:
        if num_rows not in self._readers:
            last = hidden_layer(self._model.config, None)
            self._readers[num_rows] = LayerReader(self._model, num_rows, last)
        return self._readers[num_rows]

    def _score(
        self, hidden: np.ndarray, target_ids: np.ndarray, checks_greedy: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores targets `(S,)` from hidden states `(S, D)`, some positions at a time."""
        nats = np.zeros(len(target_ids), np.float64)
        is_best = np.zeros(len(target_ids), bool)
        for start in range(0, len(target_ids), _POSITIONS_AT_ONCE):
            piece = slice(start, start + _POSITIONS_AT_ONCE)
            count = len(target_ids[piece])
            # Powers of two limit the number of programs.
            padding = (1 << (count - 1).bit_length()) - count
            states = np.pad(hidden[piece], [(0, padding), (0, 0)])
            targets = np.pad(target_ids[piece].astype(np.int32), (0, padding))
            found = self._step(tf.constant(states), tf.constant(targets), checks_greedy)
            nats[piece], is_best[piece] = (each.numpy()[:count] for each in found)
        return nats, is_best

    def _score_positions(
        self, hidden: tf.Tensor, target_ids: tf.Tensor, checks_greedy: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        states = ops.cast(hidden, self._model.compute_dtype)[None]  # [1, S, D]
        nats = self._model.negative_log_likelihood(states, target_ids[None])[0]  # [S]
        if not checks_greedy:
            return nats, tf.zeros_like(target_ids, tf.bool)
        log_probs = self._model.log_probs_of(states)[0]  # [S, V]
        best = tf.argmax(log_probs, axis=1, output_type=target_ids.dtype)
        return nats, tf.equal(best, target_ids)


class _LastStates:
    """Collector of the states of a text from a position on."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._num_seen = 0
        self._parts: list[np.ndarray] = []

    def add(self, states: np.ndarray) -> None:
        """Adds the states `(T, D)` of the next tokens."""
        kept = states[max(0, self._first - self._num_seen) :]
        self._num_seen += len(states)
        if len(kept):
            self._parts.append(kept.copy())

    def states(self) -> np.ndarray:
        """Returns the states `(S, D)`."""
        return np.concatenate(self._parts)
