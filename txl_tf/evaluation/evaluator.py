"""Evaluator that scores every token of a text but the first once, with any segment and memory.

Shape letters used in this module: B rows or windows, T segment or window length, S stride.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.model import RecurrentConfig
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import DataDamagedError, NonFiniteError, UsageError
from txl_tf.evaluation.evaluation_model import (
    config_of_evaluation,
    create_evaluation_model,
    model_in_policy,
)
from txl_tf.evaluation.reading_order import (
    AnyModelConfig,
    EvaluationBatch,
    EvaluationRows,
    EvaluationWindows,
    Stretches,
    empty_batch,
)
from txl_tf.evaluation.replica_rows import ReplicaRows
from txl_tf.evaluation.result import EvaluationResult, EvaluationText, TextScore
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import tokens_on_chip
from txl_tf.inference.segment_reader import read_batches
from txl_tf.layers.adaptive_softmax import check_token_ids
from txl_tf.layers.compiled_parts import compiled
from txl_tf.models.language_model import LanguageModel, assign_weights
from txl_tf.tpu_kernels.attention_plan import AttentionChoice

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from txl_tf.distribution.strategy import chip_of
    from txl_tf.evaluation.dynamic import DynamicEvaluation

    ConcreteFunction = tf.types.experimental.ConcreteFunction
_REPORTED = (
    "dtype_policy",
    "window_stride_tokens",
    "dynamic_learning_rate",
    "dynamic_decay",
    "dynamic_statistics_segments",
)
Track = Callable[[Iterable[EvaluationBatch], int], Iterable[EvaluationBatch]]
Observe = Callable[[np.ndarray, np.ndarray], None]


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

    A `LanguageModel` is read with its own layers. From a configuration a model is built, with its
    own weights unless `variables` maps the path of every weight to a Keras variable under the same
    strategy. Weights of others are never changed, so an evaluation does not disturb a training run.
    `evaluation_config` takes open values from the model. Raises ValueError for dynamic evaluation
    under a strategy or with weights of others, for windows with a model that has memory, and for a
    memory length with a recurrent model.
    """

    def __init__(
        self,
        model: LanguageModel | AnyModelConfig,
        evaluation_config: EvaluationConfig,
        jit_compile: bool | None = None,
        *,
        masks_documents: bool = False,
        strategy: "tf.distribute.Strategy | None" = None,
        variables: Mapping[str, keras.Variable] | None = None,
    ) -> None:
        model_config = model
        if isinstance(model, LanguageModel):
            model_config, variables = model.config, {each.path: each for each in model.weights}
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
        if isinstance(model, LanguageModel):
            self.model = model_in_policy(model, policy)
        else:
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

    def _copy_weights(self) -> None:
        """Copies the weights of others where models cannot share variables."""
        if self._variables is None or keras.backend.backend() == "tensorflow":
            return
        for variable in self.model.weights:
            if (source := self._variables[variable.path]) is not variable:
                variable.assign(source.value)

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
        max_tokens: int | None = None,
    ) -> EvaluationResult:
        """Scores a text, its tail included.

        With `max_tokens` it reads no more than these of a longer text: a sample of stretches that
        are spread evenly over it, with a split `<name>_sample`; in dynamic evaluation, whose
        weights follow the text, its beginning.
        `track` gets the batches and their number, passes the batches on and shows progress.
        `observe` gets the places of some targets and their float64 nats, each once, in no
        particular order. `statistics_text` is training text for `dynamic_statistics_segments`.
        Raises NonFiniteError if the total is not finite, and ValueError for a text with fewer
        than two tokens or an id outside `[0, V)`, or if statistics have no text.
        """
        begin = time.perf_counter()
        self._copy_weights()
        if max_tokens is not None and max_tokens + 1 >= text.num_tokens:
            max_tokens = None
        order, warm_up_tokens = self._order(text.num_tokens, max_tokens)
        batches = order.batches(text)
        if track is not None:
            batches = track(batches, order.num_steps)
        total_nats, num_scored, num_unknown = 0.0, 0, 0
        with self._learning(statistics_text):
            for batch, nll in self._read(self._step, batches, order):
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
            # A separate curve: figures of a part and of the whole are not comparable.
            split=text.name if max_tokens is None else f"{text.name}_sample",
            step=step,
            total_nats=total_nats,
            num_tokens=num_scored,
            num_bytes=text.num_bytes * share,
            num_characters=text.num_characters * share,
            num_words=text.num_words * share,
            seconds=time.perf_counter() - begin,
            batch_size=order.batch_size,
            warm_up_tokens=warm_up_tokens,
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
        step_of: Callable[[int], Callable[..., Any]],
        batches: Iterable[EvaluationBatch],
        order: EvaluationRows | EvaluationWindows,
    ) -> Iterator[tuple[EvaluationBatch, np.ndarray]]:
        """Runs the step for the rows of a replica on batches, and yields each with its scores.

        Each result is fetched while the next is computed.
        """
        rows = ReplicaRows(self.strategy, order.batch_size)
        step = step_of(rows.rows_per_replica)
        begin = functools.partial(
            self._begin_here if self.strategy is None else self._begin_function,
            rows.rows_per_replica,
            order.segments_per_step,
        )
        _, constants = begin()

        def read(batch: EvaluationBatch, memory: Any) -> tuple[Any, Any]:
            for token_ids in (batch.token_ids, batch.target_ids):
                check_token_ids(token_ids, self.config.vocabulary_size)
            return step(*rows.split(batch.arrays()), memory, constants)

        before = None
        for batch, nll, _ in read_batches(read, batches, lambda: begin()[0]):
            if before is not None:
                yield before[0], rows.join(before[1])
            before = batch, nll
        if before is not None:
            yield before[0], rows.join(before[1])

    def _order(
        self, num_tokens: int, max_tokens: int | None
    ) -> tuple[EvaluationRows | EvaluationWindows, int]:
        """Returns the order in which a text is read, and its warm-up in tokens."""
        settings, config = self._evaluation_config, self.config
        most_rows, length = settings.batch_size, config.segment_length
        if self._stride is not None:
            windows = EvaluationWindows(num_tokens, most_rows, length, self._stride, max_tokens)
            return windows, 0
        if max_tokens is not None and self._dynamic is None:
            stretches = Stretches.sample(num_tokens, max_tokens, config)
        else:
            num_read = num_tokens if max_tokens is None else max_tokens + 1
            stretches = Stretches.of_text(num_read, most_rows, config, settings.warm_up_tokens)
        return self._rows(stretches), stretches.warm_up_tokens

    def _rows(self, stretches: Stretches) -> EvaluationRows:
        num_rows = min(self._evaluation_config.batch_size, len(stretches.begins))
        per_replica = ReplicaRows(self.strategy, num_rows).rows_per_replica
        at_once = self.segments_per_read(per_replica)
        return EvaluationRows(stretches, num_rows, self.config.segment_length, at_once)

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
        rows = self._rows(Stretches.of_text(text.num_tokens, 1, self.config))
        num_segments = self._evaluation_config.dynamic_statistics_segments
        batches = itertools.islice(rows.batches(text), num_segments)
        dynamic.clear_statistics()
        score = functools.partial(self.score_batch, learn=dynamic.add_statistics)
        step = self._compiled(score, self._compiles_gradients)
        measured = list(self._read(lambda _: step, batches, rows))
        dynamic.finish_statistics(len(measured))

    def _create_engine(self, num_rows: int) -> InferenceEngine:
        return InferenceEngine(
            self.model,
            keeps=self._keeps,
            config=self.config,
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

    def _begin_here(self, num_rows: int, segments_per_read: int) -> tuple[Any, Any]:
        """Returns what `_begin` does, outside of a program and without a strategy."""
        engine = self._engine(num_rows)
        constants = engine.cached_constants(segments_per_read * self.config.segment_length)
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
    """Evaluates a split of a prepared data set, or its sample; see `Evaluator.evaluate`."""
    text = EvaluationText.of_split(dataset, split)
    if num_words is not None:
        text = dataclasses.replace(text, num_words=num_words)
    if text.num_tokens < 2:
        raise DataDamagedError(
            f"The split {split} has less than two tokens: there is nothing to score.",
            where=dataset.folder,
            remedy="Prepare a longer text.",
        )
    training_text = statistics_text(evaluator, dataset)
    return evaluator.evaluate(
        text,
        step=step,
        track=track,
        observe=observe,
        statistics_text=training_text,
        max_tokens=max_tokens,
    )


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
