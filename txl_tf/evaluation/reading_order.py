"""Order in which an evaluation reads a text: its rows and their batches.

Shape letters used in this module: B rows, T segment length, K stretches.
"""

import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from txl_tf.config.model import AnyModelConfig, RecurrentConfig
from txl_tf.evaluation.evaluation_text import EvaluationText

# Tokens read from disk at once for a row, as many as a record of a data set has.
_READ_TOKENS = 32768
# Most tokens that rows read before their own, as a share of the text.
_MAX_WARM_UP_SHARE = 0.25
# An LSTM uses about 200 tokens of context (Khandelwal et al., 2018).
_RECURRENT_WARM_UP_TOKENS = 256


def context_reach(config: AnyModelConfig) -> int:
    """Computes how many preceding tokens can influence a prediction.

    A layer sees the memory and the segment before a position, and the layer below computed each
    of these from as many tokens again. So every layer adds `M + T - 1` tokens, or `M` if all
    queries see equally far. For a recurrent model the result exceeds any text.
    """
    if isinstance(config, RecurrentConfig):
        return sys.maxsize
    memory_length = config.effective_memory_length
    per_layer = memory_length if config.same_length else memory_length + config.segment_length - 1
    return config.num_layers * per_layer


def memory_tokens(config: AnyModelConfig) -> int:
    """Returns how many tokens fill the memory of a model."""
    is_recurrent = isinstance(config, RecurrentConfig)
    return _RECURRENT_WARM_UP_TOKENS if is_recurrent else config.effective_memory_length


class Stretches(NamedTuple):
    """Parts of a text, each read from an empty memory and scored at its end; int vectors `(K,)`.

    A stretch reads from token `begins` on. It scores the targets of the tokens from `starts` up to
    `stops`. At least `warm_up_tokens` lie between `begins` and `starts`, or all tokens before
    `starts` if the text has fewer. `begins` is a multiple of `T`, as in a single row, so it may lie
    earlier.
    """

    begins: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    warm_up_tokens: int

    @classmethod
    def of_text(
        cls,
        num_tokens: int,
        most_rows: int,
        config: AnyModelConfig,
        warm_up: int | Literal["all"] | None = None,
    ) -> "Stretches":
        """Divides the `n - 1` targets as evenly as possible; the first get one more than the last.

        By default tokens that fill the memory come before each stretch, and the stretches are as
        many as read a quarter of the text twice at most. With a `warm_up` they are `most_rows`, or
        one for each target. ValueError if there is nothing to score.
        """
        check_has_targets(num_tokens)
        num_targets, length = num_tokens - 1, config.segment_length
        num_rows, begins_segment = min(most_rows, num_targets), warm_up != 0
        if warm_up is None:
            warm_up = memory_tokens(config)
            most_tokens = max(warm_up + length - 1, 1)
            num_rows = min(num_rows, 1 + int(_MAX_WARM_UP_SHARE * num_targets) // most_tokens)
            warm_up = warm_up if num_rows > 1 else 0
        elif warm_up == "all":
            warm_up = context_reach(config)
        warm_up = min(warm_up, num_tokens)
        share, remainder = divmod(num_targets, num_rows)
        lengths = share + (np.arange(num_rows) < remainder)
        stops = np.cumsum(lengths)
        starts = begins = stops - lengths
        if begins_segment:
            begins = np.maximum(starts - warm_up, 0) // length * length
        return cls(begins, starts, stops, warm_up)

    @classmethod
    def sample(cls, num_tokens: int, most_tokens: int, config: AnyModelConfig) -> "Stretches":
        """Spreads stretches evenly over a text, which read at most `most_tokens`.

        Each scores as many tokens as fill the memory, after a warm-up of as many, in whole
        segments: many places represent a text better than long stretches do.
        """
        check_has_targets(num_tokens)
        length, num_targets = config.segment_length, num_tokens - 1
        warm_up = -(-memory_tokens(config) // length) * length
        warm_up = min(warm_up, most_tokens // (2 * length) * length)
        num_read = warm_up + max(warm_up, length)
        count = max(1, most_tokens // num_read)
        centers = (2 * np.arange(count) + 1) * num_targets // (2 * count)
        begins = np.maximum(centers - num_read // 2, 0) // length * length
        stops = np.minimum(begins + num_read, num_targets)
        return cls(begins, begins + warm_up, stops, warm_up)


class EvaluationBatch(NamedTuple):
    """Some segments of every row.

    Arrays are `(B, T)`. `is_scored` is false for warm-up and padding, `document_starts` is true for
    the first tokens of documents, where known, and `places` are the indices of the targets in the
    text. `start` counts the tokens of the rows before the batch.
    """

    token_ids: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray
    document_starts: np.ndarray
    places: np.ndarray
    start: int

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Returns the arrays that a scoring step reads."""
        return self.token_ids, self.target_ids, self.is_scored, self.document_starts


class EvaluationRows:
    """Order in which an evaluation reads stretches of a text in rows, side by side.

    Rows are padded to whole segments; padding comes after all scored tokens, which keep the
    positions they have in a whole segment. With more stretches than `num_rows`, each row reads
    several, one after the other. A batch has `segments_per_step` segments, or all of a shorter
    stretch.
    """

    def __init__(
        self, stretches: Stretches, num_rows: int, segment_length: int, segments_per_step: int = 1
    ) -> None:
        self._begins, self._starts, self._stops, self.warm_up_tokens = stretches
        num_rounds = -(-len(self._begins) // num_rows)
        self.batch_size = -(-len(self._begins) // num_rounds)
        longest = int(np.max(self._stops - self._begins))
        self.segments_per_step = min(segments_per_step, -(-longest // segment_length))
        self._step_tokens = self.segments_per_step * segment_length
        self._block_tokens = max(self._step_tokens, min(longest, _READ_TOKENS)) + 1
        self._steps_per_round = -(-longest // self._step_tokens)
        self.num_steps = num_rounds * self._steps_per_round

    def batches(self, text: EvaluationText) -> Iterator[EvaluationBatch]:
        """Reads a text; yields the batch of each step, in order."""
        streams = [_RowStream(text, self._block_tokens) for _ in range(self.batch_size)]
        for index in range(self.num_steps):
            round_, step = divmod(index, self._steps_per_round)
            of_round = range(round_ * self.batch_size, len(self._begins))
            batch = empty_batch(self.batch_size, self._step_tokens, start=step * self._step_tokens)
            for row, (stream, stretch) in enumerate(zip(streams, of_round, strict=False)):
                first = int(self._begins[stretch]) + batch.start
                count = min(self._step_tokens, int(self._stops[stretch]) - first)
                if count <= 0:
                    continue
                tokens, document_starts = stream.read(first, first + count + 1)
                places = np.arange(first, first + count)
                batch.token_ids[row, :count] = tokens[:-1]
                batch.target_ids[row, :count] = tokens[1:]
                batch.is_scored[row, :count] = places >= self._starts[stretch]
                batch.document_starts[row, :count] = document_starts[:-1]
                batch.places[row, :count] = places + 1
            yield batch


def empty_batch(num_rows: int, num_tokens: int, start: int = 0) -> EvaluationBatch:
    """Returns a batch that scores nothing."""
    shape = (num_rows, num_tokens)
    return EvaluationBatch(
        token_ids=np.zeros(shape, np.int32),
        target_ids=np.zeros(shape, np.int32),
        is_scored=np.zeros(shape, bool),
        document_starts=np.zeros(shape, bool),
        places=np.zeros(shape, np.int64),
        start=start,
    )


def check_has_targets(num_tokens: int) -> None:
    """Raises ValueError for a text with nothing to score."""
    if num_tokens < 2:
        raise ValueError(
            "A split needs at least 2 tokens, because the first token has no score. "
            f"Received: num_tokens={num_tokens}"
        )


class _RowStream:
    """Forward reader of a text in large blocks: part of a record costs as much as the whole."""

    def __init__(self, text: EvaluationText, block_tokens: int) -> None:
        self._text = text
        self._block_tokens = block_tokens
        self._start = self._stop = 0
        self._tokens = self._document_starts = np.zeros(0)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a range, and which of them begin documents."""
        if not self._start <= start <= stop <= self._stop:
            self._start = start
            self._stop = min(start + self._block_tokens, self._text.num_tokens)
            self._tokens = self._text.read_tokens(start, self._stop)
            self._document_starts = self._text.read_document_starts(start, self._stop)
        window = slice(start - self._start, stop - self._start)
        return self._tokens[window], self._document_starts[window]
