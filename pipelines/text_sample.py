"""Short text that a model continues during training, with its perplexity."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from txl_tf import metrics
from txl_tf.config.model import ModelConfig
from txl_tf.samplers import RandomSampler

if TYPE_CHECKING:
    import keras

_SAMPLE_TOKENS = 64


class SampleWriter:
    """Writer of a text that continues a prompt, always with the same random numbers.

    Its program is traced once per run and reads the current weights. It has its own seeds, so it
    does not change what training draws. With a `strategy`, every replica does the same.
    """

    PROMPT_TOKENS = 24
    """Tokens of a prompt that are read; the rest is ignored."""

    def __init__(
        self, model: "keras.Model", strategy: tf.distribute.Strategy | None = None
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._sampler = RandomSampler(temperature=0.8, top_p=0.9)
        self._step = tf.function(self._next_token, autograph=False)

    @staticmethod
    def is_possible(config: object) -> bool:
        """Returns true if the model remembers the token before; without recurrence it does not."""
        return not isinstance(config, ModelConfig) or config.effective_memory_length > 0

    def __call__(
        self, prompt_ids: np.ndarray, track: Callable[[], None] = lambda: None
    ) -> tuple[np.ndarray, float]:
        """Returns the tokens after a prompt and their perplexity; `track` may raise before each."""
        prompt_ids = prompt_ids[: self.PROMPT_TOKENS]
        memory, written, nats = self._initial_memory(len(prompt_ids)), [], []
        token = int(prompt_ids[0])
        for position in range(len(prompt_ids) + _SAMPLE_TOKENS - 1):
            track()
            arguments = tf.constant([[token]], tf.int32), memory, tf.constant(position, tf.int32)
            if self._strategy is None:
                following, log_prob, memory = self._step(*arguments)
            else:
                *results, memory = self._strategy.run(self._step, args=arguments)
                local = self._strategy.experimental_local_results
                following, log_prob = (local(each)[0] for each in results)
            if position + 1 < len(prompt_ids):
                token = int(prompt_ids[position + 1])
                continue
            token = int(following.numpy())
            written.append(token)
            nats.append(-float(log_prob.numpy()))
        return np.array(written, np.int32), metrics.perplexity(float(np.mean(nats)))

    def _initial_memory(self, num_prompt_tokens: int) -> object:
        config = self._model.config
        if not isinstance(config, ModelConfig):
            return self._model.initial_memory(1)
        # A sample never has more tokens.
        longest = num_prompt_tokens + _SAMPLE_TOKENS
        return self._model.initial_memory(1, min(config.effective_memory_length, longest))

    def _next_token(
        self, token_ids: tf.Tensor, memory: object, position: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, object]:
        log_probs, memory = self._model.log_probs(token_ids, memory)
        log_probs = log_probs[:, 0]  # [1, V]
        seeds = tf.stack([tf.constant(0), position])[None]
        drawn = tf.cast(self._sampler(log_probs, seeds), tf.int32)[0]
        return drawn, log_probs[0, drawn], memory
