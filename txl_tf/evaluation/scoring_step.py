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
    """Scores the next segments of all rows, on any number of replicas.

    Engines and programs are made for a number of rows when they are asked for.

    Args:
        model: any language model that `create_model` builds.
        dynamic: optional `DynamicReader`, where the weights follow the text.
        keeps: str. The kind of memory, see `InferenceEngine`.
        masks_documents: bool. Whether no token sees what is before its document.
        strategy: optional `tf.distribute.Strategy`.
        jit_compile: optional bool. Whether XLA compiles the step; `None` leaves
            it to the plan of the device.
        attention_kernel: str. Whether replicas on TPUs attend by the kernel: `"auto"`,
            where it is faster, `"always"`, where the chip can, or `"never"`.
        reads_windows: bool. Whether a batch is of windows, each read by itself,
            instead of segments. Defaults to `False`.
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
        # Made once: each tf.function would be traced anew.
        self.begin_function = tf.function(self._run_begin, autograph=False)

    def engine(self, num_rows: int) -> InferenceEngine:
        """The engine for so many rows of a replica."""
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
        """How replicas with so many rows attend, and why."""
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
        """How many segments of a row are read at once, with the numbers of one by one."""
        if self._reads_windows:
            return 1
        return self.engine(num_rows).plan.segments_per_read(num_rows, self._config.segment_length)

    def begin(self, num_rows: int, segments_per_read: int) -> tuple[Any, tuple[Any, ...]]:
        """The initial memory of a replica, and what depends on the weights alone.

        Args:
            num_rows: int. Rows of one replica.
            segments_per_read: int. Segments of a row that are read at once.

        Returns:
            Tuple of memory and constants, of all replicas where there is a strategy.
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
        # As arguments of `run` the numbers would become tensors on a TPU.
        return self._strategy.run(functools.partial(self._begin, num_rows, segments_per_read))

    def function(self, num_rows: int) -> Callable[..., Any]:
        """`score_batch` or `score_windows` for so many rows of a replica, compiled."""
        if num_rows not in self._steps:
            compiles = self.engine(num_rows).plan.compile_read
            if self._dynamic is not None:
                compiles = self._compiles_gradients
            self._steps[num_rows] = self._compiled(self._score, compiles)
        return self._steps[num_rows]

    def statistics_function(self, reader: DynamicReader) -> Callable[..., Any]:
        """The step that takes gradients into the statistics of a reader, compiled."""
        measure = functools.partial(self.score_batch, learn=reader.update.add_statistics)
        return self._compiled(measure, self._compiles_gradients)

    @property
    def _compiles_gradients(self) -> bool:
        return self._jit_compile is None or self._jit_compile

    def _compiled(self, function: Callable[..., Any], jit_compile: bool) -> Callable[..., Any]:
        if self._strategy is None:
            return tf.function(function, jit_compile=jit_compile, autograph=False)

        # A TPU names its program after the function, so it must have a name.
        def run_on_replicas(*arguments: Any) -> Any:
            return self._strategy.run(function, args=arguments)

        # TPUStrategy compiles by itself; of a mirrored variable XLA sees the wrong device's.
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
        """Scores a segment, or some, of every row.

        Args:
            token_ids: int32 tensor `(B, T)`, of `S` segments at once `(B, S * T)`.
            target_ids: int32 tensor `(B, T)`.
            is_scored: bool tensor `(B, T)`. False for padding and warm-up.
            document_starts: bool tensor `(B, T)`. Has an influence only where
                documents are masked.
            memory: memory of the segments before, from `begin` or a call.
            constants: from `begin`.
            learn: optional function that takes the gradients of the segment, where
                the weights follow the text. Defaults to their update.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)` and
            0 where nothing is scored, and the next memory.
        """
        starts = document_starts if self._masks_documents else None
        if self._dynamic is not None:
            nll, memory, gradients = self._dynamic.score(
                token_ids, target_ids, is_scored, memory, starts
            )
            # The assignments come after the reading, as in the order of this program.
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
        """Scores some positions of windows; each window is read by itself.

        Only these positions go through the softmax.

        Args:
            token_ids: int32 tensor `(B, T)`.
            target_ids: int32 tensor `(B, S)`.
            is_scored: bool tensor `(B, S)`. False for padding.
            document_starts: as in `score_batch`.
            positions: int32 tensor `(B, S)`. Positions that the targets follow.
            memory: the empty memory of `begin`.
            constants: from `begin`.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, S)` and
            0 where nothing is scored, and the empty memory again.
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

    Rows that the replicas cannot share out equally are made up with empty
    ones, which `join` leaves out.

    Args:
        strategy: optional `tf.distribute.Strategy`. Defaults to `None`: one
            device.
        num_rows: int. Rows of all replicas together, `B`.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None, num_rows: int) -> None:
        self._strategy = strategy
        self._num_rows = num_rows
        num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        self.rows_per_replica = -(-num_rows // num_replicas)
        self._num_padded = self.rows_per_replica * num_replicas - num_rows

    def split(self, arrays: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        """Hands out the rows of arrays `(B, T)`: tensors, or values per replica."""
        if self._strategy is None:
            return tuple(map(tf.constant, arrays))
        padded = [np.pad(array, [(0, self._num_padded), (0, 0)]) for array in arrays]

        def part_of(context: tf.distribute.ReplicaContext) -> tuple[tf.Tensor, ...]:
            first = context.replica_id_in_sync_group * self.rows_per_replica
            rows = slice(first, first + self.rows_per_replica)
            return tuple(tf.constant(array[rows]) for array in padded)

        return self._strategy.experimental_distribute_values_from_function(part_of)

    def join(self, values: Any) -> np.ndarray:
        """Puts the rows of all replicas together, `(B, ...)`."""
        if self._strategy is None:
            return values.numpy()
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Each worker has the values of its own replicas.
            rows = self._strategy.gather(values, axis=0).numpy()
        else:
            parts = self._strategy.experimental_local_results(values)
            rows = np.concatenate([part.numpy() for part in parts])
        return rows[: self._num_rows]
