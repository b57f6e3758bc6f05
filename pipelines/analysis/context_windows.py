"""Losses of a trained model by context length, one window per token.

Shape letters used in this module: N tokens, C context length, B windows, A window length, S
stride.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import NonFiniteError, UsageError
from txl_tf.evaluation.result import MeasuredLoss
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.models.transformer_xl import TransformerXL


class ContextWindows:
    """Tokens drawn from a split, each with the longest context before it.

    What is before a token is the text of the split as it stands: it goes back
    beyond the beginning of the token's document.

    Args:
        dataset: `PreparedDataset`.
        split: str. Name of the split.
        longest: int. The longest context length; tokens with less before them
            are not drawn.
        num_tokens: int. Tokens to draw; all that there are, where there are
            fewer.
        seed: int. Decides which tokens are drawn.

    Attributes:
        positions: int array `(N,)`. Where in the split the tokens are, ascending.

    Raises:
        UsageError: If there is no such split, or no token with so long a
            context.
    """

    def __init__(
        self, dataset: PreparedDataset, split: str, longest: int, num_tokens: int, seed: int
    ) -> None:
        if split not in dataset.manifest.split_names:
            raise UsageError(
                f"There is no split {split} in this data set.",
                where=dataset.folder,
                remedy=f"There are: {', '.join(dataset.manifest.split_names)}.",
            )
        num_possible = dataset.num_tokens(split) - longest
        if num_possible <= 0:
            raise UsageError(
                f"The split {split} has no token with {longest} tokens before it.",
                where=dataset.folder,
                remedy="Shorten --context, or take another --split.",
            )
        drawn = np.random.default_rng(seed).choice(
            num_possible, min(num_tokens, num_possible), replace=False
        )
        self.positions = np.sort(drawn) + longest
        self._windows = np.stack(
            [
                dataset.read_tokens(split, position - longest, position + 1)
                for position in map(int, self.positions)
            ]
        )

    def of_length(self, context: int) -> np.ndarray:
        """Returns the scored tokens with the given number of context tokens.

        Args:
            context: int. Context length `C`, at most the longest.

        Returns:
            Int array `(N, C + 1)`; the token itself is the last.
        """
        return self._windows[:, -(context + 1) :]


Track = Callable[[Iterable, int], Iterable]


class WindowBatch(NamedTuple):
    """Batch of windows with the targets that are scored in each.

    Attributes:
        token_ids: int32 array `(B, A)`.
        first_scored: int32 array `(B,)`. The first position that is scored.
        target_ids: int32 array `(B, S)`. The targets from there on.
        is_scored: bool array `(B, S)`.
    """

    token_ids: np.ndarray
    first_scored: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray


def window_batches(
    text: EvaluationText, window_length: int, stride: int, batch_size: int
) -> Iterator[WindowBatch]:
    """Cuts a text into windows so that every target is scored exactly once.

    Windows move on by `stride` tokens and score their last ones. The first
    windows begin at the beginning of the text and the last end at its end,
    so all of them are full.

    Args:
        text: `EvaluationText` of more than `window_length` tokens.
        window_length: int. `A`.
        stride: int. `S`.
        batch_size: int. `B`.

    Yields:
        A `WindowBatch`; the last one is filled up with windows that score
        nothing.

    Raises:
        ValueError: If the text is shorter than a window.
    """
    num_targets = text.num_tokens - 1
    if num_targets < window_length:
        raise ValueError(
            "A text must be longer than a window. "
            f"Received: num_tokens={text.num_tokens}, window_length={window_length}"
        )
    firsts = np.arange(0, num_targets, stride)
    for begin in range(0, len(firsts), batch_size):
        batch = WindowBatch(
            np.zeros((batch_size, window_length), np.int32),
            np.zeros(batch_size, np.int32),
            np.zeros((batch_size, stride), np.int32),
            np.zeros((batch_size, stride), bool),
        )
        for row, first in enumerate(firsts[begin : begin + batch_size].tolist()):
            # The last position that is scored is the last one of the window, where there is room.
            start = min(max(first + stride - window_length, 0), num_targets - window_length)
            tokens = text.read_tokens(start, start + window_length + 1)
            count = min(stride, num_targets - first)
            offset = first - start
            batch.token_ids[row] = tokens[:-1]
            batch.first_scored[row] = offset
            batch.target_ids[row, :count] = tokens[offset + 1 : offset + count + 1]
            batch.is_scored[row, :count] = True
        yield batch


def evaluate_windows(
    model: TransformerXL,
    text: EvaluationText,
    *,
    window_length: int,
    stride: int,
    batch_size: int,
    jit_compile: bool = True,
    track: Track | None = None,
) -> MeasuredLoss:
    """Scores every token of a text with a sliding window of preceding tokens.

    Every token but the first ones of the text is predicted from
    `window_length - stride + 1` to `window_length` tokens. That is how Dai et
    al. (2019) evaluate models without recurrence, and Al-Rfou et al. (2019)
    with a stride of 1.

    Args:
        model: `TransformerXL` without recurrence.
        text: `EvaluationText`.
        window_length: int. `A`.
        stride: int. `S`, at most `A`.
        batch_size: int. Windows that are computed side by side.
        jit_compile: bool. Whether the step is compiled with XLA.
        track: optional function that passes the batches on and shows progress;
            it is given them and their number.

    Raises:
        NonFiniteError: If the total is not finite.
        ValueError: If the text is shorter than a window.
    """
    begin = time.perf_counter()
    num_targets = text.num_tokens - 1
    score = tf.function(_scorer(model, batch_size), jit_compile=jit_compile, autograph=False)
    batches: Iterable[WindowBatch] = window_batches(text, window_length, stride, batch_size)
    if track is not None:
        batches = track(batches, math.ceil(num_targets / (stride * batch_size)))
    total_nats = 0.0
    for batch in batches:
        total_nats += float(score(*map(tf.constant, batch)))
    if not np.isfinite(total_nats):
        raise NonFiniteError(
            f"The loss of the split {text.name} is not finite: {total_nats}.",
            where=f"windows of {window_length} tokens",
            remedy="Train with a lower learning rate.",
        )
    return MeasuredLoss(
        total_nats=total_nats,
        num_tokens=num_targets,
        num_bytes=text.num_bytes * num_targets / text.num_tokens,
        seconds=time.perf_counter() - begin,
    )


def _scorer(model: TransformerXL, batch_size: int) -> Callable[..., tf.Tensor]:
    memory = model.initial_memory(batch_size, 0)

    def score(
        token_ids: tf.Tensor, first_scored: tf.Tensor, target_ids: tf.Tensor, is_scored: tf.Tensor
    ) -> tf.Tensor:
        hidden, _ = model(token_ids, memory)  # [B, A, D]
        # Past the end where there is nothing to score; the last position stands in for it.
        positions = first_scored[:, None] + tf.range(target_ids.shape[1])[None]
        positions = tf.minimum(positions, token_ids.shape[1] - 1)
        hidden = tf.gather(hidden, positions, batch_dims=1)  # [B, S, D]
        nll = tf.cast(model.negative_log_likelihood(hidden, target_ids), tf.float64)
        return tf.reduce_sum(tf.where(is_scored, nll, tf.zeros([], tf.float64)))

    return score
