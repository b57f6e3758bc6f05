"""Rules that choose and end tokens: sampler, penalties of used tokens, bias and stop ids.

Shape letters used in this module: R rows, V vocabulary, K token ids.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from keras import ops

from txl_tf.config.generation import SamplingConfig
from txl_tf.layers.token_ids import check_token_ids
from txl_tf.samplers import SETTINGS, RandomSampler, restricted

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
"""Fields of `GenerationConfig` and `TokenRules` that change the scores of used tokens."""


class TokenRules(NamedTuple):
    """Rules that choose the next token and end a text.

    A penalty is a number for all rows, or a tensor `(R,)`.

    The repetition penalty is from [Keskar et al., 2019](https://arxiv.org/abs/1909.05858),
    Section 4.1: positive scores are divided by it and negative ones multiplied. Scores are the
    logits of the model. With an adaptive softmax over clusters, which has no logits of all tokens,
    they are log-probabilities. The bias is `(V,)` or `(R, V)`; tokens with minus infinity are never
    written. Stop ids are a sequence, or a tensor `(R, K)` in which -1 stands for no id.
    """

    sampler: Any
    repetition_penalty: Any = 1.0
    frequency_penalty: Any = 0.0
    presence_penalty: Any = 0.0
    bias: Any = None
    stop_token_ids: Any = ()

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any], **rules: Any) -> Self:
        """Returns the rules of settings by name: `SETTINGS`, `PENALTIES` and an optional `bias`."""
        random = RandomSampler(**{name: settings[name] for name in SETTINGS})
        penalties = {name: settings[name] for name in PENALTIES}
        return cls(**{"sampler": random, **penalties, "bias": settings.get("bias"), **rules})

    def scores(self, logits: Any, uses: Any) -> Any:
        """Returns the scores `(R, V)` to choose by; `uses` is as in a `DecodingState`."""
        logits = ops.cast(logits, "float32")
        if uses.shape[1] > 0:
            counts = ops.cast(ops.maximum(uses - 1, 0), "float32")
            is_written = ops.cast(counts > 0, "float32")

            def penalize(logits: Any, penalty: Any) -> Any:
                penalty_logits = ops.where(logits > 0, logits / penalty, logits * penalty)
                return ops.where(uses > 0, penalty_logits, logits)

            logits = restricted(logits, self.repetition_penalty, 1.0, penalize)
            logits = restricted(logits, self.frequency_penalty, 0.0, lambda x, p: x - p * counts)
            logits = restricted(logits, self.presence_penalty, 0.0, lambda x, p: x - p * is_written)
        return logits if self.bias is None else logits + self.bias

    def is_stop(self, token_ids: Any) -> Any:
        """Marks the tokens that end their texts, bool `(R,)`."""
        stops = self.stop_token_ids
        if not ops.is_tensor(stops):
            stops = ops.convert_to_tensor(np.array([list(stops)], np.int32))
        return ops.any(ops.equal(token_ids[:, None], stops), axis=1)


def token_bias(
    settings: SamplingConfig, excluded_token_ids: Sequence[int], vocabulary_size: int
) -> np.ndarray | None:
    """Returns the bias of all tokens, float32 `(V,)`, or `None` if no token has one.

    The bias is minus infinity for excluded tokens, which are never written.
    """
    token_ids = [int(token_id) for token_id, _ in settings.logit_bias]
    check_token_ids(token_ids, vocabulary_size, "logit_bias")
    check_token_ids(list(excluded_token_ids), vocabulary_size, "excluded_token_ids")
    if not token_ids and not len(excluded_token_ids):
        return None
    bias = np.zeros((vocabulary_size,), np.float32)
    bias[token_ids] = [number for _, number in settings.logit_bias]
    bias[list(excluded_token_ids)] = -np.inf
    return bias


def note_read(uses: np.ndarray, token_ids: np.ndarray) -> None:
    """Notes in `uses`, `(V,)`, that tokens were read, see `DecodingState`."""
    uses[token_ids] = np.maximum(uses[token_ids], 1)


def note_written(uses: np.ndarray, token_ids: np.ndarray) -> None:
    """Notes in `uses`, `(V,)`, that tokens were written, see `DecodingState`."""
    note_read(uses, token_ids)
    np.add.at(uses, token_ids, 1)
