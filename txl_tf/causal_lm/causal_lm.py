"""Language model on text: a model with its tokenizer."""

import functools
import os
from collections.abc import Sequence
from typing import Any, Literal, Self

import keras
import numpy as np

from txl_tf import samplers
from txl_tf.causal_lm.layer_reader import LayerReader, text_features
from txl_tf.causal_lm.text_pieces import has_new_stop, text_until, tokens_until
from txl_tf.causal_lm.text_session import TextSession, prompt_tokens
from txl_tf.config.base import shown_value
from txl_tf.config.experiment import EvaluationConfig, OptimizerConfig
from txl_tf.config.generation import GenerationConfig, new_seed, sample_seeds
from txl_tf.data.text_batches import ordered_batches, token_stream
from txl_tf.data.tokenizers.tokenizer import Tokenizer, checked_token_ids, excluded_tokens
from txl_tf.data.tokenizers.word_tokenizer import IdTokenizer
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.scores import score_text
from txl_tf.generation.decoding import TOKENS_PER_CHECK
from txl_tf.generation.session import FEWEST_COMPILED_TOKENS, GenerationSession
from txl_tf.model_folder import (
    StepChoice,
    build_model,
    check_vocabulary_size,
    is_keras_file,
    load_model,
    open_model,
    tokenizer_from,
    write_model_folder,
)
from txl_tf.models import create_model
from txl_tf.models.language_model import language_model_of
from txl_tf.models.presets import PRESETS, preset
from txl_tf.models.sizes import Pooling
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.models.weight_versions import same_variables
from txl_tf.training.optimizers import WarmupSchedule, create_optimizer

# Largest number of sessions, of evaluators and of readers that are kept compiled.
_MAX_COMPILED = 4
Folder = str | os.PathLike[str]


class TransformerXLCausalLM:
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
        evaluation: the given settings, with a batch size of 1.
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
    """The model with the memory of `fit`, kept from one to the next."""
    _trained_variables: Sequence[Any] = ()
    """The weights that its program trains; Keras fixes them, and layers may be frozen later."""

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer | None = None,
        evaluation: EvaluationConfig | None = None,
    ) -> None:
        self.model = model = language_model_of(model)
        check_vocabulary_size(model, tokenizer)
        self.tokenizer = tokenizer
        self.last_seed: int | None = None
        self.folder: str | None = None
        self.step = 0
        evaluation = EvaluationConfig() if evaluation is None else evaluation
        dynamic = [name for name in vars(evaluation) if name.startswith("dynamic_")]
        self.evaluation = evaluation.replace(batch_size=1, **dict.fromkeys(dynamic))
        self.compile()
        self._forget_compiled()

    def _forget_compiled(self) -> None:
        """Drops all programs, which are bound to the variables of the layers."""
        keep_compiled = functools.lru_cache(_MAX_COMPILED)
        self._compiled_for = self.model.weights
        self._evaluator_of = keep_compiled(functools.partial(Evaluator, self.model))
        self._session_of = keep_compiled(functools.partial(GenerationSession, self.model))
        self._reader_of = keep_compiled(functools.partial(LayerReader, self.model))

    def _check_compiled(self) -> None:
        """Drops the programs if layers have other variables, as after `quantize`."""
        if not same_variables(self.model.weights, self._compiled_for):
            self._forget_compiled()
            self._trained = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy or pickle holds: the model, and the optimizer with its state."""
        compiled = ("_compiled_for", "_evaluator_of", "_session_of", "_reader_of")
        dropped = (*compiled, "_trained", "_trained_variables")
        state = {name: value for name, value in vars(self).items() if name not in dropped}
        # Keras copies and pickles an optimizer without its state.
        if not isinstance(self._optimizer, OptimizerConfig):
            values: dict[str, Any] = {}
            if self._optimizer.built:
                self._optimizer.save_own_variables(values)
            state["_optimizer"] = keras.saving.serialize_keras_object(self._optimizer), values
        return {**state, "_counted": None, "_step_before": self.step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _trained=None)
        if not isinstance(self._optimizer, OptimizerConfig):
            config, values = state["_optimizer"]
            self._optimizer = keras.saving.deserialize_keras_object(config)
            if values:
                self._optimizer.build(self.model.trainable_variables)
                self._optimizer.load_own_variables(values)
        self._forget_compiled()

    @property
    def step(self) -> int:
        """Training steps of the weights, 0 if unknown: those before `fit`, and the optimizer's."""
        return self._step_before + (0 if self._counted is None else int(self._counted.iterations))

    @step.setter
    def step(self, step: int) -> None:
        self._counted, self._step_before = None, step

    def _count_steps(self, optimizer: Any) -> None:
        """Counts the steps of an optimizer from here on."""
        if optimizer is not self._counted:
            self._step_before = self.step - int(optimizer.iterations)
            self._counted = optimizer

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
        found = None if tokenizer is None else tokenizer_from(tokenizer)
        name, folder = os.fspath(preset_or_folder), None
        evaluation, num_steps = EvaluationConfig(), 0
        if name in PRESETS and not os.path.exists(name):
            config = preset(name)
            if found is not None:
                config = config.replace(vocabulary_size=found.vocabulary_size)
            model = create_model(config, dtype="float32")
        elif is_keras_file(name):
            saved: Any = load_model(name, step)
            model = getattr(saved, "language_model", saved)
        else:
            source = open_model(name, step)
            folder, evaluation = source.folder, source.experiment.evaluation
            num_steps, weights = source.read_weights()
            model = build_model(source.description.model, weights)
            found = source.tokenizer() if found is None else found
        lm = cls(model, found, _with_lengths(evaluation, memory_length, segment_length))
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
            sampler: `"random"`, `"greedy"`, `"beam"`, or an object of `txl_tf.samplers`.
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
        self._check_compiled()
        length = segment_length or self.model.config.segment_length
        batches, held_out = self._batches(x, batch_size, length), None
        num_rows = _num_rows(batches, batch_size)
        if validation_data is not None:
            held_out = self._batches(validation_data, batch_size, length, takes_fewer_rows=True)
            num_rows = max(num_rows, _num_rows(held_out, batch_size))
        variables = self.model.trainable_variables
        if not same_variables(variables, self._trained_variables):
            self._trained, self._trained_variables = None, variables
        steps_per_epoch = options.get("steps_per_epoch")
        optimizer = self._optimizer
        if isinstance(optimizer, OptimizerConfig):
            config = optimizer
            num_steps = epochs * (steps_per_epoch or len(batches))
            optimizer = create_optimizer(WarmupSchedule(config, num_steps), variables)
            optimizer.global_clipnorm = config.clip_norm  # as the trainer clips
        if self._trained is None or self._trained.batch_size != num_rows:
            self._trained = StatefulTransformerXL(self.model, num_rows)
        trained = self._trained
        if getattr(trained, "optimizer", None) is not optimizer:
            trained.compile(optimizer=optimizer, **self._options)
        self._count_steps(trained.optimizer)

        def begin(epoch: int, logs: Any) -> None:
            if steps_per_epoch is None or epoch == options.get("initial_epoch", 0):
                trained.reset_state()

        follower = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
        callbacks = [follower, *keras.tree.flatten(options.pop("callbacks", None) or [])]
        return trained.fit(
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

    def generate(
        self,
        inputs: Any,
        max_length: int | None = None,
        stop_token_ids: Sequence[int] | Literal["auto"] | None = "auto",
        strip_prompt: bool = False,
        *,
        sampler: Any = None,
        num_samples: int = 1,
        memory_length: int | None = None,
        storage_dtype: Literal["auto", "float32"] = "auto",
        **settings: Any,
    ) -> Any:
        """Continues one or more prompts, which may differ in length.

        The same prompt and seed give the same text beside any other prompts. A large model may
        round weights and memory for a single row, see `storage_dtype`.

        Args:
            inputs: str or vector of token ids, or a list of them.
            max_length: optional int. Most tokens of a row with its prompt, as in KerasHub.
            stop_token_ids: optional ints. A row ends before the first of them. `"auto"` is the
                tokenizer's token for the end of a sentence or document, if any; `None` is no token.
            strip_prompt: bool. If `True`, the result excludes the prompt.
            sampler: optional name or object, as in `compile`. It excludes `temperature`, `top_k`,
                `top_p` and `min_p`. Defaults to `None`: the sampler of `compile`.
            num_samples: int. Texts for each prompt. Every text has its own seed; the first has
                `seed`.
            memory_length: optional int. Tokens to remember. Defaults to `None`: the model's.
            storage_dtype: str, see `txl_tf.GenerationSession`.
            **settings: fields of `GenerationConfig`: `max_tokens` (without the prompt; excludes
                `max_length`), `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`,
                `frequency_penalty`, `presence_penalty`, `logit_bias`, `seed`, `stop` and
                `allow_unknown`.

        Returns:
            str for a str, int32 vector for token ids. A list of them if `inputs` is a list or
            `num_samples` is more than 1.

        Raises:
            ValueError: If a prompt has another type, there is nothing to generate, a setting or a
                token id is out of its range, the sampler is unknown, or a text has no tokenizer.
            UsageError: If the tokenizer cannot encode a text, or the text has no token.
        """
        if num_samples < 1:
            raise ValueError(f"`num_samples` must be positive. Received: {num_samples}")
        asked = GenerationConfig.from_dict(settings)
        befores = checked_texts(inputs, "inputs")
        tokenizer = self._required_tokenizer("generate", befores)
        prompts = [prompt_tokens(tokenizer, text) for text in befores]
        self.last_seed = new_seed() if asked.seed is None else asked.seed
        seeds = sample_seeds(self.last_seed, num_samples) * len(prompts)
        befores = [text for text in befores for _ in range(num_samples)]
        prompts = [ids for ids in prompts for _ in range(num_samples)]
        if max_length is not None and "max_tokens" in settings:
            raise ValueError(
                "`max_length` counts the prompt and `max_tokens` does not; give one of them. "
                f"Received: max_length={max_length}, max_tokens={asked.max_tokens}"
            )
        limits = [asked.max_tokens] * len(prompts)
        if max_length is not None:
            limits = [max(0, max_length - len(ids)) for ids in prompts]
        if not any(limits):
            raise ValueError(
                "`max_length` must be larger than the shortest prompt. "
                f"Received: max_length={max_length}, shortest={min(map(len, prompts))}"
            )
        if asked.stop:
            self._required_tokenizer("stop")
        ends = self._stop_token_ids(stop_token_ids)
        session = self._session(
            samplers.choose(sampler, settings, self._sampler),
            seeds,
            asked,
            stop_token_ids=ends,
            memory_length=memory_length,
            jit_compile=None if max(limits) >= FEWEST_COMPILED_TOKENS else False,
            storage_dtype=storage_dtype,
        )

        def is_over(rows: np.ndarray) -> np.ndarray:
            width = len(rows) // len(prompts)  # of beams
            pairs = ((prompts[r // width], row[row >= 0]) for r, row in enumerate(rows))
            parts = TOKENS_PER_CHECK, asked.stop
            return np.array([has_new_stop(tokenizer, *pair, *parts) for pair in pairs])

        check = is_over if asked.stop else None
        written = session.write(prompts, max_tokens=max(limits), is_over=check)
        texts: list[str | np.ndarray] = []
        for before, ids, row, limit in zip(befores, prompts, written, limits, strict=True):
            row = _until(row[:limit], ends)
            if isinstance(before, str):
                text = text_until(tokenizer, ids, row, asked.stop)
                texts.append(text if strip_prompt else before + text)
            else:
                row = tokens_until(tokenizer, ids, row, asked.stop)
                texts.append(row if strip_prompt else np.concatenate([ids, row]))
        return texts[0] if is_one_text(inputs) and num_samples == 1 else texts

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
            `TextScore` with the nats of every token. A list of them for a list.

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
        self._check_compiled()
        return self._evaluator_of(_with_lengths(self.evaluation, memory_length, segment_length))

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
        found = checked_texts(texts, "texts")
        tokenizer = self._required_tokenizer("embed", found)
        encoded = [tokenizer.encode(each) if isinstance(each, str) else each for each in found]
        rows = [checked_token_ids(ids, tokenizer.vocabulary_size) for ids in encoded]
        self._check_compiled()
        features = text_features(self._reader_of(min(batch_size, len(rows)), layer), rows, pooling)
        if is_one_text(texts):
            return features[0]
        return np.stack(features) if features[0].ndim == 1 else features

    def session(
        self,
        *,
        stop_token_ids: Sequence[int] | Literal["auto"] | None = "auto",
        sampler: Any = None,
        memory_length: int | None = None,
        storage_dtype: Literal["auto", "float32"] = "auto",
        **settings: Any,
    ) -> TextSession:
        """Begins a text that many calls continue, with its memory.

        It takes the arguments of `generate`. `sampler` must not be a `BeamSampler`.
        `max_tokens` is the default for each call.

        Raises:
            ValueError: If a value is out of its range, or the model has no tokenizer.
            TypeError: If `sampler` is not a sampler.
        """
        tokenizer = self._required_tokenizer("session")
        asked = GenerationConfig.from_dict(settings)
        chosen = samplers.choose(sampler, settings, self._sampler)
        if isinstance(chosen, samplers.BeamSampler):
            raise ValueError(
                "`sampler` must not be a beam search in a session: its tokens are certain only at "
                f"the end. Received: sampler={chosen}"
            )
        seeds = [new_seed() if asked.seed is None else asked.seed]
        lengths = {"memory_length": memory_length, "storage_dtype": storage_dtype}
        session = self._session(chosen, seeds, asked, **lengths)
        return TextSession(session, tokenizer, asked, self._stop_token_ids(stop_token_ids))

    def _stop_token_ids(self, chosen: Sequence[int] | str | None) -> tuple[int, ...]:
        if chosen == "auto":
            end = None if self.tokenizer is None else self.tokenizer.end_token_id
            chosen = () if end is None else (end,)
        if isinstance(chosen, str):
            raise ValueError(f'`stop_token_ids` must be ints, "auto" or None. Received: {chosen!r}')
        return tuple(int(each) for each in chosen or ())

    def _session(
        self, sampler: Any, seeds: list[int], settings: GenerationConfig, **options: Any
    ) -> GenerationSession:
        """Returns a session with empty rows; it reuses what an earlier call compiled."""
        self._check_compiled()
        if type(sampler) is samplers.RandomSampler:
            # Its settings are inputs: one compiled session serves all of them.
            settings = settings.replace(
                **{name: getattr(sampler, name) for name in samplers.SETTINGS}
            )
            sampler = None
        session = self._session_of(
            sampler,
            num_rows=len(seeds),
            excluded_token_ids=excluded_tokens(self.tokenizer, settings.allow_unknown),
            **options,
        )
        return session.sibling(seeds, settings)

    def _required_tokenizer(self, purpose: str, texts: Sequence[Any] = ("",)) -> Tokenizer:
        if self.tokenizer is None and not any(isinstance(each, str) for each in texts):
            return IdTokenizer(self.model.config.vocabulary_size)
        if self.tokenizer is None:
            raise ValueError(
                f"`{purpose}` needs a tokenizer: give `tokenizer=` the folder of the prepared "
                "data set of the model. Received: tokenizer=None"
            )
        return self.tokenizer


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


def _until(row: np.ndarray, stop_token_ids: tuple[int, ...]) -> np.ndarray:
    """Returns the tokens of a row before -1 or a stop token."""
    is_end = (row < 0) | np.isin(row, np.array(stop_token_ids, np.int32))
    return row[: int(np.argmax(is_end))] if is_end.any() else row


def is_one_text(value: Any) -> bool:
    """True for a text, or its token ids in a vector or list."""
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        return isinstance(value, str)
    return len(value) > 0 and all(isinstance(each, int | np.integer) for each in value)


def checked_texts(texts: Any, argument: str) -> list[str | np.ndarray]:
    """Returns texts or vectors of token ids, one or several, as a list; ValueError for others."""
    found = [texts] if is_one_text(texts) else texts
    is_list = isinstance(found, Sequence | np.ndarray) and len(found) > 0
    if not is_list or not all(map(is_one_text, found)):
        raise ValueError(
            f"`{argument}` must be a str, a vector of token ids, or a list of these that is not "
            f"empty. Received: {argument}={shown_value(texts)}"
        )
    return [each if isinstance(each, str) else np.asarray(each) for each in found]


def load(folder: Folder, step: StepChoice = None, **options: Any) -> TransformerXLCausalLM:
    """Loads the model and tokenizer of a folder, as `TransformerXLCausalLM.from_preset` does."""
    return TransformerXLCausalLM.from_preset(folder, step, **options)
