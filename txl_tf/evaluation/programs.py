"""Compiled functions of an evaluation, which score a batch on one device or on replicas.

Shape letters used in this module: B rows of a replica, T segment length.
"""

import functools
from collections.abc import Callable
from typing import Any

from keras import ops

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.model import AnyModelConfig
from txl_tf.evaluation.dynamic import DynamicEvaluation
from txl_tf.evaluation.reading_order import empty_batch
from txl_tf.evaluation.replica_rows import ReplicaRows
from txl_tf.imports import tensorflow as tf
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import tokens_on_chip
from txl_tf.layers.compiled_parts import compiled
from txl_tf.models.language_model import LanguageModel
from txl_tf.tpu_kernels.attention_choice import AttentionChoice


class EvaluationPrograms:
    """Functions that read a text with a model, cached by the number of rows of a replica.

    An evaluation calls `begin` where memory is empty, then a step for each batch:

        memory, constants = programs.begin(num_rows, segments_per_step)
        for batch in batches:
            nats, memory = programs.step(num_rows)(*rows.split(batch.arrays()), memory, constants)

    With a strategy, the functions take and return one value per replica, see `ReplicaRows`. In
    dynamic evaluation, which has no strategy, `memory` is a pair of the memory, which holds hidden
    states, and the weights that follow the text. `config` has the lengths of the evaluation.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: AnyModelConfig,
        settings: EvaluationConfig,
        strategy: "tf.distribute.Strategy | None",
        jit_compile: bool | None,
        masks_documents: bool,
        dynamic: DynamicEvaluation | None,
    ) -> None:
        self._model = model
        self._config = config
        self._settings = settings
        self._strategy = strategy
        self._jit_compile = jit_compile
        self._masks_documents = masks_documents
        self._dynamic = dynamic
        self._engine = functools.cache(self._create_engine)
        self.step = functools.cache(self._create_step)
        self._begin_function = compiled(self._run_begin, model)

    def segments_per_read(self, num_rows: int) -> int:
        """Returns how many segments of a row are read at once in a long text."""
        return self._engine(num_rows).plan.segments_per_read(num_rows, self._config.segment_length)

    def attention_choice(self, num_rows: int) -> AttentionChoice:
        """Returns how replicas with `num_rows` rows attend, and why."""
        if self._strategy is None:
            return AttentionChoice.plain("there is no TPU")
        from txl_tf.distribution.strategy import chip_of

        if self._dynamic is not None:
            return AttentionChoice.plain("memory holds hidden states, the kernel needs keys")
        return AttentionChoice.for_model(
            self._config,
            setting=self._settings.attention_kernel or "auto",
            chip=chip_of(self._strategy),
            num_rows=num_rows,
            num_tokens=tokens_on_chip(num_rows, self._config.segment_length),
            dtype=self._model.compute_dtype,
            rounds_products=tf.config.experimental.tensor_float_32_execution_enabled(),
            is_differentiated=False,
        )

    def begin(self, num_rows: int, segments_per_step: int) -> tuple[Any, tuple[Any, ...]]:
        """Returns the initial memory, and the constants, which depend on the weights only."""
        if self._strategy is not None:
            return self._begin_function(num_rows, segments_per_step)
        engine = self._engine(num_rows)
        constants = engine.cached_constants(segments_per_step * self._config.segment_length)
        memory = engine.initial_memory(num_rows)
        if self._dynamic is not None:
            return (memory, self._dynamic.trained_weights()), constants
        return memory, constants

    def trace(
        self, rows: ReplicaRows, segments_per_step: int
    ) -> "tuple[tf.types.experimental.ConcreteFunction, ...]":
        """Traces `begin` and the step, and returns both functions."""
        begin = self._begin_function.get_concrete_function(rows.rows_per_replica, segments_per_step)
        state_specs = tf.nest.map_structure(
            lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf),
            begin.structured_outputs,
        )
        batch = empty_batch(rows.num_rows, segments_per_step * self._config.segment_length)
        step = self.step(rows.rows_per_replica)
        return begin, step.get_concrete_function(*rows.split(batch.arrays()), *state_specs)

    def _run_begin(self, num_rows: int, segments_per_step: int) -> Any:
        # A closure has the numbers: as arguments of `run` they would become tensors on a TPU.
        def begin() -> tuple[Any, tuple[Any, ...]]:
            engine = self._engine(num_rows)
            constants = engine.constants(segments_per_step * self._config.segment_length)
            return engine.initial_memory(num_rows), constants

        return begin() if self._strategy is None else self._strategy.run(begin)

    def _create_engine(self, num_rows: int) -> InferenceEngine:
        return InferenceEngine(
            self._model,
            keeps_states=self._dynamic is not None,
            config=self._config,
            num_rows=num_rows,
            is_distributed=self._strategy is not None,
            jit_compile=self._jit_compile,
            attention_kernel=self.attention_choice(num_rows).kernel,
        )

    def _create_step(self, num_rows: int) -> Callable[..., Any]:
        """Compiles the scoring of `num_rows` rows of a replica."""
        compiles = self._jit_compile is not False
        if self._dynamic is None:
            compiles = self._engine(num_rows).plan.compile_read
        if self._strategy is None:
            return compiled(self._score, self._model, compiles)

        # A TPU names its program after the function, so this is no lambda.
        def run_on_replicas(*arguments: Any) -> Any:
            return self._strategy.run(self._score, args=arguments)

        # TPUStrategy compiles this without being told. Elsewhere XLA is off, because it would read
        # a mirrored variable of the wrong device.
        return compiled(run_on_replicas, self._model)

    def _score(
        self,
        token_ids: Any,
        target_ids: Any,
        is_scored: Any,
        document_starts: Any,
        memory: Any,
        constants: Any,
    ) -> tuple[Any, Any]:
        """Scores segments `(B, T)` of every row.

        The first arguments are those of `EvaluationBatch.arrays`, in its order. `memory` comes from
        `begin` or from the step before. Returns the nats, float32 `(B, T)`, which are 0 where
        `is_scored` is false, and the next memory.
        """
        starts = document_starts if self._masks_documents else None
        if self._dynamic is not None:
            nll, memory = self._dynamic.score(token_ids, target_ids, is_scored, memory, starts)
        else:
            nll, memory = self._engine(token_ids.shape[0]).score(
                token_ids, target_ids, memory, constants=constants, document_starts=starts
            )
        return ops.where(is_scored, nll, 0.0), memory
