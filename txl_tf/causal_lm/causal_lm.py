"""Language model on text: a model with its tokenizer."""

import os
from collections.abc import Sequence
from typing import Any, Literal, Self

import keras
import numpy as np

from txl_tf import samplers
from txl_tf.causal_lm.model_folder import (
    check_vocabulary_size,
    tokenizer_from,
    write_model_folder,
)
from txl_tf.causal_lm.model_source import open_model
from txl_tf.causal_lm.text_arguments import Pooling, checked_texts, new_tokens, until
from txl_tf.causal_lm.text_features import TextFeatures
from txl_tf.causal_lm.text_score import score_text
from txl_tf.causal_lm.text_session import TextSession, prompt_tokens, text_until
from txl_tf.causal_lm.text_training import TextTraining
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.generation import new_seed, sample_seeds, stop_texts
from txl_tf.data.tokenizers.tokenizer import Tokenizer, excluded_tokens, stop_tokens
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.generation.generate import FEWEST_COMPILED_TOKENS
from txl_tf.generation.session import GenerationSession
from txl_tf.models.language_model import create_model
from txl_tf.models.presets import PRESETS, preset
from txl_tf.models.stateful import language_model_of
from txl_tf.run_folder import StepChoice, is_keras_file, load_model

# Most sessions that stay compiled, by number of rows and kind of sampling.
_MAX_SESSIONS = 4
# Settings of dynamic evaluation; `score` keeps weights fixed.
_FIXED_WEIGHTS: dict[str, None] = dict.fromkeys(
    (
        "dynamic_learning_rate",
        "dynamic_decay",
        "dynamic_statistics_segments",
        "dynamic_epsilon",
    )
)

Folder = str | os.PathLike[str]


class TransformerXLCausalLM:
    """Language model that takes and returns text.

    It follows KerasHub's `CausalLM`: `from_preset`, `save_to_preset`, `compile` with optimizer
    and sampler, `fit` and `generate`. Memory adds two methods: `session`, which continues a text
    over many calls, and `score`, which reads texts of any length segment by segment.

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        tokenizer: optional `Tokenizer` of the model. Without one `generate` takes
            and returns token ids.
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
        model = language_model_of(model)
        check_vocabulary_size(model, tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.last_seed: int | None = None
        self._sessions: dict[Any, GenerationSession] = {}
        evaluation = EvaluationConfig() if evaluation is None else evaluation
        self.step = 0
        self.folder: str | None = None
        self.evaluation = evaluation.replace(batch_size=1, **_FIXED_WEIGHTS)
        self._evaluators: dict[EvaluationConfig, Evaluator] = {}
        self._features: TextFeatures | None = None
        self.compile()

    @classmethod
    def from_preset(
        cls,
        preset_or_folder: Folder,
        *,
        step: StepChoice = None,
        tokenizer: Tokenizer | Folder | None = None,
        memory_length: int | None = None,
        segment_length: int | None = None,
    ) -> Self:
        """Loads a model folder, or builds a model of a named size with new weights.

        Args:
            preset_or_folder: path of a run, of a checkpoint, of a folder that `txl convert` or
                `save_to_preset` wrote, or of an export; or a name that `txl_tf.preset` knows,
                such as `"quickstart"`, for new weights. The tokenizer then sets the vocabulary
                size.
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
        source, evaluation, steps = None, EvaluationConfig(), None
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
            steps, model = source.load_step()
            found = source.tokenizer() if found is None else found
        lm = cls(model, found, _with_lengths(evaluation, memory_length, segment_length))
        lm.folder = None if source is None else source.folder
        lm.step = steps or 0
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
        self._sampler = samplers.get(sampler)
        self._training = TextTraining(
            self.model, self.tokenizer, self._take_steps, optimizer, options
        )

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
                `tf.data.Dataset` of `(x, y)`.
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
        return self._training.fit(
            x, batch_size, segment_length, validation_data, epochs=epochs, **options
        )

    def generate(
        self,
        inputs: Any,
        max_length: int | None = None,
        stop_token_ids: Sequence[int] | Literal["auto"] | None = "auto",
        strip_prompt: bool = False,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        sampler: Any = None,
        num_samples: int = 1,
        memory_length: int | None = None,
        allow_unknown: bool = False,
    ) -> Any:
        """Continues one prompt or several, which may differ in length.

        Args:
            inputs: str, or a list of str. Without a tokenizer an int array `(R, P)` or a
                list of int vectors.
            max_length: optional int. The most tokens of a row, its prompt included,
                as in KerasHub.
            stop_token_ids: optional ints. A row ends before the first of them. Defaults to
                `"auto"`: the end of a sentence or document, if the tokenizer marks it. `None`
                means no stop tokens.
            strip_prompt: bool. If `True`, the result excludes the prompt. Defaults to `False`.
            max_tokens: optional int. The most tokens after the prompt. Defaults to
                `128`, unless `max_length` is given.
            temperature: optional float. Divides the logits: values below 1 sharpen the
                distribution; 0 always takes the most probable token. Defaults to `1`.
            top_k: optional int. Only this many of the most probable tokens; 0 is all.
                Defaults to `0`.
            top_p: optional float. Only the most probable tokens that together have
                this probability; 1 is all. Defaults to `0.9`.
            min_p: optional float. Only tokens with this share of the highest
                probability; 0 is all. Defaults to `0`.
            repetition_penalty: float, at least 1. See `RepetitionPenalty`. Defaults
                to `1`, none.
            seed: optional int. The same seed writes the same text after a prompt, for any other
                prompts in the call. Defaults to `None`: a new one, which is `last_seed` after the
                call.
            stop: str, or several. A text ends before the first of them.
            sampler: optional name or object, as for `compile`, instead of `temperature`, `top_k`,
                `top_p` and `min_p`. Defaults to `None`.
            num_samples: int. Texts for each prompt, in a list; each draws with its own seed, the
                first with `seed`. Defaults to `1`.
            memory_length: optional int. Tokens to remember, if not the model's.
            allow_unknown: bool. If `True`, the token for unknown words may be written. Defaults
                to `False`.

        Returns:
            str, or a list of str for a list or for several samples. Without a
            tokenizer a list of int32 vectors.

        Raises:
            TypeError: If a prompt is of another type.
            ValueError: If there is nothing to generate, a setting is out of its range, or the
                sampler is unknown.
            UsageError: If the tokenizer cannot encode a prompt, or a prompt has no token.
        """
        if num_samples < 1:
            raise ValueError(f"`num_samples` must be positive. Received: {num_samples}")
        is_single = isinstance(inputs, str)
        prompts = self._prompt_ids([inputs] if is_single else inputs)
        seed = self.last_seed = new_seed() if seed is None else seed
        seeds = sample_seeds(seed, num_samples) * len(prompts)
        prompts = [ids for ids in prompts for _ in range(num_samples)]
        limits = new_tokens([len(ids) for ids in prompts], max_length, max_tokens)
        stops = stop_texts(stop)
        ends = self._stop_token_ids(stop_token_ids)
        chosen = samplers.choose(sampler, temperature, top_k, top_p, min_p, self._sampler)
        session = self._session(
            chosen,
            len(prompts),
            (*ends, *self._single_token_stops(stops)),
            repetition_penalty,
            excluded_tokens(self.tokenizer, allow_unknown),
            memory_length,
            is_compiled=max(limits) >= FEWEST_COMPILED_TOKENS,
        )
        session.restart(seeds, settings=_settings_of(chosen))
        written = session.write(prompts, max_tokens=max(limits))
        rows = [until(row[:limit], ends) for row, limit in zip(written, limits, strict=True)]
        if self.tokenizer is None:
            read = [ids[:0] if strip_prompt else ids for ids in prompts]
            return [np.concatenate(pair) for pair in zip(read, rows, strict=True)]
        texts = [
            text_until(self.tokenizer, ids, row, stops)
            for ids, row in zip(prompts, rows, strict=True)
        ]
        if not strip_prompt:
            befores = [inputs] if is_single else inputs
            texts = [befores[row // num_samples] + text for row, text in enumerate(texts)]
        return texts[0] if is_single and num_samples == 1 else texts

    def score(
        self,
        text: str | Sequence[str],
        *,
        memory_length: int | None = None,
        segment_length: int | None = None,
    ) -> Any:
        """Scores texts of any length, read segment by segment with memory.

        The figures equal those from `txl evaluate --text`: lengths and precision are as in the
        run's evaluations, see `evaluation`.

        Args:
            text: str of at least two tokens, or a list of such texts.
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
        texts = checked_texts([text] if isinstance(text, str) else text, "text")
        tokenizer = self._required_tokenizer("score")
        evaluator = self.evaluator(memory_length, segment_length)
        scores = [score_text(evaluator, tokenizer, each, step=self.step) for each in texts]
        return scores[0] if isinstance(text, str) else scores

    def evaluator(
        self, memory_length: int | None = None, segment_length: int | None = None
    ) -> Evaluator:
        """Returns the evaluator of `score`, which reads the weights of the model.

        Args:
            memory_length: optional int. As for `score`.
            segment_length: optional int. As for `score`.
        """
        evaluation = _with_lengths(self.evaluation, memory_length, segment_length)
        if evaluation not in self._evaluators:
            if len(self._evaluators) >= _MAX_SESSIONS:
                del self._evaluators[next(iter(self._evaluators))]
            variables = {variable.path: variable for variable in self.model.weights}
            evaluator = Evaluator(self.model.config, evaluation, variables=variables)
            self._evaluators[evaluation] = evaluator
        return self._evaluators[evaluation]

    def embed(
        self,
        texts: str | Sequence[str],
        layer: int | None = None,
        pooling: Pooling = "mean",
        *,
        batch_size: int = 8,
    ) -> Any:
        """Returns features of texts of any length, read segment by segment with memory.

        Args:
            texts: str of at least one token, or a list of such texts.
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
        found = checked_texts([texts] if isinstance(texts, str) else texts, "texts")
        tokenizer = self._required_tokenizer("embed")
        rows = [tokenizer.encode(text).astype(np.int32) for text in found]
        if self._features is None:
            self._features = TextFeatures(self.model)
        features = self._features(rows, layer, pooling, batch_size)
        if isinstance(texts, str):
            return features[0]
        return np.stack(features) if features[0].ndim == 1 else features

    def session(
        self,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        stop_token_ids: Sequence[int] | Literal["auto"] | None = "auto",
        sampler: Any = None,
        memory_length: int | None = None,
        allow_unknown: bool = False,
    ) -> TextSession:
        """Begins a text that is continued over many calls, with its memory.

        Args:
            temperature: as for `generate`.
            top_k: as for `generate`.
            top_p: as for `generate`.
            min_p: as for `generate`.
            repetition_penalty: as for `generate`.
            seed: as for `generate`; see `seed` of the session.
            stop: as for `generate`.
            stop_token_ids: as for `generate`.
            sampler: as for `generate`; not a `BeamSampler`.
            memory_length: as for `generate`.
            allow_unknown: as for `generate`.

        Returns:
            `TextSession`.

        Raises:
            ValueError: If a value is out of its range, or there is no tokenizer.
            TypeError: If `sampler` is not a sampler.
        """
        tokenizer = self._required_tokenizer("session")
        chosen = samplers.choose(sampler, temperature, top_k, top_p, min_p, self._sampler)
        if isinstance(chosen, samplers.BeamSampler):
            raise ValueError(
                "`sampler` must draw token by token; no token of a beam is certain before the "
                f"last one. Received: sampler={chosen}"
            )
        excluded = excluded_tokens(tokenizer, allow_unknown)
        session = self._session(
            chosen, 1, (), repetition_penalty, excluded, memory_length
        ).sibling()
        session.restart(seed, settings=_settings_of(chosen))
        return TextSession(session, tokenizer, stop, self._stop_token_ids(stop_token_ids))

    def _prompt_ids(self, inputs: Any) -> list[np.ndarray]:
        if self.tokenizer is None:
            return [np.asarray(row, np.int32) for row in inputs]
        texts = checked_texts(inputs, "inputs")
        return [prompt_tokens(self.tokenizer, text) for text in texts]

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

    def _single_token_stops(self, stops: tuple[str, ...]) -> list[int]:
        return [] if self.tokenizer is None else stop_tokens(self.tokenizer, stops)

    def _session(
        self,
        sampler: Any,
        num_rows: int,
        stop_token_ids: tuple[int, ...],
        penalty: float,
        excluded_token_ids: tuple[int, ...],
        memory_length: int | None,
        *,
        is_compiled: bool = True,
    ) -> GenerationSession:
        """Returns a session that may have been compiled for an earlier call."""
        # The session takes the settings of a random sampler as values, so it is not compiled for
        # them.
        sampler = None if type(sampler) is samplers.RandomSampler else sampler
        rules = (stop_token_ids, penalty, excluded_token_ids)
        # The key holds the sampler, so that its address is not reused.
        key = (sampler, num_rows, rules, memory_length, is_compiled)
        if key not in self._sessions:
            while len(self._sessions) >= _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[key] = GenerationSession(
                self.model,
                sampler,
                num_rows=num_rows,
                memory_length=memory_length,
                repetition_penalty=penalty,
                stop_token_ids=stop_token_ids,
                excluded_token_ids=excluded_token_ids,
                jit_compile=None if is_compiled else False,
            )
        return self._sessions[key]

    def _take_steps(self, num_steps: int) -> None:
        """Counts steps, and drops values computed from the weights before they changed."""
        self.step += num_steps
        self._sessions.clear()
        self._evaluators.clear()
        self._features = None

    def _required_tokenizer(self, purpose: str) -> Tokenizer:
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


def _settings_of(sampler: Any) -> tuple[samplers.RandomSampler, ...]:
    is_random = type(sampler) is samplers.RandomSampler
    return (sampler if is_random else samplers.RandomSampler(),)


def load(
    folder: Folder,
    step: StepChoice = None,
    *,
    tokenizer: Tokenizer | Folder | None = None,
    memory_length: int | None = None,
    segment_length: int | None = None,
) -> TransformerXLCausalLM:
    """Loads model and tokenizer of a run, a checkpoint, a converted folder or an export.

    It also loads a language model that Keras saved, which has no tokenizer. From a
    `TransformerXLWithHead` or a fine-tuned run it loads the model without the head.

    Args:
        folder: path of the folder, also a remote one (`gs://`), or of a `.keras` file; or the
            name of a preset, see `TransformerXLCausalLM.from_preset`.
        step: as for `txl_tf.load_model`.
        tokenizer: optional `Tokenizer`, or path of a prepared data set. Defaults to `None`: the
            one in the folder, if there is one.
        memory_length: optional int. Tokens that `score` remembers. Defaults to `None`: as in the
            run's evaluations, or the model's own without a run.
        segment_length: optional int. Tokens that `score` reads at once, likewise.

    Returns:
        The language model.

    Raises:
        JobError: As `txl_tf.load_model` does.

    Example:
    ```python
    lm = txl_tf.load("runs/mine")
    print(lm.generate("Once upon a time", max_tokens=100))
    ```
    """
    return TransformerXLCausalLM.from_preset(
        folder,
        step=step,
        tokenizer=tokenizer,
        memory_length=memory_length,
        segment_length=segment_length,
    )
