"""Context length that models use: losses by context length, and RECL.

Dai et al. (2019), Section 1 and Appendix C; Khandelwal et al. (2018).

Shape letters used in this module: I models, C context length, or number of lengths, N tokens.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from txl_tf.config.model import ModelConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.result import perplexity
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader
from txl_tf.layers.compiled_parts import compiled
from txl_tf.layers.token_ids import check_token_ids
from txl_tf.models.language_model import LanguageModel


class ContextLosses:
    """Losses of tokens, each predicted from a window: `l_i(c, t)` of the paper.

    A token's window is the `C` tokens before it, read with an empty memory. An older memory would
    reach further back through every layer. The result is therefore exact, but the model reads `C`
    tokens for every loss.

    A model with a memory or states reads the window in segments, with the memory length of its
    configuration. The last segment ends with the window and is full; the first one may be shorter.
    A Transformer without memory reads the window as one segment. With `P` learned positions it
    reads the last `P` tokens of the window at most.
    """

    def __init__(self, model: LanguageModel, batch_size: int) -> None:
        self._model = model
        self._batch_size = batch_size
        # Of the segment length; a model with a memory or states has only its own.
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


class EffectiveLength(NamedTuple):
    """Length after which the next longer one gains too little."""

    length: int
    """Tokens of context."""
    is_lower_bound: bool
    """True if the longest measured length still gained enough: the true result may be larger."""


class ModelGroup:
    """Losses of several models on the same tokens, with several context lengths.

    All models of a group share one baseline. Otherwise a model that is bad at short contexts would
    seem to gain much from long ones. Gains are measured on hard tokens only, which no model
    predicts well from the short context. `contexts` ascend; `losses` are the nats `l_i(c, t)`,
    float `(I, C, N)`.
    """

    def __init__(self, contexts: Sequence[int], losses: np.ndarray) -> None:
        self.contexts = tuple(contexts)
        self._losses = np.asarray(losses, np.float64)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that every model has predicted, `N`."""
        return self._losses.shape[2]

    def perplexity(self, model: int, context: int) -> float:
        """Returns the perplexity of a model with one context length, on all tokens."""
        return perplexity(self._of(context)[model].mean())

    def baseline(self, context: int) -> np.ndarray:
        """Returns the least loss of any model on each token, float64 `(N,)`: `b(c, t)`."""
        return self._of(context).min(axis=0)

    def hard_tokens(self, context: int, ratio: float) -> np.ndarray:
        """Returns indices of the `ratio` of tokens with the largest baseline, at least one."""
        count = max(1, round(ratio * self.num_tokens))
        return np.argsort(-self.baseline(context), kind="stable")[:count]

    def relative_loss(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns the mean nats of hard tokens, each at most the baseline: `f_i(c, c')`.

        `short` is the context length `c` of baseline and hard tokens, `long` the length `c'`.
        """
        losses = np.minimum(self.baseline(short), self._of(long)[model])
        return float(losses[self.hard_tokens(short, ratio)].mean())

    def relative_gain(self, model: int, short: int, long: int, ratio: float) -> float:
        """Returns the fraction by which a long context lowers the baseline's perplexity.

        It is never negative: `g_i(c, c')`.
        """
        before, after = (
            perplexity(self.relative_loss(model, short, context, ratio))
            for context in (short, long)
        )
        return (before - after) / before

    def relative_effective_context_length(
        self, model: int, *, ratio: float, step_size: int, threshold: float = 0.01
    ) -> EffectiveLength:
        """Lengthens the context step by step until the relative gain is below the threshold.

        It begins with the shortest context. Every step must reach a measured context.
        """
        short = self.contexts[0]
        while (long := short + step_size) <= self.contexts[-1]:
            if self.relative_gain(model, short, long, ratio) < threshold:
                return EffectiveLength(short, is_lower_bound=False)
            short = long
        return EffectiveLength(short, is_lower_bound=True)

    def _of(self, context: int) -> np.ndarray:
        """Returns losses `(I, N)` with one context length."""
        return self._losses[:, self.contexts.index(context)]
