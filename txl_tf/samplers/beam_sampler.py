"""The continuations with the highest probability as a whole.

Shape letters used in this module: B rows, W beams of each, V vocabulary.
"""

from keras import ops

IMPOSSIBLE_SCORE = -1e30
"""Score of a beam that is none; any other is higher."""


class BeamSampler:
    """Keeps the best `num_beams` continuations of each row, token by token.

    A beam's score is the sum of the log-probabilities of its tokens. A beam
    that ended keeps its score and its place among the others.

    Args:
        num_beams: int. `W`.
        return_all_beams: bool. Whether generation returns all beams of a row,
            best first, or the best alone.

    Call arguments:
        log_probs: float tensor `(B, W, V)` of the next token of each beam.
        scores: float32 tensor `(B, W)`, from `initial_scores` or a call.
        is_finished: bool tensor `(B, W)`. True for beams that ended.

    Returns:
        Tuple of the scores `(B, W)`, best first; the beam that each one goes on
        from, int32 `(B, W)`; and its token, int32 `(B, W)`, which means
        nothing for a beam that ended.

    Raises:
        ValueError: If `num_beams` is not positive.
    """

    def __init__(self, num_beams=5, return_all_beams=False):
        if num_beams <= 0:
            raise ValueError(f"`num_beams` must be positive. Received: num_beams={num_beams}")
        self.num_beams = num_beams
        self.return_all_beams = return_all_beams

    def initial_scores(self, num_rows):
        """Scores before the first token: all beams of a row are the same one.

        Args:
            num_rows: int. `B`.

        Returns:
            Float32 tensor `(B, W)`.
        """
        is_first = ops.arange(self.num_beams) == 0
        scores = ops.where(is_first, 0.0, IMPOSSIBLE_SCORE)
        return ops.tile(ops.cast(scores, "float32")[None], [num_rows, 1])

    def __call__(self, log_probs, scores, is_finished):
        vocabulary_size = log_probs.shape[-1]
        # A beam that ended has one way to go on, which costs nothing.
        is_first = ops.arange(vocabulary_size) == 0
        unchanged = ops.cast(ops.where(is_first, 0.0, IMPOSSIBLE_SCORE), "float32")
        log_probs = ops.where(
            ops.expand_dims(is_finished, 2), unchanged, ops.cast(log_probs, "float32")
        )
        totals = ops.expand_dims(scores, 2) + log_probs  # [B, W, V]
        totals = ops.reshape(totals, [-1, self.num_beams * vocabulary_size])
        scores, places = ops.top_k(totals, self.num_beams)
        places = ops.cast(places, "int32")
        return scores, places // vocabulary_size, places % vocabulary_size
