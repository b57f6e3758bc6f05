"""Division of a text into rows and segments for evaluation.

Shape letters used in this module: B rows or windows, T segment or window length, S stride.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from txl_tf.config.model import ModelConfig, RecurrentConfig


def context_reach(config: ModelConfig | RecurrentConfig) -> int:
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


class EvaluationBatch(NamedTuple):
    """One segment of every row, or some windows.

    Arrays are `(B, T)`. For windows, targets, `is_scored` and `places` are `(B, S)`, and
    `positions` `(B, S)` are the positions before the targets. `is_scored` is false for warm-up
    and padding, `document_starts` is true for the first tokens of documents, where known, and
    `places` are the indices of the targets in the text.
    """

    token_ids: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray
    document_starts: np.ndarray
    places: np.ndarray
    positions: np.ndarray | None = None

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Returns the arrays that a scoring step reads."""
        read = self.token_ids, self.target_ids, self.is_scored, self.document_starts
        return read if self.positions is None else (*read, self.positions)


ReadRange = Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationText:
    """Tokens by their place, with counts of the text they represent."""

    name: str
    """Name of the split."""
    num_tokens: int
    """Tokens of the text, `n`; the first is not a target."""
    read_tokens: ReadRange
    """Function of a start and a stop that returns the token ids between them."""
    read_document_starts: ReadRange | None = None
    """Function of a start and a stop that returns which tokens begin a document."""
    num_bytes: int
    """Bytes of text that all `n` tokens represent."""
    num_characters: int
    """UTF-8 code points of that text."""
    num_words: int
    """Words of that text."""
    tokenizer_kind: str | None = None
    """Kind of the tokenizer, if it is known."""
    unknown_id: int | None = None
    """Token for text outside the vocabulary, if there is one."""

    @classmethod
    def of_tokens(cls, name: str, token_ids: np.ndarray, **counts: Any) -> Self:
        """Builds a text of one document from an int vector of tokens, and the other fields."""
        return cls(
            name=name,
            num_tokens=len(token_ids),
            read_tokens=lambda start, stop: token_ids[start:stop],
            read_document_starts=lambda start, stop: np.arange(start, stop) == 0,
            **counts,
        )

    @classmethod
    def of_content(cls, content: bytes, token_ids: np.ndarray, **tokenizer: Any) -> Self:
        """Builds a text of one document from its UTF-8 bytes, its tokens, and the other fields."""
        if tokenizer.get("tokenizer_kind") == "ids":
            content = b""  # digits and labels are not the data
        # The lowest bytes, read as signed, continue a code point.
        num_characters = int(np.count_nonzero(np.frombuffer(content, np.int8) >= -64))
        return cls.of_tokens(
            "text",
            token_ids,
            num_bytes=len(content),
            num_characters=num_characters,
            num_words=len(content.split()),
            **tokenizer,
        )


# Tokens read from disk at once for a row, as many as a record of a data set has.
_READ_TOKENS = 32768


class EvaluationRows:
    """Order in which an evaluation reads a text in rows.

    The `n - 1` targets are divided as evenly as possible: each row scores one contiguous stretch,
    the first rows one target more than the last. Before its stretch a row reads warm-up tokens,
    which are not scored. Rows are padded to whole segments; padding comes after all scored tokens,
    which keep the positions they have in a whole segment.

    Rows that warm up are cut into segments at multiples of `T` in the text, as a single row is.
    This lengthens their warm-up by less than `T`. Raises ValueError if there is nothing to score.
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
        """Number of steps of the evaluation."""
        return -(-int(np.max(self._stops - self._begins)) // self._tokens_per_step)

    def batches(self, text: EvaluationText) -> Iterator[EvaluationBatch]:
        """Reads a text of `num_tokens` tokens; yields the batch of each step, in order."""
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
    """Order in which an evaluation reads a text with overlapping windows.

    Windows advance by `S` tokens and score their last `S`, so that every target is scored once. The
    first window begins with the text and the last one ends with it, so all are full, and absolute
    positions mean the same as in training. A text shorter than a window is padded and read as the
    last segment of `EvaluationRows`. The last batch is padded with windows that score nothing.
    Raises ValueError if there is nothing to score.
    """

    segments_per_step = 1

    def __init__(self, num_tokens: int, batch_size: int, window_length: int, stride: int) -> None:
        check_has_targets(num_tokens)
        self._num_targets = num_tokens - 1
        self._window_length = window_length
        self._stride = stride
        # First target of each window.
        self._firsts = np.arange(0, self._num_targets, stride)
        self.batch_size = min(batch_size, len(self._firsts))

    @property
    def num_steps(self) -> int:
        """Number of steps of the evaluation."""
        return -(-len(self._firsts) // self.batch_size)

    def batches(self, text: EvaluationText) -> Iterator[EvaluationBatch]:
        """Reads a text of `num_tokens` tokens; yields the batch of each step, in order."""
        length = self._window_length
        latest = max(self._num_targets - length, 0)
        stream = _RowStream(text, length)
        for begin in range(0, len(self._firsts), self.batch_size):
            batch = empty_batch(self.batch_size, length, self._stride)
            firsts = self._firsts[begin : begin + self.batch_size].tolist()
            for row, first in enumerate(firsts):
                # The last target follows the window's end, unless the text begins or ends there.
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
    """Returns a batch that scores nothing; `num_scored` is `S` for windows, None for segments."""
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
    """Forward reader of a text in large blocks: part of a record costs as much as the whole."""

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
