"""Division of a text into rows and segments for evaluation.

Shape letters used in this module: B rows or windows, T segment or window length, S stride.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import numpy as np

from txl_tf.config.model import ModelConfig, RecurrentConfig


def context_reach(config: ModelConfig | RecurrentConfig) -> int:
    """Computes how many preceding tokens can influence a prediction.

    A layer sees the memory and the segment before a position, of which each
    position was computed by the layer below from what that one saw: every
    layer adds its `M + T - 1` tokens, or `M` where all queries see equally far.
    For a recurrent model it is more than any text has.
    """
    if isinstance(config, RecurrentConfig):
        return sys.maxsize
    memory_length = config.effective_memory_length
    per_layer = memory_length if config.same_length else memory_length + config.segment_length - 1
    return config.num_layers * per_layer


class EvaluationBatch(NamedTuple):
    """One segment of every row, or some windows.

    Of windows only `S` positions have a target: targets, `is_scored` and
    `places` are `(B, S)` then.

    Attributes:
        token_ids: int32 array `(B, T)`.
        target_ids: int32 array `(B, T)`.
        is_scored: bool array `(B, T)`; False where a row warms up, and where it
            has no token left.
        document_starts: bool array `(B, T)`; True for the tokens that begin a
            document, where that is known.
        places: int64 array `(B, T)`; the place of each target in the text.
        positions: optional int32 array `(B, S)`; the positions of a window that the
            targets follow. None for segments, where each position has one.
    """

    token_ids: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray
    document_starts: np.ndarray
    places: np.ndarray
    positions: np.ndarray | None = None

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Returns what a step that scores the batch reads."""
        read = self.token_ids, self.target_ids, self.is_scored, self.document_starts
        return read if self.positions is None else (*read, self.positions)


ReadRange = Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationText:
    """Tokens by their place, and what text they stand for."""

    name: str
    """Name of the split."""
    num_tokens: int
    """Tokens of the text, `n`; the first is nobody's target."""
    read_tokens: ReadRange
    """Function of a start and a stop that returns the token ids between them."""
    read_document_starts: ReadRange | None = None
    """Function of a start and a stop that returns which tokens begin a document."""
    num_bytes: int
    """Bytes of text that all `n` tokens stand for."""
    num_characters: int
    """UTF-8 code points of that text."""
    num_words: int
    """Words of that text."""
    tokenizer_kind: str | None = None
    """Kind of the tokenizer, if it is known."""
    unknown_id: int | None = None
    """Token that stands for text outside the vocabulary, if there is one."""

    @classmethod
    def of_tokens(
        cls,
        name: str,
        token_ids: np.ndarray,
        *,
        num_bytes: int,
        num_characters: int,
        num_words: int,
        tokenizer_kind: str | None = None,
        unknown_id: int | None = None,
    ) -> Self:
        """Builds a text, one document, of an int vector of tokens."""
        return cls(
            name=name,
            num_tokens=len(token_ids),
            read_tokens=lambda start, stop: token_ids[start:stop],
            read_document_starts=lambda start, stop: np.arange(start, stop) == 0,
            num_bytes=num_bytes,
            num_characters=num_characters,
            num_words=num_words,
            tokenizer_kind=tokenizer_kind,
            unknown_id=unknown_id,
        )


# Tokens that are read from the disk at once for a row; a record of a data set has as many.
_READ_TOKENS = 32768


class EvaluationRows:
    """The order in which an evaluation reads a text.

    The `n - 1` targets are shared out as evenly as can be: each row scores one
    contiguous stretch, the first rows one target more than the last. Before
    that it reads the tokens it warms up with, which are not scored. Rows are
    padded to whole segments; nothing is scored after the padding has begun, and
    what comes before it has the positions it has in a whole segment.

    Rows that warm up are cut into segments at multiples of `T` of the text,
    like a single row. Their warm-up is longer for that, by less than `T`.

    Args:
        num_tokens: int. Tokens of the text; at least 2.
        batch_size: int. Rows `B`; fewer where there are fewer targets.
        segment_length: int. `T`.
        warm_up_tokens: int. Tokens that a row reads before its stretch, as far
            as there are any. Defaults to `0`.
        segments_per_step: int. Segments of a row in one batch. Defaults to `1`.

    Raises:
        ValueError: If there is nothing to score.
    """

    def __init__(
        self,
        num_tokens: int,
        batch_size: int,
        segment_length: int,
        warm_up_tokens: int = 0,
        segments_per_step: int = 1,
    ) -> None:
        check_has_targets(num_tokens)
        self.batch_size = min(batch_size, num_tokens - 1)
        self.segments_per_step = segments_per_step
        self._tokens_per_step = segments_per_step * segment_length
        share, remainder = divmod(num_tokens - 1, self.batch_size)
        lengths = share + (np.arange(self.batch_size) < remainder)
        self._stops = np.cumsum(lengths)
        self._starts = self._stops - lengths
        self._begins = self._starts
        if warm_up_tokens > 0:
            earliest = np.maximum(self._starts - min(warm_up_tokens, num_tokens), 0)
            self._begins = earliest // segment_length * segment_length

    @property
    def num_steps(self) -> int:
        """Steps that the evaluation takes."""
        return -(-int(np.max(self._stops - self._begins)) // self._tokens_per_step)

    def batches(self, text: EvaluationText) -> Iterator[EvaluationBatch]:
        """Reads a text of as many tokens; yields the batch of each step, in order."""
        streams = [_RowStream(text, self._tokens_per_step) for _ in range(self.batch_size)]
        for step in range(self.num_steps):
            batch = empty_batch(self.batch_size, self._tokens_per_step)
            for row, stream in enumerate(streams):
                first = int(self._begins[row]) + step * self._tokens_per_step
                count = min(self._tokens_per_step, int(self._stops[row]) - first)
                if count <= 0:
                    continue
                tokens, document_starts = stream.read(first, first + count + 1)
                places = np.arange(first, first + count)
                batch.token_ids[row, :count] = tokens[:-1]
                batch.target_ids[row, :count] = tokens[1:]
                batch.is_scored[row, :count] = places >= self._starts[row]
                batch.document_starts[row, :count] = document_starts[:-1]
                batch.places[row, :count] = places + 1
            yield batch


class EvaluationWindows:
    """The order in which an evaluation reads a text with windows that overlap.

    Windows move on by `S` tokens and score their last `S`, so that every target
    is scored once. The first windows begin at the beginning of the text and the
    last one ends at its end, so all of them are full: absolute positions mean what
    they meant in training. A text shorter than a window is padded to one, and
    read as `EvaluationRows` reads a last segment.

    Args:
        num_tokens: int. Tokens of the text; at least 2.
        batch_size: int. Windows `B` that are read side by side; fewer where
            there are fewer. The last batch is padded with windows that score
            nothing.
        window_length: int. `T`.
        stride: int. `S`, at most `T`.

    Raises:
        ValueError: If there is nothing to score.
    """

    segments_per_step = 1

    def __init__(self, num_tokens: int, batch_size: int, window_length: int, stride: int) -> None:
        check_has_targets(num_tokens)
        self._num_targets = num_tokens - 1
        self._window_length = window_length
        self._stride = stride
        # The first target of each window.
        self._firsts = np.arange(0, self._num_targets, stride)
        self.batch_size = min(batch_size, len(self._firsts))

    @property
    def num_steps(self) -> int:
        """Steps that the evaluation takes."""
        return -(-len(self._firsts) // self.batch_size)

    def batches(self, text: EvaluationText) -> Iterator[EvaluationBatch]:
        """Reads a text of as many tokens; yields the batch of each step, in order."""
        length = self._window_length
        latest = max(self._num_targets - length, 0)
        stream = _RowStream(text, length)
        for begin in range(0, len(self._firsts), self.batch_size):
            batch = empty_batch(self.batch_size, length, self._stride)
            firsts = self._firsts[begin : begin + self.batch_size].tolist()
            for row, first in enumerate(firsts):
                # The last target is that of the window's end, where there is room.
                start = min(max(first + self._stride - length, 0), latest)
                stop = min(start + length, self._num_targets)
                count = min(self._stride, self._num_targets - first)
                tokens, document_starts = stream.read(start, stop + 1)
                batch.token_ids[row, : stop - start] = tokens[:-1]
                batch.document_starts[row, : stop - start] = document_starts[:-1]
                position = first - start
                batch.target_ids[row, :count] = tokens[position + 1 : position + count + 1]
                batch.is_scored[row, :count] = True
                batch.places[row, :count] = np.arange(first, first + count) + 1
                batch.positions[row, :count] = np.arange(position, position + count)
            yield batch


def empty_batch(num_rows: int, num_tokens: int, num_scored: int | None = None) -> EvaluationBatch:
    """Returns a batch that scores nothing.

    Args:
        num_rows: int. `B`.
        num_tokens: int. `T`.
        num_scored: optional int. `S`, of windows; None for segments.
    """
    read = (num_rows, num_tokens)
    scored = read if num_scored is None else (num_rows, num_scored)
    return EvaluationBatch(
        token_ids=np.zeros(read, np.int32),
        target_ids=np.zeros(scored, np.int32),
        is_scored=np.zeros(scored, bool),
        document_starts=np.zeros(read, bool),
        places=np.zeros(scored, np.int64),
        positions=None if num_scored is None else np.zeros(scored, np.int32),
    )


def check_has_targets(num_tokens: int) -> None:
    """Raises ValueError for a text with nothing to score."""
    if num_tokens < 2:
        raise ValueError(
            "A split needs at least 2 tokens, because nothing comes before the first. "
            f"Received: num_tokens={num_tokens}"
        )


class _RowStream:
    """Forward reader of a text in large blocks; a whole record costs as much as a part."""

    def __init__(self, text: EvaluationText, tokens_per_step: int) -> None:
        self._text = text
        self._block_tokens = max(_READ_TOKENS, tokens_per_step + 1)
        self._start = self._stop = 0
        self._tokens = self._document_starts = np.zeros(0)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a range, and which of them begin documents."""
        if not self._start <= start <= stop <= self._stop:
            self._fill(start)
        wanted = slice(start - self._start, stop - self._start)
        return self._tokens[wanted], self._document_starts[wanted]

    def _fill(self, start: int) -> None:
        text = self._text
        self._start = start
        self._stop = min(start + self._block_tokens, text.num_tokens)
        self._tokens = text.read_tokens(self._start, self._stop)
        self._document_starts = np.zeros(self._stop - self._start, bool)
        if text.read_document_starts is not None:
            self._document_starts = text.read_document_starts(self._start, self._stop)
