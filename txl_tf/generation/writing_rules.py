"""What holds for tokens that are written, whichever way they are chosen.

Shape letters used in this module: R rows, V vocabulary.
"""

import tensorflow as tf

from txl_tf.samplers.repetition_penalty import RepetitionPenalty


class WritingRules:
    """Where a text ends, and what repetitions cost.

    Args:
        repetition_penalty: float. 1 is none.
        stop_token_ids: ints. A text ends with the first of them.
        vocabulary_size: int. `V`.
    """

    def __init__(
        self, repetition_penalty: float, stop_token_ids: tuple[int, ...], vocabulary_size: int
    ) -> None:
        self._penalty = None if repetition_penalty == 1.0 else RepetitionPenalty(repetition_penalty)
        self._stop_token_ids = stop_token_ids
        self.vocabulary_size = vocabulary_size

    def penalize(self, logits: tf.Tensor, is_used: tf.Tensor) -> tf.Tensor:
        """Lowers what was used before.

        Args:
            logits: float tensor `(R, V)`.
            is_used: bool tensor `(R, V)`, or `(R, 0)` without penalty.

        Returns:
            Float tensor `(R, V)`.
        """
        return logits if self._penalty is None else self._penalty(logits, is_used)

    def use(self, is_used: tf.Tensor, token_ids: tf.Tensor) -> tf.Tensor:
        """Marks tokens as used.

        Args:
            is_used: bool tensor `(R, V)`, or `(R, 0)` without penalty.
            token_ids: int32 tensor `(R,)`.

        Returns:
            The next `is_used`.
        """
        if self._penalty is None:
            return is_used
        return is_used | tf.one_hot(token_ids, self.vocabulary_size, True, False)

    def is_stop(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Whether tokens end their texts, bool `(R,)`."""
        is_stop = tf.zeros_like(token_ids, tf.bool)
        for stop_token_id in self._stop_token_ids:
            is_stop |= token_ids == stop_token_id
        return is_stop
