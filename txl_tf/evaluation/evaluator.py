"""Evaluator that scores every token of a text but the first, each once."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.experiment import EvaluatedModel
from txl_tf.config.model import AnyModelConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.dynamic import DynamicEvaluation
from txl_tf.evaluation.evaluation_model import (
    config_of_evaluation,
    copy_values,
    create_evaluation_model,
    evaluation_conditions,
    model_in_policy,
)
from txl_tf.evaluation.evaluation_text import EvaluationText
from txl_tf.evaluation.programs import EvaluationPrograms
from txl_tf.evaluation.reading_order import (
    EvaluationBatch,
    EvaluationRows,
    Stretches,
)
from txl_tf.evaluation.replica_rows import ReplicaRows
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.imports import is_on_jax, tensorflow as tf
from txl_tf.inference.segment_reader import read_batches
from txl_tf.layers.compiled_parts import exact_products
from txl_tf.layers.token_ids import check_token_ids
from txl_tf.models.language_model import LanguageModel, assign_weights
from txl_tf.tpu_kernels.attention_choice import AttentionChoice

Track = Callable[[Iterable[EvaluationBatch], int], Iterable[EvaluationBatch]]
Observe = Callable[[np.ndarray, np.ndarray], None]


class Evaluator:
    """Scorer of texts with one model and the settings of an evaluation.

    The weights have one of three sources:

    - a `LanguageModel`, which is read with its own layers
    - `variables`, which map the path of every weight to a Keras variable under the same strategy,
      such as those of a training run; a model of the configuration `model` reads them
    - `load_arrays`, which fills the own weights of a model of the configuration `model`

    An evaluation never changes weights, so it does not disturb a training run. Lengths that
    `evaluation_config` leaves open are the model's. With `masks_documents` no token sees earlier
    documents. Dynamic evaluation runs without a strategy.
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
        evaluation_config.check_model(model_config)
        self.config = config_of_evaluation(model_config, evaluation_config)
        self._evaluation_config = evaluation_config
        self._masks_documents = masks_documents
        if is_on_jax() or strategy is tf.distribute.get_strategy():
            strategy = None  # one device
        self.strategy = strategy
        self._variables = variables
        self.reads_given_variables = variables is not None
        policy = evaluation_config.dtype_policy
        if isinstance(model, LanguageModel):
            self.model = model_in_policy(model, policy)
        else:
            self.model = create_evaluation_model(self.config, policy, strategy, variables)
        self._dynamic = (
            None
            if evaluation_config.dynamic_learning_rate is None
            else DynamicEvaluation(self.model, evaluation_config)
        )
        self.programs = EvaluationPrograms(
            self.model,
            self.config,
            evaluation_config,
            strategy,
            jit_compile,
            masks_documents,
            self._dynamic,
        )

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Loads weights by path; raises MismatchError if they do not fit the model."""
        assign_weights({variable.path: variable for variable in self.model.weights}, arrays)

    @exact_products()
    def attention_choice(self, batch_size: int) -> AttentionChoice:
        """Returns the choice of the attention kernel, and its reason, for `batch_size` rows."""
        rows = ReplicaRows(self.strategy, batch_size)
        return self.programs.attention_choice(rows.rows_per_replica)

    @exact_products()
    def evaluate(
        self,
        text: EvaluationText,
        *,
        step: int,
        track: Track | None = None,
        observe: Observe | None = None,
        max_tokens: int | None = None,
    ) -> EvaluationResult:
        """Scores a text, its tail included.

        Args:
            text: `EvaluationText`.
            step: int. Training steps of the weights, for the result.
            track: optional function. It gets the batches and their number, and yields the batches,
                for example to show progress.
            observe: optional function. It gets the places of some targets and their float64 nats.
                Its calls contain every target once, in no particular order.
            max_tokens: optional int. Largest number of tokens to read. Stretches are spread evenly
                over a longer text, and the split of the result is called `<name>_sample`. Dynamic
                evaluation reads the beginning instead, because its weights follow the text.

        Raises:
            NonFiniteError: If the total is not finite.
            ValueError: If the text has fewer than two tokens, or an id outside `[0, V)`.
        """
        begin = time.perf_counter()
        copy_values(self.model.weights, self._variables)
        if max_tokens is not None and max_tokens + 1 >= text.num_tokens:
            max_tokens = None
        order = self._order(text.num_tokens, max_tokens)
        batches = order.batches(text)
        if track is not None:
            batches = track(batches, order.num_steps)
        total_nats, num_scored, num_unknown = 0.0, 0, 0
        for batch, nll in self._read(batches, order):
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
            # Another name, because figures of a part and of the whole are not comparable.
            split=text.name if max_tokens is None else f"{text.name}_sample",
            step=step,
            total_nats=total_nats,
            num_tokens=num_scored,
            num_bytes=text.num_bytes * share,
            num_characters=text.num_characters * share,
            num_words=text.num_words * share,
            seconds=time.perf_counter() - begin,
            batch_size=order.batch_size,
            warm_up_tokens=order.warm_up_tokens,
            masks_documents=self._masks_documents,
            tokenizer_kind=text.tokenizer_kind,
            num_unknown=None if text.unknown_id is None else num_unknown,
            **evaluation_conditions(self.config, self._evaluation_config),
        )

    @exact_products()
    def trace(
        self, batch_size: int, segments_per_step: int | None = None
    ) -> "tuple[tf.types.experimental.ConcreteFunction, ...]":
        """Traces the two functions of `evaluate`, see `EvaluationPrograms.trace`."""
        rows = ReplicaRows(self.strategy, batch_size)
        at_once = segments_per_step or self.programs.segments_per_read(rows.rows_per_replica)
        return self.programs.trace(rows, at_once)

    def _read(
        self,
        batches: Iterable[EvaluationBatch],
        order: EvaluationRows,
    ) -> Iterator[tuple[EvaluationBatch, np.ndarray]]:
        """Scores batches and yields each with its nats, fetched while the next are computed."""
        rows = ReplicaRows(self.strategy, order.batch_size)
        step = self.programs.step(rows.rows_per_replica)
        sizes = rows.rows_per_replica, order.segments_per_step
        # Unpacking would also name the memory, and so keep it while the text is read.
        constants = self.programs.begin(*sizes)[1]

        def read(batch: EvaluationBatch, memory: Any) -> tuple[Any, Any]:
            for token_ids in (batch.token_ids, batch.target_ids):
                check_token_ids(token_ids, self.config.vocabulary_size)
            return step(*rows.split(batch.arrays()), memory, constants)

        pieces = read_batches(read, batches, lambda: self.programs.begin(*sizes)[0])
        # A piece has the memory after it, which would be kept with the piece.
        results = ((piece.batch, piece.outputs) for piece in pieces)
        for (batch, nll), _ in itertools.pairwise(itertools.chain(results, [None])):
            yield batch, rows.join(nll)

    def _order(self, num_tokens: int, max_tokens: int | None) -> EvaluationRows:
        """Returns the order in which a text is read."""
        settings, config = self._evaluation_config, self.config
        most_rows, length = settings.batch_size, config.segment_length
        if max_tokens is not None and self._dynamic is None:
            stretches = Stretches.sample(num_tokens, max_tokens, config)
        else:
            num_read = num_tokens if max_tokens is None else max_tokens + 1
            stretches = Stretches.of_text(num_read, most_rows, config, settings.warm_up_tokens)
        rows = ReplicaRows(self.strategy, min(most_rows, len(stretches.begins)))
        at_once = self.programs.segments_per_read(rows.rows_per_replica)
        return EvaluationRows(stretches, rows.num_rows, length, at_once)


def create_evaluator(
    config: EvaluatedModel,
    strategy: "tf.distribute.Strategy | None" = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> Evaluator:
    """Builds the evaluator of a configuration, with `variables` of a run or with weights to load.

    Dynamic evaluation runs without a strategy, so it gets no variables, which may be under one.
    """
    if config.evaluation.dynamic_learning_rate is not None:
        strategy, variables = None, None
    return Evaluator(
        config.model,
        config.resolved_evaluation,
        # None leaves the choice to the execution plan of the device.
        jit_compile=None if config.may_compile else False,
        masks_documents=config.masks_documents,
        strategy=strategy,
        variables=variables,
    )
