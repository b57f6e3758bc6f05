"""Evaluator that scores every token of a text, with any segment and memory length.

Shape letters used in this module: B rows, T segment length.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig, RecurrentConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.dynamic import DynamicReader
from txl_tf.evaluation.evaluation_model import (
    create_evaluation_model,
    evaluation_conditions,
    exact_products,
)
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.evaluation.scoring_step import ReplicaRows, ScoringStep
from txl_tf.evaluation.text_rows import (
    EvaluationBatch,
    EvaluationRows,
    EvaluationText,
    EvaluationWindows,
    context_reach,
    empty_batch,
)
from txl_tf.inference.engine import InferenceEngine
from txl_tf.layers.adaptive_softmax import check_token_ids
from txl_tf.models.language_model import assign_weights
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.tpu_kernels.kernel_choice import AttentionChoice

ConcreteFunction = tf.types.experimental.ConcreteFunction
Track = Callable[[Iterable[EvaluationBatch], int], Iterable[EvaluationBatch]]
Observe = Callable[[np.ndarray, np.ndarray], None]
_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


class Evaluator:
    """Model for evaluation, and the loop that reads a text with it.

    The model has its own memory, and its own copy of the weights unless `variables` maps the path
    of every weight to a Keras variable under the same strategy. These are never changed, so an
    evaluation does not disturb a training run. `evaluation_config` takes open values from the
    model. Raises ValueError for dynamic evaluation on several replicas or with `variables`, and
    for windows with a model that has memory.
    """

    def __init__(
        self,
        model_config: ModelConfig | LSTMConfig | QRNNConfig,
        evaluation_config: EvaluationConfig,
        jit_compile: bool | None = None,
        *,
        keeps: str = "auto",
        masks_documents: bool = False,
        strategy: tf.distribute.Strategy | None = None,
        variables: Mapping[str, keras.Variable] | None = None,
    ) -> None:
        changes = {
            name: value
            for name in _LENGTHS
            if (value := getattr(evaluation_config, name)) is not None
        }
        if evaluation_config.memory_length is not None and isinstance(
            model_config, RecurrentConfig
        ):
            raise ValueError(
                "`memory_length` is for models with attention; a recurrent one remembers states. "
                f"Received: memory_length={evaluation_config.memory_length}"
            )
        evaluation_config.check_windows(model_config)
        self.config = model_config.replace(**changes)
        self._evaluation_config = evaluation_config
        self._masks_documents = masks_documents
        self._strategy = None if strategy is tf.distribute.get_strategy() else strategy
        self.reads_given_variables = variables is not None
        own = self.config, evaluation_config.dtype_policy, self._strategy
        self.model = create_evaluation_model(*own, variables)
        self._dynamic = self._create_dynamic_reader()
        self._scoring = ScoringStep(
            self.model,
            self._dynamic,
            keeps=keeps,
            masks_documents=masks_documents,
            strategy=self._strategy,
            jit_compile=jit_compile,
            attention_kernel=evaluation_config.attention_kernel or "auto",
            reads_windows=self._stride is not None,
        )

    @property
    def _stride(self) -> int | None:
        return self._evaluation_config.window_stride_tokens

    def _create_dynamic_reader(self) -> DynamicReader | None:
        if self._evaluation_config.dynamic_learning_rate is None:
            return None
        if self._strategy is not None or self.reads_given_variables:
            raise ValueError(
                "`dynamic_learning_rate` needs a single device, because there is one row, and "
                f"weights of its own to change. Received: strategy={self._strategy}, "
                f"reads given variables: {self.reads_given_variables}"
            )
        return DynamicReader(
            InferenceEngine(self.model, keeps="hidden_states"),
            self.model.trainable_variables,
            self._evaluation_config,
        )

    @property
    def strategy(self) -> tf.distribute.Strategy | None:
        """The strategy whose replicas share the rows; `None` for one device."""
        return self._strategy

    @property
    def needs_statistics(self) -> bool:
        """True if `evaluate` needs a `statistics_text`."""
        return self._evaluation_config.dynamic_statistics_segments is not None

    def load_weights_of(self, model: TransformerXL) -> None:
        """Copies the weights of a model of the same sizes."""
        self.load_arrays({variable.path: variable.numpy() for variable in model.weights})

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Loads weights by path.

        Raises MismatchError if they do not fit the model, and ValueError if the evaluator reads
        given variables.
        """
        if self.reads_given_variables:
            raise ValueError(
                "The evaluator reads the variables that it was given. "
                f"Received: arrays of {len(arrays)} weights"
            )
        assign_weights({variable.path: variable for variable in self.model.weights}, arrays)

    @exact_products()
    def attention(self, batch_size: int) -> AttentionChoice:
        """Returns how replicas that share `batch_size` rows attend, and why."""
        return self._scoring.attention(ReplicaRows(self._strategy, batch_size).rows_per_replica)

    def segments_per_read(self, rows_per_replica: int) -> int:
        """Returns how many segments of a row are read at once in a long text."""
        return self._scoring.segments_per_read(rows_per_replica)

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
        rows = self._rows(text)
        batches = rows.batches(text)
        if track is not None:
            batches = track(batches, rows.num_steps)
        total_nats, num_scored, num_unknown = 0.0, 0, 0
        with self._learning(statistics_text):
            for batch, nll in self._read(self._scoring.function, batches, rows):
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
    ) -> tuple[ConcreteFunction, ConcreteFunction]:
        """Traces the functions of `evaluate`, for `batch_size` rows of all replicas together.

        Returns the one for the initial memory and the constants, and the one that scores a batch.
        """
        rows = ReplicaRows(self._strategy, batch_size)
        at_once = segments_per_step or self._scoring.segments_per_read(rows.rows_per_replica)
        begin = self._scoring.begin_function.get_concrete_function(rows.rows_per_replica, at_once)
        carried = tf.nest.map_structure(
            lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf),
            begin.structured_outputs,
        )
        batch = empty_batch(batch_size, at_once * self.config.segment_length, self._stride)
        step = self._scoring.function(rows.rows_per_replica)
        return begin, step.get_concrete_function(*rows.split(batch.arrays()), *carried)

    def _read(
        self,
        step_for: Callable[[int], Callable[..., Any]],
        batches: Iterable[EvaluationBatch],
        evaluation_rows: EvaluationRows | EvaluationWindows,
    ) -> Iterator[tuple[EvaluationBatch, np.ndarray]]:
        """Runs a step on batches; each result is fetched while the next is computed."""
        rows = ReplicaRows(self._strategy, evaluation_rows.batch_size)
        step = step_for(rows.rows_per_replica)
        memory, constants = self._scoring.begin(
            rows.rows_per_replica, evaluation_rows.segments_per_step
        )
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

    def _rows(self, text: EvaluationText) -> EvaluationRows | EvaluationWindows:
        if self._stride is not None:
            return EvaluationWindows(
                text.num_tokens,
                self._evaluation_config.batch_size,
                self.config.segment_length,
                self._stride,
            )
        sizes = (
            text.num_tokens,
            self._evaluation_config.batch_size,
            self.config.segment_length,
            self._warm_up_tokens(text),
        )
        rows = EvaluationRows(*sizes)
        rows_per_replica = ReplicaRows(self._strategy, rows.batch_size).rows_per_replica
        # A short text is not padded to more segments than it has.
        at_once = min(self._scoring.segments_per_read(rows_per_replica), rows.num_steps)
        return EvaluationRows(*sizes, at_once)

    @contextlib.contextmanager
    def _learning(self, statistics_text: EvaluationText | None) -> Iterator[None]:
        """Enables dynamic evaluation in the block, if configured, and restores the weights."""
        if self._dynamic is None:
            yield
            return
        update = self._dynamic.update
        update.begin()
        try:
            if self.needs_statistics:
                if statistics_text is None:
                    raise ValueError(
                        "`dynamic_statistics_segments` needs a `statistics_text`. "
                        "Received: statistics_text=None"
                    )
                self._measure(self._dynamic, statistics_text)
            yield
        finally:
            update.end()

    def _measure(self, reader: DynamicReader, text: EvaluationText) -> None:
        rows = EvaluationRows(text.num_tokens, 1, self.config.segment_length)
        num_segments = self._evaluation_config.dynamic_statistics_segments
        batches = itertools.islice(rows.batches(text), num_segments)
        reader.update.clear_statistics()
        step = self._scoring.statistics_function(reader)
        measured = list(self._read(lambda _: step, batches, rows))
        reader.update.finish_statistics(len(measured))

    def _warm_up_tokens(self, text: EvaluationText) -> int:
        number = self._evaluation_config.warm_up_tokens or 0
        if number == "all":
            number = context_reach(self.config)
        return min(number, text.num_tokens)
