"""Language model on text: a model with its tokenizer."""

import functools
import os
from collections.abc import Sequence
from typing import Any, Literal, Self

import keras
import numpy as np

from txl_tf import samplers
from txl_tf.causal_lm.layer_reader import LayerReader, text_features
from txl_tf.causal_lm.text import (
    Pooling,
    TextSession,
    checked_texts,
    is_one_text,
    prompt_tokens,
    score_text,
    text_until,
)
from txl_tf.config.experiment import EvaluationConfig, OptimizerConfig
from txl_tf.config.generation import GenerationConfig, new_seed, sample_seeds
from txl_tf.data.text_batches import ordered_batches, token_stream
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.tokenizer import (
    Tokenizer,
    checked_token_ids,
    excluded_tokens,
    stop_tokens,
)
from txl_tf.evaluation.evaluator import Evaluator
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
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.optimizers import create_optimizer, set_layer_rates

# Most sessions, evaluators and readers that stay compiled.
_MAX_COMPILED = 4
Folder = str | os.PathLike[str]


class TransformerXLCausalLM:
    """Language model that takes and returns text.

    It follows KerasHub's `CausalLM`: `from_preset`, `save_to_preset`, `compile` with optimizer
    and sampler, `fit` and `generate`. Memory adds two methods: `session`, which continues a text
    over many calls, and `score`, which reads texts of any length segment by segment.

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        tokenizer: optional `Tokenizer` of the model. Without one texts are token ids.
        evaluation: optional `EvaluationConfig`: how `score` reads, without dynamic evaluation.
            Defaults to `None`: with the model's own lengths, in float32.

    Attributes:
        model: the model, without variables for memory.
        tokenizer: as given.
        last_seed: optional int. Seed of the newest call of `generate`.
        evaluation: as given, for one row.
        step: int. Training steps of the weights, 0 if unknown.
        folder: optional str. Where the model was loaded from.

    Raises:
        ValueError: If the tokenizer has another vocabulary than the model.

    Example:
    ```python
    lm = txl_tf.load("runs/mine")
    print(lm.generate("Once upon a time", max_tokens=100))
    print(lm.score("Once upon a time there was a king.").perplexity)
    ```
    """

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
        self.step = 0
        self.folder: str | None = None
        evaluation = EvaluationConfig() if evaluation is None else evaluation
        dynamic = [name for name in vars(evaluation) if name.startswith("dynamic_")]
        self.evaluation = evaluation.replace(batch_size=1, **dict.fromkeys(dynamic))
        keep_compiled = functools.lru_cache(_MAX_COMPILED)
        variables = {variable.path: variable for variable in model.weights}
        self._evaluator_of = keep_compiled(
            functools.partial(Evaluator, model.config, variables=variables)
        )
        self._session_of = keep_compiled(functools.partial(GenerationSession, model))
        self._reader_of = keep_compiled(functools.partial(LayerReader, model))
        self.compile()

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
        """Loads a model folder, or builds a model of a named size with new weights.

        From a `TransformerXLWithHead` or a fine-tuned run it loads the
        model without the head.

        Args:
            preset_or_folder: path of a run, of a checkpoint, of a folder that `txl convert` or
                `save_to_preset` wrote, or of an export, also a remote one (`gs://`); or of a
                `.keras` file, which has no tokenizer; or a name that `txl_tf.preset` knows, such
                as `"quickstart"`, for new weights. The tokenizer then sets the vocabulary size.
            step: as for `txl_tf.load_model`. If the run averages its weights, the average is
                loaded.
            tokenizer: optional `Tokenizer`, or path of a prepared data set. Defaults to `None`:
                the one in the folder, if there is one.
            memory_length: optional int. Tokens that `score` remembers. Defaults to `None`: as in
                the run's evaluations, or the model's own without a run.
            segment_length: optional int. Tokens that `score` reads at once, likewise.

        Returns:
            The language model, with weights in float32.

        Raises:
            JobError: As `txl_tf.load_model` does.
            ValueError: If the tokenizer has another vocabulary than the model.
        """
        found = None if tokenizer is None else tokenizer_from(tokenizer)
        name = os.fspath(preset_or_folder)
        source, evaluation, num_steps = None, EvaluationConfig(), 0
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
            evaluation = source.experiment.evaluation
            num_steps, weights = source.read_weights()
            model = build_model(source.description.model, weights)
            found = source.tokenizer() if found is None else found
        lm = cls(model, found, _with_lengths(evaluation, memory_length, segment_length))
        lm.folder = None if source is None else source.folder
        lm.step = num_steps
        return lm

    def __repr__(self) -> str:
        folder = "" if self.folder is None else f", folder={self.folder!r}"
        return (
            f"{type(self).__name__}({self.model!r}, tokenizer={self.tokenizer!r}, "
            f"step={self.step}{folder})"
        )

    def save_to_preset(self, folder: Folder) -> None:
        """Writes model and tokenizer as a folder that `from_preset` reads.

        Args:
            folder: path of the new folder.

        Raises:
            OutputExistsError: If it exists.
            StorageError: If it cannot be written.
            ValueError: If the model is not a `TransformerXL`.
        """
        write_model_folder(self.model, folder, self.tokenizer)

    def compile(self, optimizer: Any = None, *, sampler: Any = "random", **options: Any) -> None:
        """Sets how `fit` trains, and the default sampler of `generate` and `session`.

        Args:
            optimizer: optional Keras optimizer or its name, which continues from one `fit` to the
                next; or an `OptimizerConfig`, with which every `fit` is a separate run, as with
                `txl train`. Defaults to `None`: Adam with the default learning rate and clipping
                of `OptimizerConfig`.
            sampler: name of a sampler, `"random"`, `"greedy"` or `"beam"`; or an object
                of `txl_tf.samplers`. Defaults to `"random"`.
            **options: other arguments of `keras.Model.compile`, such as `metrics`. The
                loss is the cross entropy, unless `loss` is given.

        Raises:
            ValueError: If the name of the sampler or optimizer is unknown.
            TypeError: If the sampler is neither a name nor a sampler.
        """
        if optimizer is None:
            defaults = OptimizerConfig()
            optimizer = keras.optimizers.Adam(
                defaults.learning_rate, epsilon=defaults.epsilon, global_clipnorm=defaults.clip_norm
            )
        is_settings = isinstance(optimizer, OptimizerConfig)
        self._sampler = samplers.get(sampler)
        self._optimizer = optimizer if is_settings else keras.optimizers.get(optimizer)
        self._options = options
        self._trained: StatefulTransformerXL | None = None

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
        """Trains the model in place, by Keras' loop, with memory from segment to segment.

        Rows begin every epoch with an empty memory.

        Args:
            x: texts or token ids, as for `txl_tf.data.ordered_batches`; or its result, a
                `tf.data.Dataset` or `keras.utils.PyDataset` of `(x, y)`.
            batch_size: int. Rows that are read side by side. Defaults to `32`. A data set
                of batches has its own.
            segment_length: optional int. Tokens of a row in each step. Defaults to
                `None`: the model's. A data set of batches has its own.
            epochs: int. Times that the text is read. Defaults to `1`.
            validation_data: optional texts or data set, as `x`. A short text is read in fewer
                rows.
            **options: other arguments of `keras.Model.fit`, such as `callbacks`.

        Returns:
            Keras' `History`, whose losses are nats per token.

        Raises:
            TypeError: As `ordered_batches`.
            ValueError: As `ordered_batches`, or if the model is not a `TransformerXL`.
        """
        if not isinstance(self.model, TransformerXL):
            raise ValueError(
                "`fit` trains a `TransformerXL`; `txl train` trains recurrent models too. "
                f"Received: model of type {type(self.model).__name__}"
            )
        length = segment_length or self.model.config.segment_length
        batches, held_out = self._batches(x, batch_size, length), None
        num_rows = _num_rows(batches, batch_size)
        if validation_data is not None:
            held_out = self._batches(validation_data, batch_size, length, takes_fewer_rows=True)
            num_rows = max(num_rows, _num_rows(held_out, batch_size))
        steps_per_epoch = options.get("steps_per_epoch")
        optimizer = self._optimizer
        if isinstance(optimizer, OptimizerConfig):
            num_steps = epochs * (steps_per_epoch or len(batches))
            optimizer = self._create_optimizer(optimizer, num_steps)
        if self._trained is None or self._trained.batch_size != num_rows:
            self._trained = StatefulTransformerXL(self.model, num_rows)
        trained = self._trained
        if getattr(trained, "optimizer", None) is not optimizer:
            trained.compile(optimizer=optimizer, **self._options)

        step_before = self.step

        def begin(epoch: int, logs: Any) -> None:
            nonlocal step_before
            step_before = self.step
            if steps_per_epoch is None or epoch == options.get("initial_epoch", 0):
                trained.reset_state()

        def count(batch: int, logs: Any) -> None:
            self.step = step_before + batch + 1
            # They hold values that were computed from the weights before.
            for cached in (self._session_of, self._evaluator_of, self._reader_of):
                cached.cache_clear()

        follower = keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=count)
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

    def _create_optimizer(
        self, config: OptimizerConfig, num_steps: int
    ) -> keras.optimizers.Optimizer:
        """Creates the optimizer of a run, which clips as the trainer does."""
        variables = self.model.trainable_variables
        optimizer = create_optimizer(config, num_steps, variables)
        optimizer.global_clipnorm = config.clip_norm
        if config.layer_rate_decay is not None:
            set_layer_rates(optimizer, self.model, variables, config.layer_rate_decay)
        return optimizer

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
        """Continues one prompt or several, which may differ in length.

        The same seed writes the same text after a prompt, for any other prompts in the call. A
        call for one row of a large model may round, see `storage_dtype`.

        Args:
            inputs: str or vector of token ids, or a list of them.
            max_length: optional int. The most tokens of a row, its prompt included,
                as in KerasHub.
            stop_token_ids: optional ints. A row ends before the first of them. Defaults to
                `"auto"`: the end of a sentence or document, if the tokenizer marks it. `None`
                means no stop tokens.
            strip_prompt: bool. If `True`, the result excludes the prompt. Defaults to `False`.
            sampler: optional name or object, as for `compile`, instead of `temperature`, `top_k`,
                `top_p` and `min_p`. Defaults to `None`.
            num_samples: int. Texts for each prompt, in a list; each draws with its own seed, the
                first with `seed`. Defaults to `1`.
            memory_length: optional int. Tokens to remember, if not the model's.
            storage_dtype: str, see `txl_tf.GenerationSession`. Defaults to `"auto"`.
            **settings: fields of `GenerationConfig`: `max_tokens` after the prompt, unless
                `max_length` is given, `temperature`, `top_k`, `top_p`, `min_p`,
                `repetition_penalty`, `seed`, `stop` (for token ids, of one token each) and
                `allow_unknown`.

        Returns:
            str, or int32 vector for token ids; a list for a list or for several samples.

        Raises:
            TypeError: If a prompt is of another type.
            ValueError: If there is nothing to generate, a setting is out of its range, the
                sampler is unknown, or there is no tokenizer, see `txl_tf.generate`.
            UsageError: If the tokenizer cannot encode a prompt, or a prompt has no token.
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
        ends = self._stop_token_ids(stop_token_ids)
        stop_ids = (*ends, *stop_tokens(tokenizer, asked.stop))
        session = self._session(
            samplers.choose(sampler, settings, self._sampler),
            seeds,
            stop_ids,
            asked,
            memory_length,
            storage_dtype,
            is_compiled=max(limits) >= FEWEST_COMPILED_TOKENS,
        )
        written = session.write(prompts, max_tokens=max(limits))
        texts: list[str | np.ndarray] = []
        for before, ids, row, limit in zip(befores, prompts, written, limits, strict=True):
            if isinstance(before, str):
                text = text_until(tokenizer, ids, _until(row[:limit], ends), asked.stop)
                texts.append(text if strip_prompt else before + text)
            else:
                row = _until(row[:limit], stop_ids)
                texts.append(row if strip_prompt else np.concatenate([ids, row]))
        return texts[0] if is_one_text(inputs) and num_samples == 1 else texts

    def score(
        self,
        text: Any,
        *,
        memory_length: int | None = None,
        segment_length: int | None = None,
    ) -> Any:
        """Scores texts of any length, read segment by segment with memory.

        The figures equal those from `txl evaluate --text`: lengths and precision are as in the
        run's evaluations, see `evaluation`.

        Args:
            text: str of at least two tokens or vector of their ids, or a list of such texts.
            memory_length: optional int. Tokens to remember instead.
            segment_length: optional int. Tokens to read at once instead.

        Returns:
            `TextScore` with the nats of every token and the lengths that were used, or a list
            of them.

        Raises:
            TypeError: If `text` is neither.
            ValueError: If there are fewer than two tokens, there is no tokenizer, or a length is
                out of range.
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
        """Returns the evaluator of `score`, which reads the weights of the model.

        Args:
            memory_length: optional int. As for `score`.
            segment_length: optional int. As for `score`.
        """
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
            texts: str of at least one token or vector of ids, or a list of such texts.
            layer: optional int. 0 is the embedding layer, `L` the last block; negative
                ones count from the last, -1. Defaults to `None`: the last.
            pooling: str. `"tokens"` keeps every token, `"segments"` takes the mean of
                every segment, `"last"` the last token, `"mean"` the mean of all.
                Defaults to `"mean"`.
            batch_size: int. Texts that are read side by side; the features do not depend on it.
                Defaults to `8`.

        Returns:
            float32 vector `(D,)`; with `"tokens"` and `"segments"` an array `(S, D)`.
            For a list an array `(R, D)`, or a list of arrays.

        Raises:
            TypeError: If `texts` is neither.
            ValueError: If a text has no token, the layer or pooling is unknown, or there is no
                tokenizer.
            InvalidTextError: If the tokenizer cannot encode a text.
        """
        found = checked_texts(texts, "texts")
        tokenizer = self._required_tokenizer("embed", found)
        encoded = [tokenizer.encode(each) if isinstance(each, str) else each for each in found]
        rows = [checked_token_ids(ids, tokenizer.vocabulary_size) for ids in encoded]
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
        """Begins a text that is continued over many calls, with its memory.

        The arguments are those of `generate`; `sampler` must not be a `BeamSampler`, and
        `max_tokens` is the default of each call.

        Returns:
            `TextSession`.

        Raises:
            ValueError: If a value is out of its range, or there is no tokenizer.
            TypeError: If `sampler` is not a sampler.
        """
        tokenizer = self._required_tokenizer("session")
        asked = GenerationConfig.from_dict(settings)
        chosen = samplers.choose(sampler, settings, self._sampler)
        if isinstance(chosen, samplers.BeamSampler):
            raise ValueError(
                "`sampler` must draw token by token; no token of a beam is certain before the "
                f"last one. Received: sampler={chosen}"
            )
        seeds = [new_seed() if asked.seed is None else asked.seed]
        session = self._session(chosen, seeds, (), asked, memory_length, storage_dtype)
        return TextSession(session, tokenizer, asked, self._stop_token_ids(stop_token_ids))

    def _stop_token_ids(self, chosen: Sequence[int] | str | None) -> tuple[int, ...]:
        if chosen == "auto":
            end = None if self.tokenizer is None else self.tokenizer.end_token_id
            return () if end is None else (end,)
        if isinstance(chosen, str):
            raise ValueError(
                '`stop_token_ids` must be ints, "auto" or None. '
                f"Received: stop_token_ids={chosen!r}"
            )
        return () if chosen is None else tuple(int(each) for each in chosen)

    def _session(
        self,
        sampler: Any,
        seeds: list[int],
        stop_token_ids: tuple[int, ...],
        settings: GenerationConfig,
        memory_length: int | None,
        storage_dtype: str,
        is_compiled: bool = True,
    ) -> GenerationSession:
        """Returns a session with empty rows that may have been compiled for an earlier call."""
        # The settings of a random sampler are values, so a session is not compiled for them.
        is_random = type(sampler) is samplers.RandomSampler
        session = self._session_of(
            None if is_random else sampler,
            num_rows=len(seeds),
            memory_length=memory_length,
            repetition_penalty=settings.repetition_penalty,
            stop_token_ids=stop_token_ids,
            excluded_token_ids=excluded_tokens(self.tokenizer, settings.allow_unknown),
            jit_compile=None if is_compiled else False,
            storage_dtype=storage_dtype,
        )
        return session.sibling(seeds, sampler) if is_random else session.sibling(seeds)

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
    return (
        data[0] if isinstance(data, keras.utils.PyDataset) else getattr(data, "element_spec", None)
    )


def _num_rows(batches: Any, batch_size: int) -> int:
    return keras.tree.flatten(_spec_of(batches))[0].shape[0] or batch_size


def _until(row: np.ndarray, stop_token_ids: tuple[int, ...]) -> np.ndarray:
    """Returns the tokens of a row before -1 or a stop token."""
    is_end = (row < 0) | np.isin(row, np.array(stop_token_ids, np.int32))
    return row[: int(np.argmax(is_end))] if is_end.any() else row


def load(folder: Folder, step: StepChoice = None, **options: Any) -> TransformerXLCausalLM:
    """Loads model and tokenizer of a folder, see `TransformerXLCausalLM.from_preset`."""
    return TransformerXLCausalLM.from_preset(folder, step, **options)
