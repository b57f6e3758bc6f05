"""Order in which an evaluation reads a text: its rows and their batches.

Shape letters used in this module: B rows, T segment length, K stretches.
"""

import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from txl_tf.config.model import AnyModelConfig, RecurrentConfig
from txl_tf.evaluation.evaluation_text import EvaluationText

# A row reads as many tokens from disk at once as a record of a data set has.
_READ_TOKENS = 32768
# Largest total of the warm-ups of all rows, as a share of the text.
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
    """Returns how many tokens fill the memory of a model or settle its recurrent states."""
    is_recurrent = isinstance(config, RecurrentConfig)
    return _RECURRENT_WARM_UP_TOKENS if is_recurrent else config.effective_memory_length


class Stretches(NamedTuple):
    """Parts of a text, each read from an empty memory and scored at its end; int vectors `(K,)`.

    A stretch is read from the token at `begins`. Its warm-up ends at `starts`. From there up to
    `stops`, each token is followed by a target that is scored. A warm-up has at least
    `warm_up_tokens`, or all tokens before `starts` if the text has fewer. Unless these are 0, it
    may be longer, because it begins at a multiple of `T`, as every segment of a single row does.
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
        """Divides the `n - 1` targets into stretches whose lengths differ by at most one.

        By default a warm-up fills the memory. There are at most `most_rows` stretches, and only so
        many that all warm-ups together read at most a quarter of the text. A `warm_up` of
        `"all"` has every token that can influence a score. With `"all"` or a number there are
        `most_rows` stretches, or one for each target if the targets are fewer. Raises ValueError
        if there is nothing to score.
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
        """Spreads stretches evenly over a text; together they read `most_tokens` or fewer.

        The warm-up of a stretch fills the memory, and as many tokens are scored after it, both in
        whole segments. Short stretches leave room for many places, which represent a text better.
        One stretch of one segment is the least.
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
    text. `start` counts the tokens of each stretch before the batch. At 0 memory begins empty.
    """

    token_ids: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray
    document_starts: np.ndarray
    places: np.ndarray
    start: int

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Returns the arrays that a step reads, in the order of its arguments."""
        return self.token_ids, self.target_ids, self.is_scored, self.document_starts


class EvaluationRows:
    """Order in which an evaluation reads stretches of a text in rows, side by side.

    With more stretches than `num_rows` there are several rounds. In each round every row reads one
    stretch from an empty memory, in as many steps as the longest stretch needs. A batch is one step
    of all rows: `segments_per_step` segments, or fewer if the longest stretch has fewer. Padding
    fills it up after the scored tokens, so these keep the positions they have in a whole segment.
    `num_steps` counts the steps of all rounds.
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
        """Reads a text and yields the batch of each step, in order."""
        streams = [_RowStream(text, self._block_tokens) for _ in range(self.batch_size)]
        for index in range(self.num_steps):
            round_, step = divmod(index, self._steps_per_round)
            stretches = range(round_ * self.batch_size, len(self._begins))
            batch = empty_batch(self.batch_size, self._step_tokens, start=step * self._step_tokens)
            for row, (stream, stretch) in enumerate(zip(streams, stretches, strict=False)):
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
    """Reader of one row, which goes forward through a text.

    It reads large blocks, because a part of a record on disk costs as much as the whole record.
    """

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
