"""Cuts a split into rows so that every target is scored exactly once.

Shape letters used in this module: B rows, T segment length.
"""

from collections.abc import Callable, Iterator

import numpy as np

from txl_tf.evaluation.evaluation_batch import EvaluationBatch


class EvaluationRows:
    """The order in which an evaluation reads a split.

    The `n - 1` targets are shared out as evenly as can be: each row reads one
    contiguous stretch, the first rows one target more than the last. Rows are
    padded to whole segments; the padding is not scored.

    Args:
        num_tokens: int. Tokens of the split; at least 2.
        batch_size: int. Rows `B`; fewer where there are fewer targets.
        segment_length: int. `T`.

    Raises:
        ValueError: If there is nothing to score.
    """

    def __init__(self, num_tokens: int, batch_size: int, segment_length: int) -> None:
        if num_tokens < 2:
            raise ValueError(
                "A split needs at least 2 tokens, because nothing comes before the first. "
                f"Received: num_tokens={num_tokens}"
            )
        self.batch_size = min(batch_size, num_tokens - 1)
        self.segment_length = segment_length
        share, remainder = divmod(num_tokens - 1, self.batch_size)
        lengths = share + (np.arange(self.batch_size) < remainder)
        self._lengths = lengths
        self._starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])

    @property
    def num_segments(self) -> int:
        """Steps that the evaluation takes."""
        return -(-int(self._lengths[0]) // self.segment_length)

    def batches(self, read_tokens: Callable[[int, int], np.ndarray]) -> Iterator[EvaluationBatch]:
        """Reads the split.

        Args:
            read_tokens: function of a start and a stop that returns the tokens
                between them.

        Yields:
            An `EvaluationBatch` per segment, in order.
        """
        shape = (self.batch_size, self.segment_length)
        for segment in range(self.num_segments):
            token_ids = np.zeros(shape, np.int32)
            target_ids = np.zeros(shape, np.int32)
            is_scored = np.zeros(shape, bool)
            done = segment * self.segment_length
            for row in range(self.batch_size):
                count = min(self.segment_length, int(self._lengths[row]) - done)
                if count <= 0:
                    continue
                start = int(self._starts[row]) + done
                tokens = read_tokens(start, start + count + 1)
                token_ids[row, :count] = tokens[:-1]
                target_ids[row, :count] = tokens[1:]
                is_scored[row, :count] = True
            yield EvaluationBatch(token_ids, target_ids, is_scored)
