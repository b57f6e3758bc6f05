"""The compiled step that an evaluation repeats, with rows shared among replicas.

Shape letters used in this module: B rows or windows, T segment or window length, S stride.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.distribution.tpu_chips import chip_of
from txl_tf.evaluation.dynamic import DynamicReader
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import tokens_on_chip
from txl_tf.tpu_kernels.kernel_choice import AttentionChoice, KernelSetting


class ScoringStep:
    """Scorer of the next segments of all rows, on any number of replicas.

    Engines and programs are made per number of rows, on demand. With `reads_windows` a batch has
    windows, each read from an empty memory, instead of segments.
    """

    def __init__(
        self,
        model: keras.Model,
        dynamic: DynamicReader | None,
        *,
        keeps: str,
        masks_documents: bool,
        strategy: tf.distribute.Strategy | None,
        jit_compile: bool | None,
        attention_kernel: KernelSetting = "auto",
        reads_windows: bool = False,
    ) -> None:
        self._model = model
        self._config = model.config
        self._dynamic = dynamic
        self._masks_documents = masks_documents
        self._strategy = strategy
        self._jit_compile = jit_compile
        self._attention_kernel = attention_kernel
        self._keeps = keeps if dynamic is None else "hidden_states"
        self._reads_windows = reads_windows
        self._score = self.score_windows if reads_windows else self.score_batch
        self._engines: dict[int, InferenceEngine] = {}
        self._steps: dict[int, Callable[..., Any]] = {}
        # Made once: every tf.function is traced separately.
        self.begin_function = tf.function(self._run_begin, autograph=False)

    def engine(self, num_rows: int) -> InferenceEngine:
        """Returns the engine for `num_rows` rows of a replica."""
        if num_rows not in self._engines:
            self._engines[num_rows] = InferenceEngine(
                self._model,
                keeps=self._keeps,
                num_rows=num_rows,
                is_distributed=self._strategy is not None,
                jit_compile=self._jit_compile,
                attention_kernel=self.attention(num_rows).kernel,
            )
        return self._engines[num_rows]

    def attention(self, num_rows: int) -> AttentionChoice:
        """Returns how replicas with `num_rows` rows attend, and why."""
        if self._strategy is None:
            return AttentionChoice.plain("there is no TPU")
        if self._keeps == "hidden_states":
            return AttentionChoice.plain("memory is that of the model")
        config = self._config
        at_once = config.segment_length
        if not self._reads_windows:
            at_once = tokens_on_chip(num_rows, config.segment_length)
        return AttentionChoice.for_model(
            config,
            setting=self._attention_kernel,
            chip=chip_of(self._strategy),
            num_rows=num_rows,
            num_tokens=at_once,
            dtype=self._model.compute_dtype,
            rounds_products=tf.config.experimental.tensor_float_32_execution_enabled(),
            is_differentiated=False,
        )

    def segments_per_read(self, num_rows: int) -> int:
        """Returns how many segments of a row are read at once, with unchanged numbers."""
        if self._reads_windows:
            return 1
        return self.engine(num_rows).plan.segments_per_read(num_rows, self._config.segment_length)

    def begin(self, num_rows: int, segments_per_read: int) -> tuple[Any, tuple[Any, ...]]:
        """Returns initial memory and constants, the tensors that depend on the weights only.

        `num_rows` are the rows of one replica; with a strategy the values are those per replica.
        """
        function = self._begin if self._strategy is None else self.begin_function
        return function(num_rows, segments_per_read)

    def _begin(self, num_rows: int, segments_per_read: int) -> tuple[Any, tuple[Any, ...]]:
        engine = self.engine(num_rows)
        constants = engine.constants(segments_per_read * self._config.segment_length)
        return engine.initial_memory(num_rows), constants

    def _run_begin(self, num_rows: int, segments_per_read: int) -> Any:
        if self._strategy is None:
            return self._begin(num_rows, segments_per_read)
        # Bound here: as arguments of `run` the numbers would become tensors on a TPU.
        return self._strategy.run(functools.partial(self._begin, num_rows, segments_per_read))

    def function(self, num_rows: int) -> Callable[..., Any]:
        """Returns `score_batch` or `score_windows` for `num_rows` rows of a replica, compiled."""
        if num_rows not in self._steps:
            compiles = self.engine(num_rows).plan.compile_read
            if self._dynamic is not None:
                compiles = self._compiles_gradients
            self._steps[num_rows] = self._compiled(self._score, compiles)
        return self._steps[num_rows]

    def statistics_function(self, reader: DynamicReader) -> Callable[..., Any]:
        """Returns the compiled step that adds gradients to the statistics of a reader."""
        measure = functools.partial(self.score_batch, learn=reader.update.add_statistics)
        return self._compiled(measure, self._compiles_gradients)

    @property
    def _compiles_gradients(self) -> bool:
        return self._jit_compile is None or self._jit_compile

    def _compiled(self, function: Callable[..., Any], jit_compile: bool) -> Callable[..., Any]:
        if self._strategy is None:
            return tf.function(function, jit_compile=jit_compile, autograph=False)

        # A TPU names its program after the function, so it needs a name.
        def run_on_replicas(*arguments: Any) -> Any:
            return self._strategy.run(function, args=arguments)

        # TPUStrategy compiles anyway; XLA would read a mirrored variable of the wrong device.
        return tf.function(run_on_replicas, autograph=False)

    def score_batch(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        memory: Any,
        constants: tuple[Any, ...],
        learn: Callable[[list[tf.Tensor]], None] | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """Scores one or several segments of every row; memory comes from `begin` or a call.

        `is_scored` is false for padding and warm-up. `document_starts` matter only where
        documents are masked. In dynamic evaluation `learn` gets the segment's gradients, by
        default to update the weights. Returns the nats, float32 `(B, T)`, 0 where nothing is
        scored, and the next memory.
        """
        starts = document_starts if self._masks_documents else None
        if self._dynamic is not None:
            nll, memory, gradients = self._dynamic.score(
                token_ids, target_ids, is_scored, memory, starts
            )
            # Program order puts the assignments after the reads.
            (learn or self._dynamic.update.apply)(gradients)
        else:
            nll, memory = self.engine(token_ids.shape[0]).score(
                token_ids, target_ids, memory, constants=constants, document_starts=starts
            )
        return tf.where(is_scored, nll, tf.zeros([], nll.dtype)), memory

    def score_windows(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        positions: tf.Tensor,
        memory: Any,
        constants: tuple[Any, ...],
    ) -> tuple[tf.Tensor, Any]:
        """Scores positions `(B, S)` of windows `(B, T)`, read from the empty memory of `begin`.

        Only these positions go through the softmax. Targets and `is_scored` are `(B, S)`. Returns
        the nats, float32 `(B, S)`, 0 where nothing is scored, and the empty memory.
        """
        starts = document_starts if self._masks_documents else None
        hidden, _ = self.engine(token_ids.shape[0]).read(
            token_ids, memory, constants=constants, document_starts=starts
        )
        hidden = tf.gather(hidden, positions, batch_dims=1)  # [B, S, D]
        nll = self._model.negative_log_likelihood(hidden, target_ids)
        return tf.where(is_scored, nll, tf.zeros([], nll.dtype)), memory


class ReplicaRows:
    """Division of evaluation rows over replicas, and the joining of their results.

    If the replicas cannot share the rows equally, empty rows are added, which `join` removes.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None, num_rows: int) -> None:
        self._strategy = strategy
        self._num_rows = num_rows
        num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        self.rows_per_replica = -(-num_rows // num_replicas)
        self._num_padded = self.rows_per_replica * num_replicas - num_rows

    def split(self, arrays: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        """Distributes the rows of arrays `(B, T)`: tensors, or values per replica."""
        if self._strategy is None:
            return tuple(map(tf.constant, arrays))
        padded = [np.pad(array, [(0, self._num_padded), (0, 0)]) for array in arrays]

        def part_of(context: tf.distribute.ReplicaContext) -> tuple[tf.Tensor, ...]:
            first = context.replica_id_in_sync_group * self.rows_per_replica
            rows = slice(first, first + self.rows_per_replica)
            return tuple(tf.constant(array[rows]) for array in padded)

        return self._strategy.experimental_distribute_values_from_function(part_of)

    def join(self, values: Any) -> np.ndarray:
        """Joins the rows of all replicas, `(B, ...)`."""
        if self._strategy is None:
            return values.numpy()
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Each worker only has the values of its own replicas.
            rows = self._strategy.gather(values, axis=0).numpy()
        else:
            parts = self._strategy.experimental_local_results(values)
            rows = np.concatenate([part.numpy() for part in parts])
        return rows[: self._num_rows]
