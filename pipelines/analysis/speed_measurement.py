"""Times a model with a memory against one without."""

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import tensorflow as tf

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.evaluation.token_speed import TokenSpeed, measure_in_turn
from txl_tf.evaluation.window_scorer import WindowScorer, without_memory
from txl_tf.inference.engine import InferenceEngine, device_of
from txl_tf.inference.execution_plan import ExecutionPlan
from txl_tf.models.transformer_xl import TransformerXL

# So that a median over as few turns as there are windows is one of more segments.
_SEGMENTS_PER_TURN = 3


class Reading(NamedTuple):
    """A way to read a text, to be timed.

    Attributes:
        memory: str. `"none"`, where each token is scored by a window of its
            own, `"states"` (`Memory`) or `"projections"` (`KeyValueMemory`).
        tokens_per_call: int. Tokens that are scored at a time.
    """

    memory: str
    tokens_per_call: int


VANILLA = Reading("none", 1)
"""The model of Al-Rfou et al. (2019)."""


class SpeedMeasurement:
    """Times both models at any attention length.

    The model with a memory reads segments and remembers as many tokens as the
    other's window has, so that it attends to at least as many. Its memory is
    full from the beginning, of zeros: what is in it does not change the work.

    Args:
        experiment: `ExperimentConfig`. Its model, dtype policy and compilation
            are used.
        segment_length: int. Tokens read at a time, besides one at a time.
        num_repeats: int. Windows that are timed.
    """

    def __init__(self, experiment: ExperimentConfig, segment_length: int, num_repeats: int) -> None:
        training = experiment.training
        self._config = cast(ModelConfig, experiment.model)
        self._dtype_policy = training.dtype_policy
        # Where XLA is not ruled out, the plan of the device decides, as in an evaluation.
        self._jit_compile = None if training.jit_compile else False
        self._segment_lengths = sorted({segment_length, 1}, reverse=True)
        self._num_repeats = num_repeats
        self._model = TransformerXL(self._config, dtype=self._dtype_policy)
        self._random = np.random.default_rng(0)

    def measure(self, attention_length: int) -> dict[Reading, TokenSpeed]:
        """Times one token of every way to read.

        Args:
            attention_length: int. Tokens of the window and of the memory.

        Returns:
            Dict of `Reading` to `TokenSpeed`.
        """
        calls = {VANILLA: self._window_call(attention_length)}
        for length in self._segment_lengths:
            for memory in ("projections", "states"):
                calls[Reading(memory, length)] = self._segment_call(
                    memory, length, attention_length
                )
        return measure_in_turn(
            calls,
            tokens_per_call={reading: reading.tokens_per_call for reading in calls},
            calls_per_turn={
                reading: 1 if reading == VANILLA else _SEGMENTS_PER_TURN for reading in calls
            },
            num_turns=self._num_repeats,
        )

    def _window_call(self, attention_length: int) -> Callable[[], np.ndarray]:
        model = TransformerXL(
            without_memory(self._config, attention_length), dtype=self._dtype_policy
        )
        scorer = WindowScorer(model, self._plan(keeps_states=True).compile_read)
        return lambda: scorer(self._tokens(1, attention_length), self._tokens(1))

    def _plan(self, **choice: bool) -> ExecutionPlan:
        return ExecutionPlan.choose(
            self._config,
            device=device_of(self._model),
            num_rows=1,
            jit_compile=self._jit_compile,
            **choice,
        )

    def _segment_call(
        self, memory: str, segment_length: int, attention_length: int
    ) -> Callable[[], np.ndarray]:
        keeps_states, is_single = memory == "states", segment_length == 1
        # Head by head pays for the products of a segment, not of a token.
        plan = self._plan(keeps_states=keeps_states, writes=is_single)
        engine = InferenceEngine(
            self._model,
            attention_length,
            "hidden_states" if keeps_states else "keys_and_values",
            segment_length=segment_length,
            plan=plan,
        )
        compiles = plan.compile_step if is_single and not keeps_states else plan.compile_read
        step = tf.function(engine.score, jit_compile=compiles, autograph=False)
        constants = engine.constants(segment_length)
        carried = engine.initial_memory(1)._replace(valid_length=tf.fill([1], attention_length))
        shape = (1, segment_length)

        def call() -> np.ndarray:
            nonlocal carried
            token_ids, target_ids = (tf.constant(self._tokens(*shape)) for _ in range(2))
            nll, carried = step(token_ids, target_ids, carried, constants=constants)
            return nll.numpy()

        return call

    def _tokens(self, *shape: int) -> np.ndarray:
        return self._random.integers(0, self._config.vocabulary_size, shape).astype("int32")
