"""Short text that a model continues during training, with its perplexity."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from txl_tf.config.model import ModelConfig
from txl_tf.evaluation.result import perplexity
from txl_tf.generation.decoding import DecodingState, TokenRules, write_tokens
from txl_tf.models.memory import Memory
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
        self._write = tf.function(self._written, autograph=False)

    @staticmethod
    def is_possible(config: object) -> bool:
        """Returns true if the model remembers the token before; without recurrence it does not."""
        return not isinstance(config, ModelConfig) or config.effective_memory_length > 0

    def __call__(
        self, prompt_ids: np.ndarray, track: Callable[[], None] = lambda: None
    ) -> tuple[np.ndarray, float]:
        """Returns the tokens after a prompt and their perplexity; `track` may raise before."""
        track()
        prompt_ids = prompt_ids[: self.PROMPT_TOKENS]
        arguments = tf.constant(prompt_ids, tf.int32), self._initial_memory(len(prompt_ids))
        if self._strategy is None:
            written = self._write(*arguments)
        else:
            local = self._strategy.experimental_local_results
            written = [local(each)[0] for each in self._strategy.run(self._write, args=arguments)]
        tokens, nats = (each.numpy()[:, 0] for each in written)
        return tokens, perplexity(float(np.mean(nats)))

    def _initial_memory(self, num_prompt_tokens: int) -> Memory:
        config = self._model.config
        if not isinstance(config, ModelConfig):
            return self._model.initial_memory(1)
        # A sample never has more tokens.
        longest = num_prompt_tokens + _SAMPLE_TOKENS
        return self._model.initial_memory(1, min(config.effective_memory_length, longest))

    def _written(self, prompt_ids: tf.Tensor, memory: Memory) -> list[tf.Tensor]:
        def read(memory: Memory, token_id: tf.Tensor) -> Memory:
            return self._model(token_id[None, None], memory)[1]

        def step(token_ids: tf.Tensor, _: tf.Tensor, memory: Memory) -> tuple[tf.Tensor, Memory]:
            log_probs, memory = self._model.log_probs(token_ids[:, None], memory)
            return log_probs[:, 0], memory

        state = DecodingState(
            pending=prompt_ids[-1:],
            is_finished=tf.zeros([1], tf.bool),
            is_used=tf.zeros([1, 0], tf.bool),
            lengths=tf.zeros([1], tf.int32),
            position=tf.constant(0),
            recent=tf.foldl(read, prompt_ids[:-1], memory),
        )
        rules = TokenRules(RandomSampler(temperature=0.8, top_p=0.9))
        limits = _SAMPLE_TOKENS, _SAMPLE_TOKENS
        written, _ = write_tokens(
            step, rules, tf.zeros([1], tf.int32), state, *limits, with_nats=True
        )
        return written
