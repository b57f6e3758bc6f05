"""Losses of tokens that a model predicts from a window of a fixed context length.

Dai et al. (2019), Appendix C.

Shape letters used in this module: C context length, N tokens.
"""

import functools

import numpy as np
from keras import ops

from txl_tf.config.model import ModelConfig
from txl_tf.errors import NonFiniteError
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader
from txl_tf.layers.compiled_parts import compiled
from txl_tf.layers.token_ids import check_token_ids
from txl_tf.models.language_model import LanguageModel


class ContextLosses:
    """Losses of tokens, each predicted from its window: `l_i(c, t)` of the paper.

    A token's window is the `C` tokens before it. The model reads it with an empty memory, because
    a memory would reach further back through every layer. So the context length is exact, but every
    loss costs `C` tokens.

    A model with a memory or states reads the window in segments, with the memory length of its
    configuration. The last segment is full and ends with the window; the first one may be shorter.
    A Transformer without memory reads the window as one segment. If it has `P` learned positions,
    it reads at most the last `P` tokens of the window.
    """

    def __init__(self, model: LanguageModel, batch_size: int) -> None:
        self._model = model
        self._batch_size = batch_size
        # By segment length. A model with a memory or states needs one reader, for its own length.
        self._reader_of = functools.cache(
            lambda length: SegmentReader(InferenceEngine(model, segment_length=length))
        )
        self._score = compiled(model.negative_log_likelihood, model)

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        """Returns the float64 nats `(N,)` of the last token of each window, int `(N, C + 1)`.

        Raises NonFiniteError if a loss is not finite, and ValueError for an id outside `[0, V)`.
        """
        check_token_ids(windows, self._model.config.vocabulary_size, "windows")
        batches = (
            windows[first : first + self._batch_size]
            for first in range(0, len(windows), self._batch_size)
        )
        losses = np.concatenate([self._losses(batch) for batch in batches])
        if not np.all(np.isfinite(losses)):
            raise NonFiniteError(
                f"The loss is not finite; tokens affected: {np.sum(~np.isfinite(losses))}.",
                where=f"context length {windows.shape[1] - 1}",
                remedy="Analyze an earlier checkpoint.",
            )
        return losses

    def _losses(self, batch: np.ndarray) -> np.ndarray:
        batch, config = batch.astype(np.int32), self._model.config
        tokens, targets = batch[:, :-1], batch[:, -1:]
        if isinstance(config, ModelConfig) and not config.effective_memory_length:
            if config.position_encoding == "learned":
                tokens = tokens[:, -config.num_positions :]
            length = tokens.shape[1]
        else:
            length = config.segment_length
        reader = self._reader_of(length)
        memory, first = reader.engine.initial_memory(len(batch)), (tokens.shape[1] - 1) % length + 1
        for part in (tokens[:, :first], tokens[:, first:]):
            for piece in reader.read_next(part, memory):
                newest, hidden = int(piece.batch.lengths[0]) - 1, piece.outputs
                memory = piece.memory
        nats = self._score(hidden[:, newest : newest + 1], ops.convert_to_tensor(targets))
        return np.asarray(nats, np.float64)[:, 0]
