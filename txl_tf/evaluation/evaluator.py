"""Evaluator that scores every token of a text but the first once, with any segment and memory.

Shape letters used in this module: B rows or windows, T segment or window length, S stride.
"""

import contextlib
import dataclasses
import functools
import itertools
import mmap
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig, RecurrentConfig
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import DataDamagedError, NonFiniteError, UsageError
from txl_tf.evaluation.result import EvaluationResult, EvaluationText, TextScore
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import tokens_on_chip
from txl_tf.layers.adaptive_softmax import check_token_ids
from txl_tf.layers.compiled_parts import compiled
from txl_tf.models import create_model
from txl_tf.models.language_model import assign_weights
from txl_tf.tpu_kernels.attention_plan import AttentionChoice

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from txl_tf.distribution.strategy import chip_of
    from txl_tf.evaluation.dynamic import DynamicEvaluation

    ConcreteFunction = tf.types.experimental.ConcreteFunction
_REPORTED = (
    *("dtype_policy", "window_stride_tokens"),
    *("dynamic_learning_rate", "dynamic_decay", "dynamic_statistics_segments"),
)
AnyModelConfig = ModelConfig | LSTMConfig | QRNNConfig
Track = Callable[[Iterable["EvaluationBatch"], int], Iterable["EvaluationBatch"]]
Observe = Callable[[np.ndarray, np.ndarray], None]
_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")
# Tokens read from disk at once for a row, as many as a record of a data set has.
_READ_TOKENS = 32768
# Smaller ones save too little, and may be read while a model is built.
_SMALLEST_BYTES = 2**16


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Disables TF32 in the block, so that float32 products are exact."""
    if keras.backend.backend() == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
        return
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


class Evaluator:
    """Model for evaluation, and the loop that reads a text with it.

    The model has its own memory, and its own copy of the weights unless `variables` maps the path
    of every weight to a Keras variable under the same strategy. These are never changed, so an
    evaluation does not disturb a training run. `evaluation_config` takes open values from the
    model. Raises ValueError for dynamic evaluation under a strategy or with `variables`, for
    windows with a model that has memory, and for a memory length with a recurrent model.
    """

    def __init__(
        self,
        model_config: AnyModelConfig,
        evaluation_config: EvaluationConfig,
        jit_compile: bool | None = None,
        *,
        masks_documents: bool = False,
        strategy: "tf.distribute.Strategy | None" = None,
        variables: Mapping[str, keras.Variable] | None = None,
    ) -> None:
        if evaluation_config.memory_length is not None and isinstance(
            model_config, RecurrentConfig
        ):
            raise ValueError(
                "`memory_length` must be None for a recurrent model, which remembers one state. "
                f"Received: memory_length={evaluation_config.memory_length}"
            )
        evaluation_config.check_windows(model_config)
        self.config = config_of_evaluation(model_config, evaluation_config)
        self._evaluation_config = evaluation_config
        self._stride = evaluation_config.window_stride_tokens
        self._masks_documents = masks_documents
        self._jit_compile = jit_compile
        if strategy is not None and strategy is tf.distribute.get_strategy():
            strategy = None
        self.strategy = strategy
        self._variables = variables
        self.reads_given_variables = variables is not None
        policy = evaluation_config.dtype_policy
        self.model = create_evaluation_model(self.config, policy, strategy, variables)
        self._dynamic: DynamicEvaluation | None = None
        if evaluation_config.dynamic_learning_rate is not None:
            if strategy is not None or variables is not None:
                raise ValueError(
                    "`dynamic_learning_rate` needs `strategy` and `variables` to be None: it "
                    f"changes weights on a single device. Received: strategy={strategy}, "
                    f"reads given variables: {self.reads_given_variables}"
                )
            self._dynamic = DynamicEvaluation(self.model, evaluation_config)
        self._keeps = "auto" if self._dynamic is None else "hidden_states"
        # By the number of rows of a replica.
        self._engine = functools.cache(self._create_engine)
        self._step = functools.cache(self._create_step)
        # Made once: every program is traced separately.
        self._begin_function = compiled(self._run_begin, self.model)

    @property
    def needs_statistics(self) -> bool:
        """True if `evaluate` needs a `statistics_text`."""
        return self._evaluation_config.dynamic_statistics_segments is not None

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Loads weights by path; MismatchError if they do not fit the model."""
        if self.reads_given_variables:
            raise ValueError(
                "`load_arrays` needs an evaluator that was created without `variables`. "
                f"Received: arrays of {len(arrays)} weights"
            )
        assign_weights({variable.path: variable for variable in self.model.weights}, arrays)

    @exact_products()
    def attention(self, batch_size: int) -> AttentionChoice:
        """Returns how replicas that share `batch_size` rows attend, and why."""
        return self._attention(ReplicaRows(self.strategy, batch_size).rows_per_replica)

    def segments_per_read(self, rows_per_replica: int) -> int:
        """Returns how many segments of a row are read at once in a long text."""
        if self._stride is not None:
            return 1
        plan = self._engine(rows_per_replica).plan
        return plan.segments_per_read(rows_per_replica, self.config.segment_length)

    @exact_products()
    def evaluate(
        self,
        text: EvaluationText,
        *,
        step: int,
        track: Track | None = None,
        observe: Observe | None = None,
        statistics_text: EvaluationText | None = None,
    ) -> EvaluationResult:
        """Scores a text, its tail included.

        `track` gets the batches and their number, passes the batches on and shows progress.
        `observe` gets the places of some targets and their float64 nats, each once, in no
        particular order. `statistics_text` is training text for `dynamic_statistics_segments`.
        Raises NonFiniteError if the total is not finite, and ValueError for a text with fewer
        than two tokens or an id outside `[0, V)`, or if statistics have no text.
        """
        begin = time.perf_counter()
        if self._variables is not None and keras.backend.backend() != "tensorflow":
            for variable in self.model.weights:
                variable.assign(self._variables[variable.path].value)
        rows = self._rows(text)
        batches = rows.batches(text)
        if track is not None:
            batches = track(batches, rows.num_steps)
        total_nats, num_scored, num_unknown = 0.0, 0, 0
        with self._learning(statistics_text):
            for batch, nll in self._read(None, batches, rows):
                nats = nll[batch.is_scored].astype(np.float64)
                total_nats += float(np.sum(nats))
                num_scored += len(nats)
                is_unknown = batch.target_ids[batch.is_scored] == text.unknown_id
                num_unknown += int(np.count_nonzero(is_unknown))
                if observe is not None:
                    observe(batch.places[batch.is_scored], nats)
        if not np.isfinite(total_nats):
            raise NonFiniteError(
                f"The loss of the split {text.name} is not finite: {total_nats}.",
                where=f"weights of step {step}",
                remedy="Evaluate an earlier checkpoint."
                if self._evaluation_config.dynamic_learning_rate is None
                else "Choose a smaller evaluation.dynamic_learning_rate.",
            )
        share = num_scored / text.num_tokens
        return EvaluationResult(
            split=text.name,
            step=step,
            total_nats=total_nats,
            num_tokens=num_scored,
            num_bytes=text.num_bytes * share,
            num_characters=text.num_characters * share,
            num_words=text.num_words * share,
            seconds=time.perf_counter() - begin,
            batch_size=rows.batch_size,
            warm_up_tokens=self._warm_up_tokens(text),
            masks_documents=self._masks_documents,
            tokenizer_kind=text.tokenizer_kind,
            num_unknown=None if text.unknown_id is None else num_unknown,
            **evaluation_conditions(self.config, self._evaluation_config),
        )

    @exact_products()
    def trace(
        self, batch_size: int, segments_per_step: int | None = None
    ) -> "tuple[ConcreteFunction, ConcreteFunction]":
        """Traces the functions of `evaluate`: memory and constants, and the scores of a batch."""
        rows = ReplicaRows(self.strategy, batch_size)
        at_once = segments_per_step or self.segments_per_read(rows.rows_per_replica)
        begin = self._begin_function.get_concrete_function(rows.rows_per_replica, at_once)
        carried = tf.nest.map_structure(
            lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf),
            begin.structured_outputs,
        )
        batch = empty_batch(batch_size, at_once * self.config.segment_length, self._stride)
        step = self._step(rows.rows_per_replica)
        return begin, step.get_concrete_function(*rows.split(batch.arrays()), *carried)

    def _read(
        self,
        step: Callable[..., Any] | None,
        batches: Iterable["EvaluationBatch"],
        evaluation_rows: "EvaluationRows | EvaluationWindows",
    ) -> Iterator[tuple["EvaluationBatch", np.ndarray]]:
        """Runs a step, by default the scoring one, on batches.

        Each result is fetched while the next is computed.
        """
        rows = ReplicaRows(self.strategy, evaluation_rows.batch_size)
        step = step or self._step(rows.rows_per_replica)
        begin = self._begin if self.strategy is None else self._begin_function
        memory, constants = begin(rows.rows_per_replica, evaluation_rows.segments_per_step)
        before = None
        for batch in batches:
            for token_ids in (batch.token_ids, batch.target_ids):
                check_token_ids(token_ids, self.config.vocabulary_size)
            nll, memory = step(*rows.split(batch.arrays()), memory, constants)
            if before is not None:
                yield before[0], rows.join(before[1])
            before = batch, nll
        if before is not None:
            yield before[0], rows.join(before[1])

    def _rows(self, text: EvaluationText) -> "EvaluationRows | EvaluationWindows":
        num_rows, length = self._evaluation_config.batch_size, self.config.segment_length
        if self._stride is not None:
            return EvaluationWindows(text.num_tokens, num_rows, length, self._stride)
        rows = EvaluationRows(text.num_tokens, num_rows, length, self._warm_up_tokens(text))
        rows_per_replica = ReplicaRows(self.strategy, rows.batch_size).rows_per_replica
        # A short text is not padded to more segments than it has.
        rows.segments_per_step = min(self.segments_per_read(rows_per_replica), rows.num_steps)
        return rows

    @contextlib.contextmanager
    def _learning(self, statistics_text: EvaluationText | None) -> Iterator[None]:
        """Enables dynamic evaluation in the block, if configured, and restores the weights."""
        if self._dynamic is None:
            yield
            return
        if self.needs_statistics and statistics_text is None:
            raise ValueError(
                "`dynamic_statistics_segments` needs a `statistics_text`. "
                "Received: statistics_text=None"
            )
        with self._dynamic.restored_weights():
            if self.needs_statistics:
                self._measure_gradients(self._dynamic, statistics_text)
            yield

    def _measure_gradients(self, dynamic: "DynamicEvaluation", text: EvaluationText) -> None:
        """Measures the gradients of training text."""
        rows = EvaluationRows(text.num_tokens, 1, self.config.segment_length)
        num_segments = self._evaluation_config.dynamic_statistics_segments
        batches = itertools.islice(rows.batches(text), num_segments)
        dynamic.clear_statistics()
        score = functools.partial(self.score_batch, learn=dynamic.add_statistics)
        step = self._compiled(score, self._compiles_gradients)
        measured = list(self._read(step, batches, rows))
        dynamic.finish_statistics(len(measured))

    def _create_engine(self, num_rows: int) -> InferenceEngine:
        return InferenceEngine(
            self.model,
            keeps=self._keeps,
            num_rows=num_rows,
            is_distributed=self.strategy is not None,
            jit_compile=self._jit_compile,
            attention_kernel=self._attention(num_rows).kernel,
        )

    def _attention(self, num_rows: int) -> AttentionChoice:
        """Returns how replicas with `num_rows` rows attend, and why."""
        if self.strategy is None:
            return AttentionChoice.plain("there is no TPU")
        if self._keeps == "hidden_states":
            return AttentionChoice.plain("memory holds hidden states, the kernel needs keys")
        at_once = self.config.segment_length
        if self._stride is None:
            at_once = tokens_on_chip(num_rows, at_once)
        return AttentionChoice.for_model(
            self.config,
            setting=self._evaluation_config.attention_kernel or "auto",
            chip=chip_of(self.strategy),
            num_rows=num_rows,
            num_tokens=at_once,
            dtype=self.model.compute_dtype,
            rounds_products=tf.config.experimental.tensor_float_32_execution_enabled(),
            is_differentiated=False,
        )

    def _begin(self, num_rows: int, segments_per_read: int) -> tuple[Any, tuple[Any, ...]]:
        """Returns initial memory and constants of a replica, which depend on the weights only."""
        engine = self._engine(num_rows)
        constants = engine.constants(segments_per_read * self.config.segment_length)
        return engine.initial_memory(num_rows), constants

    def _run_begin(self, num_rows: int, segments_per_read: int) -> Any:
        if self.strategy is None:
            return self._begin(num_rows, segments_per_read)
        # Bound here: as arguments of `run` the numbers would become tensors on a TPU.
        return self.strategy.run(functools.partial(self._begin, num_rows, segments_per_read))

    def _create_step(self, num_rows: int) -> Callable[..., Any]:
        """Compiles `score_batch` or `score_windows` for `num_rows` rows of a replica."""
        compiles = self._compiles_gradients
        if self._dynamic is None:
            compiles = self._engine(num_rows).plan.compile_read
        score = self.score_batch if self._stride is None else self.score_windows
        return self._compiled(score, compiles)

    @property
    def _compiles_gradients(self) -> bool:
        return self._jit_compile is None or self._jit_compile

    def _compiled(self, function: Callable[..., Any], jit_compile: bool) -> Callable[..., Any]:
        if self.strategy is None:
            return compiled(function, self.model, jit_compile)

        # A TPU names its program after the function, so it needs a name.
        def run_on_replicas(*arguments: Any) -> Any:
            return self.strategy.run(function, args=arguments)

        # TPUStrategy compiles anyway; XLA would read a mirrored variable of the wrong device.
        return compiled(run_on_replicas, self.model)

    def score_batch(
        self,
        token_ids: Any,
        target_ids: Any,
        is_scored: Any,
        document_starts: Any,
        memory: Any,
        constants: tuple[Any, ...],
        learn: Callable[[list[Any]], None] | None = None,
    ) -> tuple[Any, Any]:
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
            (learn or self._dynamic.apply)(gradients)
        else:
            nll, memory = self._engine(token_ids.shape[0]).score(
                token_ids, target_ids, memory, constants=constants, document_starts=starts
            )
        return ops.where(is_scored, nll, 0.0), memory

    def score_windows(
        self,
        token_ids: Any,
        target_ids: Any,
        is_scored: Any,
        document_starts: Any,
        positions: Any,
        memory: Any,
        constants: tuple[Any, ...],
    ) -> tuple[Any, Any]:
        """Scores positions `(B, S)` of windows `(B, T)`, read from the empty memory of `begin`.

        Only these positions go through the softmax. Targets and `is_scored` are `(B, S)`. Returns
        the nats, float32 `(B, S)`, 0 where nothing is scored, and the empty memory.
        """
        starts = document_starts if self._masks_documents else None
        hidden, _ = self._engine(token_ids.shape[0]).read(
            token_ids, memory, constants=constants, document_starts=starts
        )
        num_rows, num_tokens, width = hidden.shape
        firsts = ops.arange(num_rows, dtype="int32")[:, None] * num_tokens
        hidden = ops.take(ops.reshape(hidden, [-1, width]), firsts + positions, axis=0)  # [B, S, D]
        nll = self.model.negative_log_likelihood(hidden, target_ids)
        return ops.where(is_scored, nll, 0.0), memory

    def _warm_up_tokens(self, text: EvaluationText) -> int:
        number = self._evaluation_config.warm_up_tokens or 0
        if number == "all":
            number = context_reach(self.config)
        return min(number, text.num_tokens)


def create_evaluator(
    experiment: ExperimentConfig,
    strategy: "tf.distribute.Strategy | None" = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> Evaluator:
    """Builds the evaluator of an experiment, without weights or with the variables of a run."""
    if experiment.evaluation.dynamic_learning_rate is not None:
        strategy, variables = None, None
    return Evaluator(
        experiment.model,
        experiment.resolved_evaluation,
        # If XLA is allowed, the device's execution plan decides.
        jit_compile=None if experiment.training.may_compile else False,
        masks_documents=experiment.training.document_boundaries == "mask",
        strategy=strategy,
        variables=variables,
    )


def evaluate_split(
    evaluator: Evaluator,
    dataset: PreparedDataset,
    split: str,
    step: int,
    track: Track | None = None,
    observe: Observe | None = None,
    num_words: int | None = None,
    max_tokens: int | None = None,
) -> EvaluationResult:
    """Evaluates a split of a prepared data set, or its first `max_tokens` targets."""
    text = EvaluationText.of_split(dataset, split)
    if max_tokens is not None and max_tokens + 1 < text.num_tokens:
        text = text.beginning(max_tokens + 1)
    if num_words is not None:
        text = dataclasses.replace(text, num_words=num_words)
    if text.num_tokens < 2:
        raise DataDamagedError(
            f"The split {split} has less than two tokens: there is nothing to score.",
            where=dataset.folder,
            remedy="Prepare a longer text.",
        )
    training_text = statistics_text(evaluator, dataset)
    options = {"track": track, "observe": observe, "statistics_text": training_text}
    return evaluator.evaluate(text, step=step, **options)


def score_text(
    evaluator: Evaluator,
    tokenizer: Tokenizer,
    text: str | bytes | np.ndarray,
    *,
    step: int = 0,
    num_words: int | None = None,
    **options: Any,
) -> TextScore:
    """Scores a text, or token ids; `options` are passed to `Evaluator.evaluate`.

    Raises InvalidTextError if it has no encoding or less than 2 tokens.
    """
    if isinstance(text, np.ndarray):
        content, token_ids = tokenizer.decode_bytes(text), text.astype(np.int32)
    else:
        content = text.encode() if isinstance(text, str) else text
        token_ids = tokenizer.encode(content).astype(np.int32)
    if len(token_ids) < 2:
        reason = "A text must have at least 2 tokens, because the first token has no score."
        raise InvalidTextError(reason, content, len(content))
    read = EvaluationText.of_content(content, token_ids, tokenizer)
    if num_words is not None:
        read = dataclasses.replace(read, num_words=num_words)
    nats = np.full(len(token_ids), np.nan)
    result = evaluator.evaluate(read, step=step, observe=nats.__setitem__, **options)
    return TextScore(**vars(result), token_ids=token_ids, nats=nats, tokenizer=tokenizer)


def statistics_text(evaluator: Evaluator, dataset: PreparedDataset | None) -> EvaluationText | None:
    """Returns the split `train`, whose gradients scale dynamic evaluation; `None` if unscaled."""
    if not evaluator.needs_statistics:
        return None
    if dataset is None or "train" not in dataset.manifest.split_names:
        raise UsageError(
            "evaluation.dynamic_statistics_segments needs the split `train` of the data set.",
            where="--data" if dataset is None else dataset.folder,
            remedy="Name a data set with this split, or leave the setting out.",
        )
    return EvaluationText.of_split(dataset, "train")


def context_reach(config: AnyModelConfig) -> int:
    """Computes how many preceding tokens can influence a prediction.

    A layer sees the memory and the segment before a position, and the layer below computed each
    of these from as many tokens again. So every layer adds `M + T - 1` tokens, or `M` if all
    queries see equally far. For a recurrent model the result exceeds any text.
    """
    if isinstance(config, RecurrentConfig):
        return sys.maxsize
    memory_length = config.effective_memory_length
    per_layer = memory_length if config.same_length else memory_length + config.segment_length - 1
    return config.num_layers * per_layer


class EvaluationBatch(NamedTuple):
    """One segment of every row, or some windows.

    Arrays are `(B, T)`. For windows, targets, `is_scored` and `places` are `(B, S)`, and
    `positions` `(B, S)` are the positions before the targets. `is_scored` is false for warm-up
    and padding, `document_starts` is true for the first tokens of documents, where known, and
    `places` are the indices of the targets in the text.
    """

    token_ids: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray
    document_starts: np.ndarray
    places: np.ndarray
    positions: np.ndarray | None = None

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Returns the arrays that a scoring step reads."""
        read = self.token_ids, self.target_ids, self.is_scored, self.document_starts
        return read if self.positions is None else (*read, self.positions)


class EvaluationRows:
    """Order in which an evaluation reads a text in rows.

    The `n - 1` targets are divided as evenly as possible: each row scores one contiguous stretch,
    the first rows one target more than the last. Before its stretch a row reads warm-up tokens,
    which are not scored. Rows are padded to whole segments; padding comes after all scored tokens,
    which keep the positions they have in a whole segment.

    Rows that warm up are cut into segments at multiples of `T` in the text, as a single row is.
    This lengthens their warm-up by less than `T`. Raises ValueError if there is nothing to score.
    """

    def __init__(
        self,
        num_tokens: int,
        batch_size: int,
        segment_length: int,
        warm_up_tokens: int = 0,
        segments_per_step: int = 1,
    ) -> None:
        check_has_targets(num_tokens)
        self.batch_size = min(batch_size, num_tokens - 1)
        self.segments_per_step = segments_per_step
        self._segment_length = segment_length
        share, remainder = divmod(num_tokens - 1, self.batch_size)
        lengths = share + (np.arange(self.batch_size) < remainder)
        self._stops = np.cumsum(lengths)
        self._starts = self._stops - lengths
        self._begins = self._starts
        if warm_up_tokens > 0:
            earliest = np.maximum(self._starts - min(warm_up_tokens, num_tokens), 0)
            self._begins = earliest // segment_length * segment_length

    @property
    def num_steps(self) -> int:
        """Number of steps of the evaluation."""
        longest = int(np.max(self._stops - self._begins))
        return -(-longest // (self.segments_per_step * self._segment_length))

    def batches(self, text: EvaluationText) -> Iterator[EvaluationBatch]:
        """Reads a text of `num_tokens` tokens; yields the batch of each step, in order."""
        num_tokens = self.segments_per_step * self._segment_length
        streams = [_RowStream(text, num_tokens) for _ in range(self.batch_size)]
        for step in range(self.num_steps):
            batch = empty_batch(self.batch_size, num_tokens)
            for row, stream in enumerate(streams):
                first = int(self._begins[row]) + step * num_tokens
                count = min(num_tokens, int(self._stops[row]) - first)
                if count <= 0:
                    continue
                tokens, document_starts = stream.read(first, first + count + 1)
                places = np.arange(first, first + count)
                batch.token_ids[row, :count] = tokens[:-1]
                batch.target_ids[row, :count] = tokens[1:]
                batch.is_scored[row, :count] = places >= self._starts[row]
                batch.document_starts[row, :count] = document_starts[:-1]
                batch.places[row, :count] = places + 1
            yield batch


class EvaluationWindows:
    """Order in which an evaluation reads a text with overlapping windows.

    Each window scores the `S` targets after those of the window before, its last ones unless it
    would begin before the text or end after it: then it is shifted. So all are full, and absolute
    positions mean the same as in training. A text shorter than a window is padded and read as the
    last segment of `EvaluationRows`. The last batch is padded with windows that score nothing.
    Raises ValueError if there is nothing to score.
    """

    segments_per_step = 1

    def __init__(self, num_tokens: int, batch_size: int, window_length: int, stride: int) -> None:
        check_has_targets(num_tokens)
        self._num_targets = num_tokens - 1
        self._window_length = window_length
        self._stride = stride
        # First target of each window.
        self._firsts = np.arange(0, self._num_targets, stride)
        self.batch_size = min(batch_size, len(self._firsts))

    @property
    def num_steps(self) -> int:
        """Number of steps of the evaluation."""
        return -(-len(self._firsts) // self.batch_size)

    def batches(self, text: EvaluationText) -> Iterator[EvaluationBatch]:
        """Reads a text of `num_tokens` tokens; yields the batch of each step, in order."""
        length = self._window_length
        latest = max(self._num_targets - length, 0)
        stream = _RowStream(text, length)
        for begin in range(0, len(self._firsts), self.batch_size):
            batch = empty_batch(self.batch_size, length, self._stride)
            firsts = self._firsts[begin : begin + self.batch_size].tolist()
            for row, first in enumerate(firsts):
                # The last target follows the window's end, unless the text begins or ends there.
                start = min(max(first + self._stride - length, 0), latest)
                stop = min(start + length, self._num_targets)
                count = min(self._stride, self._num_targets - first)
                tokens, document_starts = stream.read(start, stop + 1)
                batch.token_ids[row, : stop - start] = tokens[:-1]
                batch.document_starts[row, : stop - start] = document_starts[:-1]
                position = first - start
                batch.target_ids[row, :count] = tokens[position + 1 : position + count + 1]
                batch.is_scored[row, :count] = True
                batch.places[row, :count] = np.arange(first, first + count) + 1
                batch.positions[row, :count] = np.arange(position, position + count)
            yield batch


def empty_batch(num_rows: int, num_tokens: int, num_scored: int | None = None) -> EvaluationBatch:
    """Returns a batch that scores nothing; `num_scored` is `S` for windows, None for segments."""
    read = (num_rows, num_tokens)
    scored = read if num_scored is None else (num_rows, num_scored)
    return EvaluationBatch(
        token_ids=np.zeros(read, np.int32),
        target_ids=np.zeros(scored, np.int32),
        is_scored=np.zeros(scored, bool),
        document_starts=np.zeros(read, bool),
        places=np.zeros(scored, np.int64),
        positions=None if num_scored is None else np.zeros(scored, np.int32),
    )


def check_has_targets(num_tokens: int) -> None:
    """Raises ValueError for a text with nothing to score."""
    if num_tokens < 2:
        raise ValueError(
            "A split needs at least 2 tokens, because the first token has no score. "
            f"Received: num_tokens={num_tokens}"
        )


class _RowStream:
    """Forward reader of a text in large blocks: part of a record costs as much as the whole."""

    def __init__(self, text: EvaluationText, tokens_per_step: int) -> None:
        self._text = text
        self._block_tokens = max(_READ_TOKENS, tokens_per_step + 1)
        self._start = self._stop = 0
        self._tokens = self._document_starts = np.zeros(0)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of a range, and which of them begin documents."""
        if not self._start <= start <= stop <= self._stop:
            self._start = start
            self._stop = min(start + self._block_tokens, self._text.num_tokens)
            self._tokens = self._text.read_tokens(start, self._stop)
            self._document_starts = self._text.read_document_starts(start, self._stop)
        wanted = slice(start - self._start, stop - self._start)
        return self._tokens[wanted], self._document_starts[wanted]


class ReplicaRows:
    """Division of rows over replicas, padded with empty rows, and the joining of their results."""

    def __init__(self, strategy: "tf.distribute.Strategy | None", num_rows: int) -> None:
        self._strategy = strategy
        self._num_rows = num_rows
        num_replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        self.rows_per_replica = -(-num_rows // num_replicas)
        self._num_padded = self.rows_per_replica * num_replicas - num_rows

    def split(self, arrays: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        """Distributes the rows of arrays `(B, T)`: tensors, or values per replica."""
        if self._strategy is None:
            return tuple(map(ops.convert_to_tensor, arrays))
        padded = [np.pad(array, [(0, self._num_padded), (0, 0)]) for array in arrays]

        def part_of(context: tf.distribute.ReplicaContext) -> tuple[Any, ...]:
            first = context.replica_id_in_sync_group * self.rows_per_replica
            rows = slice(first, first + self.rows_per_replica)
            return tuple(tf.constant(array[rows]) for array in padded)

        return self._strategy.experimental_distribute_values_from_function(part_of)

    def join(self, values: Any) -> np.ndarray:
        """Joins the rows of all replicas, `(B, ...)`."""
        if self._strategy is None:
            return np.asarray(values)
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Each worker only has the values of its own replicas.
            rows = self._strategy.gather(values, axis=0).numpy()
        else:
            parts = self._strategy.experimental_local_results(values)
            rows = np.concatenate([part.numpy() for part in parts])
        return rows[: self._num_rows]


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Creates large variables from memory pages that are never written, in the block.

    A compiler reads only the shape and type of variables. Weights and the two means of Adam for
    838 million parameters would be 10 GB. Here they are arrays of zeros, whose pages the
    operating system supplies on first use, which never happens. Initial values are traced for
    their shape and never computed.
    """

    def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        spec = _spec_of(arguments["initial_value"])
        num_bytes = spec.shape.num_elements() * spec.dtype.size
        if spec.dtype.is_floating and num_bytes >= _SMALLEST_BYTES:
            arguments["initial_value"] = _untouched_zeros(spec)
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield


def _spec_of(initial_value: Any) -> "tf.TensorSpec":
    if callable(initial_value):
        with tf.Graph().as_default():
            return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value()))
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value))


def _untouched_zeros(spec: "tf.TensorSpec") -> "tf.Tensor":
    pages = mmap.mmap(-1, spec.shape.num_elements() * spec.dtype.size)
    # NumPy lacks some types of TensorFlow, so the bits are passed as integers.
    numbers = np.frombuffer(pages, f"uint{8 * spec.dtype.size}").reshape(spec.shape)
    # All other conversions from NumPy copy, and a copy touches the pages.
    bits = tf.experimental.dlpack.from_dlpack(numbers.__dlpack__())
    return tf.bitcast(bits, spec.dtype)


def create_evaluation_model(
    config: AnyModelConfig,
    dtype_policy: str,
    strategy: "tf.distribute.Strategy | None" = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> keras.Model:
    """Builds a model; with `variables` it reads existing ones, on TensorFlow."""
    if variables is not None and keras.backend.backend() == "tensorflow":
        # On the host and without memory: its own variables are replaced at once.
        with tf.device("CPU:0"), unallocated_variables():
            model = create_model(config, dtype=dtype_policy)
        for variable in model.weights:
            variable._initialize(variables[variable.path].value)
        return model
    if strategy is None:
        return create_model(config, dtype=dtype_policy)
    with strategy.scope():
        return create_model(config, dtype=dtype_policy)


def config_of_evaluation(config: AnyModelConfig, evaluation: EvaluationConfig) -> AnyModelConfig:
    """Returns a model's configuration with the lengths of an evaluation, where they are set."""
    lengths = {name: getattr(evaluation, name) for name in _LENGTHS}
    return config.replace(**{name: each for name, each in lengths.items() if each is not None})


def evaluation_conditions(config: AnyModelConfig, evaluation: EvaluationConfig) -> dict[str, Any]:
    """Returns the fields of `EvaluationResult` that are evaluation settings."""
    return {
        "segment_length": config.segment_length,
        "memory_length": config.effective_memory_length,
        "clamp_length": config.clamp_length,
        "same_length": config.same_length,
        "same_length_keys": config.same_length_keys if config.same_length else None,
        **{name: getattr(evaluation, name) for name in _REPORTED},
    }
