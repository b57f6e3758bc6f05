"""Language model on text: a model with its tokenizer, which trains, writes, scores and embeds.

Shape letters used in this module: R texts, S tokens of a text, V vocabulary, D hidden width.
"""

import os
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from txl_tf import samplers
from txl_tf.causal_lm.layer_reader import LayerReader, Pooling, text_features
from txl_tf.causal_lm.text_generator import TextGenerator, checked_texts, is_one_text
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.data.text_batches import ordered_batches, token_stream
from txl_tf.data.tokenizers.tokenizer import Tokenizer, checked_token_ids
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.scores import score_text
from txl_tf.model_folder import (
    StepChoice,
    build_model,
    is_keras_file,
    load_model,
    open_model,
    tokenizer_from,
    write_model_folder,
)
from txl_tf.models import create_model
from txl_tf.models.computed_from_weights import same_variables
from txl_tf.models.presets import PRESETS, preset
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.optimizers import WarmupSchedule, create_optimizer

Folder = str | os.PathLike[str]


class TransformerXLCausalLM(TextGenerator):
    """Language model that takes and returns text.

    It has the methods of KerasHub's `CausalLM`: `from_preset`, `save_to_preset`, `compile`, `fit`
    and `generate`. `session` continues a text over many calls with its memory. `score` and `embed`
    read texts of any length segment by segment.

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        tokenizer: optional `Tokenizer` of the model. Without one, all texts are token ids.
        evaluation: optional `EvaluationConfig` for `score`, without dynamic evaluation. Defaults
            to `None`: the model's own lengths, in float32.

    Attributes:
        model: the model, without variables for memory.
        tokenizer: the given tokenizer.
        last_seed: optional int. Seed of the last call of `generate`.
        evaluation: the given settings, with a batch size of 1 and without dynamic evaluation.
        step: int. Training steps of the weights by the optimizer's count, 0 if unknown.
        folder: optional str. Folder that the model was loaded from.

    Raises:
        ValueError: If tokenizer and model have different vocabulary sizes.

    Example:
    ```python
    lm = txl_tf.load("runs/mine")
    print(lm.generate("Once upon a time", max_tokens=100))
    print(lm.score("Once upon a time there was a king.").perplexity)
    ```
    """

    _optimizer: Any
    """A Keras optimizer, or an `OptimizerConfig`."""
    _trained: StatefulTransformerXL | None
    """The model with the memory of `fit`, which the next `fit` uses again."""
    _trained_for: Sequence[Any] = ()
    """Variables that the program of `_trained` is bound to. Other layers may be frozen later."""

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer | None = None,
        evaluation: EvaluationConfig | None = None,
    ) -> None:
        super().__init__(model, tokenizer)
        self.folder: str | None = None
        self.step = 0
        evaluation = EvaluationConfig() if evaluation is None else evaluation
        dynamic = [name for name in vars(evaluation) if name.startswith("dynamic_")]
        self.evaluation = evaluation.replace(batch_size=1, **dict.fromkeys(dynamic))
        self.compile()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of a copy or pickle, with a new optimizer of the same settings."""
        state = {**super().__getstate__(), "_trained": None, "_trained_for": ()}
        if not isinstance(self._optimizer, OptimizerConfig):
            # Keras 3.15 cannot copy an optimizer that was built.
            settings = keras.saving.serialize_keras_object(self._optimizer)
            state["_optimizer"] = keras.saving.deserialize_keras_object(settings)
        return {**state, "_counted": None, "_step_before": self.step}

    @property
    def step(self) -> int:
        """Training steps of the weights: the steps before `fit`, and its optimizer's steps."""
        return self._step_before + (0 if self._counted is None else int(self._counted.iterations))

    @step.setter
    def step(self, step: int) -> None:
        self._counted, self._step_before = None, step

    @classmethod
    def from_preset(
        cls,
        preset_or_folder: Folder,
        step: StepChoice = None,
        *,
        tokenizer: Tokenizer | Folder | None = None,
        memory_length: int | None = None,
        segment_length: int | None = None,
    ) -> Self:
        """Loads a model folder without the head of a task, or builds a model with new weights.

        Args:
            preset_or_folder: path of a run, a checkpoint, an export, or a folder that `txl convert`
                or `save_to_preset` wrote; it may be remote (`gs://`). Or path of a `.keras` file,
                which has no tokenizer. Or a preset of `txl_tf.preset`, such as `"quickstart"`,
                for new weights; the tokenizer then determines the vocabulary size.
            step: as in `txl_tf.load_model`. The weights are the average if the run has one.
            tokenizer: optional `Tokenizer`, or path of a prepared data set. Defaults to `None`: the
                tokenizer in the folder, if there is one.
            memory_length: optional int. Tokens that `score` remembers. Defaults to `None`: the
                length of the run's evaluations, or without a run the model's own.
            segment_length: optional int. Tokens that `score` reads at once, by default likewise.

        Returns:
            The language model, with weights in float32.

        Raises:
            JobError: As in `txl_tf.load_model`.
            ValueError: If tokenizer and model have different vocabulary sizes.
        """
        text_tokenizer = None if tokenizer is None else tokenizer_from(tokenizer)
        name, folder = os.fspath(preset_or_folder), None
        evaluation, num_steps = EvaluationConfig(), 0
        if name in PRESETS and not os.path.exists(name):
            config = preset(name)
            if text_tokenizer is not None:
                config = config.replace(vocabulary_size=text_tokenizer.vocabulary_size)
            model = create_model(config, dtype="float32")
        elif is_keras_file(name):
            keras_model: Any = load_model(name, step)
            model = getattr(keras_model, "language_model", keras_model)
        else:
            source = open_model(name, step)
            folder, evaluation = source.folder, source.description.evaluation
            num_steps, weights = source.read_weights()
            model = build_model(source.description.model, weights)
            text_tokenizer = source.tokenizer() if text_tokenizer is None else text_tokenizer
        lm = cls(model, text_tokenizer, _with_lengths(evaluation, memory_length, segment_length))
        lm.folder, lm.step = folder, num_steps
        return lm

    def __repr__(self) -> str:
        folder = "" if self.folder is None else f", folder={self.folder!r}"
        return (
            f"{type(self).__name__}({self.model!r}, tokenizer={self.tokenizer!r}, "
            f"step={self.step}{folder})"
        )

    def save_to_preset(self, folder: Folder) -> None:
        """Writes model and tokenizer as a new folder, which `from_preset` reads.

        Raises:
            OutputExistsError: If the folder exists.
            StorageError: If the folder cannot be written.
            ValueError: If the model is not a `TransformerXL`.
        """
        write_model_folder(self.model, folder, self.tokenizer)

    def compile(self, optimizer: Any = None, *, sampler: Any = "random", **options: Any) -> None:
        """Sets how `fit` trains, and the default sampler of `generate` and `session`.

        Args:
            optimizer: optional Keras optimizer or its name; its state continues from one `fit` to
                the next. Or an `OptimizerConfig`; every `fit` is then a separate run, as with
                `txl train`. Defaults to `None`: Adam with the learning rate and the clipping of
                `OptimizerConfig`.
            sampler: `"random"`, `"greedy"`, `"beam"`, an object of `txl_tf.samplers`, or a
                function of logits `(R, V)` and seeds `(R, 2)` that returns token ids `(R,)`.
            **options: other arguments of `keras.Model.compile`, such as `metrics`. The default
                `loss` is the cross entropy.

        Raises:
            ValueError: If the name of the sampler or optimizer is unknown.
            TypeError: If the sampler is neither a name nor a sampler.
        """
        if optimizer is None:
            defaults = OptimizerConfig()
            optimizer = keras.optimizers.Adam(
                defaults.learning_rate, epsilon=defaults.epsilon, global_clipnorm=defaults.clip_norm
            )
        if not isinstance(optimizer, OptimizerConfig):
            optimizer = keras.optimizers.get(optimizer)
        self._sampler, self._optimizer = samplers.get(sampler), optimizer
        self._options = options
        self._trained = None

    def fit(
        self,
        x: Any,
        *,
        batch_size: int = 32,
        segment_length: int | None = None,
        epochs: int = 1,
        validation_data: Any = None,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains the model in place with Keras' training loop.

        Memory continues from segment to segment. Every epoch begins with an empty memory; with
        `steps_per_epoch`, where an epoch ends within the text, only the first one does.

        Args:
            x: texts or token ids, as in `txl_tf.data.ordered_batches`. Or batches `(x, y)` as
                returned by it, in a `tf.data.Dataset` or `keras.utils.PyDataset`.
            batch_size: int. Rows that are read in parallel; batches have their own size.
            segment_length: optional int. Tokens of a row in each step; batches have their own
                length. Defaults to `None`: the model's.
            epochs: int. Number of times that the text is read.
            validation_data: optional texts or batches, as `x`. A short text uses fewer rows.
            **options: other arguments of `keras.Model.fit`, such as `callbacks`.

        Returns:
            Keras' `History`. Losses are in nats per token.

        Raises:
            TypeError: As in `ordered_batches`.
            ValueError: As in `ordered_batches`, or if the model is not a `TransformerXL`.
        """
        if not isinstance(self.model, TransformerXL):
            raise ValueError(
                "`fit` needs a `TransformerXL`; train a recurrent model with `txl train`. "
                f"Received: model of type {type(self.model).__name__}"
            )
        # 1. Batches, and as many rows of memory as the largest has.
        length = segment_length or self.model.config.segment_length
        batches, held_out = self._batches(x, batch_size, length), None
        num_rows = _num_rows(batches, batch_size)
        if validation_data is not None:
            held_out = self._batches(validation_data, batch_size, length, takes_fewer_rows=True)
            num_rows = max(num_rows, _num_rows(held_out, batch_size))
        # 2. The model with memory, which is kept from the previous `fit` unless variables or sizes
        #    have changed. A Keras optimizer is kept too; one of an `OptimizerConfig` is new.
        variables = self.model.trainable_variables
        trained_for = [*self.model.weights, *variables]
        if not same_variables(trained_for, self._trained_for):
            self._trained, self._trained_for = None, trained_for
        steps_per_epoch = options.get("steps_per_epoch")
        optimizer = self._optimizer
        if isinstance(optimizer, OptimizerConfig):
            config = optimizer
            num_steps = epochs * (steps_per_epoch or len(batches))
            optimizer = create_optimizer(WarmupSchedule(config, num_steps), variables)
            optimizer.global_clipnorm = config.clip_norm  # as the trainer clips
        if self._trained is None or self._trained.batch_size != num_rows:
            self._trained = StatefulTransformerXL(self.model, num_rows)
        model_with_loss = self._trained
        if getattr(model_with_loss, "optimizer", None) is not optimizer:
            model_with_loss.compile(optimizer=optimizer, **self._options)
        if model_with_loss.optimizer is not self._counted:
            self._step_before = self.step - int(model_with_loss.optimizer.iterations)
            self._counted = model_with_loss.optimizer

        # 3. Keras' training loop. Memory is cleared where the text begins.
        def begin(epoch: int, logs: Any) -> None:
            if steps_per_epoch is None or epoch == options.get("initial_epoch", 0):
                model_with_loss.reset_state()

        follower = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
        callbacks = [follower, *keras.tree.flatten(options.pop("callbacks", None) or [])]
        return model_with_loss.fit(
            batches, validation_data=held_out, callbacks=callbacks, epochs=epochs, **options
        )

    def _batches(
        self, data: Any, batch_size: int, segment_length: int, takes_fewer_rows: bool = False
    ) -> Any:
        if isinstance(_spec_of(data), tuple):
            return data
        ids = token_stream(data, self.tokenizer, self.model.config.vocabulary_size)
        if takes_fewer_rows:
            batch_size = max(1, min(batch_size, (len(ids) - 1) // segment_length))
        return ordered_batches(ids, None, batch_size, segment_length)

    def score(
        self, text: Any, *, memory_length: int | None = None, segment_length: int | None = None
    ) -> Any:
        """Scores texts of any length, read segment by segment with memory.

        `txl evaluate --text` has the same results. `evaluation` decides lengths and precision.

        Args:
            text: str or vector of token ids, with at least two tokens; or a list of such texts.
            memory_length: optional int. Tokens to remember. Defaults to the number in `evaluation`.
            segment_length: optional int. Tokens to read at once, likewise.

        Returns:
            `TextScore` with the nats of every token but the first. A list of them for a list.

        Raises:
            ValueError: If `text` has another type, less than two tokens or no tokenizer, or a
                length is out of range.
            InvalidTextError: If the tokenizer cannot encode the text.
        """
        texts = checked_texts(text, "text")
        tokenizer = self._required_tokenizer("score", texts)
        evaluator = self.evaluator(memory_length, segment_length)
        scores = [score_text(evaluator, tokenizer, each, step=self.step) for each in texts]
        return scores[0] if is_one_text(text) else scores

    def evaluator(
        self, memory_length: int | None = None, segment_length: int | None = None
    ) -> Evaluator:
        """Returns the evaluator of `score`, which takes the same lengths."""
        lengths = _with_lengths(self.evaluation, memory_length, segment_length)
        return self._cached_object(Evaluator, lengths)

    def embed(
        self,
        texts: Any,
        layer: int | None = None,
        pooling: Pooling = "mean",
        *,
        batch_size: int = 8,
    ) -> Any:
        """Returns features of texts of any length, read segment by segment with memory.

        Args:
            texts: str or vector of token ids, with at least one token; or a list of such texts.
            layer: optional int. 0 is the embedding layer, `L`, -1 or `None` the last block.
            pooling: str. `"tokens"` returns every token, `"segments"` the mean of every
                segment, `"last"` the last token, `"mean"` the mean of all tokens.
            batch_size: int. Texts that are read in parallel. The features do not depend on it.

        Returns:
            float32 vector `(D,)`, or array `(S, D)` with `"tokens"` and `"segments"`. For a list
            of `R` texts, an array `(R, D)` or a list of arrays.

        Raises:
            ValueError: If a text has another type, no token or no tokenizer, or the layer or
                pooling is unknown.
            InvalidTextError: If the tokenizer cannot encode a text.
        """
        values = checked_texts(texts, "texts")
        tokenizer = self._required_tokenizer("embed", values)
        sequences = [tokenizer.encode(each) if isinstance(each, str) else each for each in values]
        rows = [checked_token_ids(ids, tokenizer.vocabulary_size) for ids in sequences]
        reader = self._cached_object(LayerReader, min(batch_size, len(rows)), layer)
        features = text_features(reader, rows, pooling)
        if is_one_text(texts):
            return features[0]
        return np.stack(features) if features[0].ndim == 1 else features


def _with_lengths(
    evaluation: EvaluationConfig, memory_length: int | None, segment_length: int | None
) -> EvaluationConfig:
    lengths = {"memory_length": memory_length, "segment_length": segment_length}
    return evaluation.replace(**{name: each for name, each in lengths.items() if each is not None})


def _spec_of(data: Any) -> Any:
    """Returns a batch, or its specification, of a data set of batches; `None` for other data."""
    is_sequence = isinstance(data, keras.utils.PyDataset)
    return data[0] if is_sequence else getattr(data, "element_spec", None)


def _num_rows(batches: Any, batch_size: int) -> int:
    return keras.tree.flatten(_spec_of(batches))[0].shape[0] or batch_size


def load(folder: Folder, step: StepChoice = None, **options: Any) -> TransformerXLCausalLM:
    """Loads the model and tokenizer of a folder, as `TransformerXLCausalLM.from_preset` does."""
    return TransformerXLCausalLM.from_preset(folder, step, **options)
