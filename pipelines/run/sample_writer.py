"""Text that a model writes during training, as a sign of its progress."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.config.model import ModelConfig
from txl_tf.distribution.strategy import AnyStrategy
from txl_tf.evaluation.result import perplexity
from txl_tf.generation.decoding import DecodingState, write_tokens
from txl_tf.generation.token_rules import TokenRules
from txl_tf.inference.segment_reader import SegmentBatch, read_batches, segments
from txl_tf.layers.compiled_parts import compiled
from txl_tf.models.memory import Memory
from txl_tf.samplers import RandomSampler

_SAMPLE_TOKENS = 64


def on_first_replica(
    strategy: tf.distribute.Strategy | None, function: Callable[..., Any], *arguments: Any
) -> Any:
    """Runs a function with the same arguments on all replicas; returns the first one's result."""
    if strategy is None:
        return function(*arguments)
    results = strategy.run(function, args=arguments)
    return tf.nest.map_structure(lambda each: strategy.experimental_local_results(each)[0], results)


class SampleWriter:
    """Writer of a text that continues a prompt, always with the same random numbers of its own.

    Its program is traced once per run and reads the current weights.
    """

    PROMPT_TOKENS = 24
    """Tokens of a prompt that are read; the rest is ignored."""

    def __init__(self, model: keras.Model, strategy: AnyStrategy | None = None) -> None:
        self._model = model
        self._strategy = strategy
        self._read = compiled(lambda *inputs: model(*inputs), model)
        self._write = compiled(self._written, model)

    @staticmethod
    def is_possible(config: object) -> bool:
        """True if the model remembers the token before; without recurrence it does not."""
        return not isinstance(config, ModelConfig) or config.effective_memory_length > 0

    def __call__(self, prompt_ids: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns the tokens after a prompt, and their perplexity."""
        prompt_ids, config = prompt_ids[: self.PROMPT_TOKENS], self._model.config
        lengths = []
        if isinstance(config, ModelConfig):  # a sample fills no more of the memory
            longest = len(prompt_ids) + _SAMPLE_TOKENS
            lengths = [min(config.effective_memory_length, longest)]

        def read(batch: SegmentBatch, memory: Memory) -> tuple[Any, Memory]:
            token_ids = ops.convert_to_tensor(batch.token_ids)
            return on_first_replica(self._strategy, self._read, token_ids, memory)

        begin = functools.partial(self._model.initial_memory, 1, *lengths)
        batches = segments([prompt_ids[:-1]], config.segment_length)
        *_, last = read_batches(read, batches, begin)
        newest = ops.convert_to_tensor(prompt_ids[-1:], "int32")
        sample = on_first_replica(self._strategy, self._write, newest, last.memory)
        tokens, nats = (ops.convert_to_numpy(each)[:, 0] for each in sample)
        return tokens, perplexity(float(np.mean(nats)))

    def _written(self, newest_ids: Any, memory: Memory) -> list[Any]:
        def step(token_ids: Any, _: Any, memory: Memory) -> tuple[Any, Memory]:
            log_probs, memory = self._model.log_probs(token_ids[:, None], memory)
            return log_probs[:, 0], memory

        state = DecodingState.begin(newest_ids, memory, _SAMPLE_TOKENS, with_nats=True)
        rules = TokenRules(RandomSampler(temperature=0.8, top_p=0.9))
        state = write_tokens(step, rules, ops.zeros([1], "int32"), state, _SAMPLE_TOKENS)
        return [state.output_ids, state.nats]
