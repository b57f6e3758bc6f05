"""Text generator: a model that continues texts, with its tokenizer."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np

from txl_tf import samplers
from txl_tf.causal_lm.text_pieces import (
    has_new_stop,
    prompt_tokens,
    text_until,
    tokens_until,
)
from txl_tf.causal_lm.text_session import TextSession
from txl_tf.config.generation import GenerationConfig, new_seed, sample_seeds
from txl_tf.config.setting_values import shown_value
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer, excluded_tokens
from txl_tf.generation.decoding import TOKENS_PER_CHECK
from txl_tf.generation.session import FEWEST_COMPILED_TOKENS, GenerationSession
from txl_tf.model_folder import check_vocabulary_size
from txl_tf.models.computed_from_weights import same_variables
from txl_tf.models.language_model import language_model_of

# Most objects of one class whose compiled programs are kept.
_MAX_COMPILED = 4


class TextGenerator:
    """Model that continues texts, see `TransformerXLCausalLM`."""

    def __init__(self, model: keras.Model, tokenizer: Tokenizer | None = None) -> None:
        self.model = model = language_model_of(model)
        check_vocabulary_size(model, tokenizer)
        self.tokenizer = tokenizer
        self.last_seed: int | None = None
        self._sampler: Any = samplers.RandomSampler()
        self._programs: dict[Any, Callable[..., Any]] = {}
        self._program_weights: Sequence[Any] = ()

    def _cached_object(self, kind: Any, *arguments: Any, **options: Any) -> Any:
        """Returns an object of the class `kind`, which compiles programs for the model.

        A call with equal arguments returns the same object again. Programs are bound to the
        variables of the layers, so all objects are new after `quantize`, which replaces variables.
        """
        if not same_variables(self.model.weights, self._program_weights):
            self._programs, self._program_weights = {}, self.model.weights
        if kind not in self._programs:
            create = functools.partial(kind, self.model)
            self._programs[kind] = functools.lru_cache(_MAX_COMPILED)(create)
        return self._programs[kind](*arguments, **options)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy or pickle holds, without programs."""
        return {**vars(self), "_programs": {}, "_program_weights": ()}

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
        round weights and memory, see `storage_dtype`.

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
            **settings: fields of `GenerationConfig`: `max_tokens` (without the prompt; not with
                `max_length`), `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`,
                `frequency_penalty`, `presence_penalty`, `logit_bias`, `seed`, `stop` and
                `allow_unknown`.

        Returns:
            str for a str, int32 vector for token ids. A list of them if `inputs` is a list,
            `num_samples` is more than 1, or a `BeamSampler` returns all beams: then the beams
            of a prompt follow each other, best first.

        Raises:
            ValueError: If a prompt has another type, there is nothing to generate, a setting or a
                token id is out of its range, the sampler is unknown, or a text has no tokenizer.
            UsageError: If the tokenizer cannot encode a text, or the text has no token.
        """
        # 1. Tokens of the prompts, `num_samples` rows each, and the most to write after each.
        config = GenerationConfig.from_dict(settings)
        texts = checked_texts(inputs, "inputs")
        tokenizer = self._required_tokenizer("generate", texts)
        if config.stop:
            self._required_tokenizer("stop")
        pairs = [(text, prompt_tokens(tokenizer, text)) for text in texts]
        befores, prompts = zip(*(pair for pair in pairs for _ in range(num_samples)), strict=True)
        limits = [config.max_tokens] * len(prompts)
        if max_length is not None:
            if "max_tokens" in settings:
                raise ValueError(
                    "`max_length` and `max_tokens` exclude each other. "
                    f"Received: max_length={max_length}, max_tokens={config.max_tokens}"
                )
            limits = _limits(max_length, prompts)
        # 2. A session with empty rows, compiled by an earlier call if there was one like it.
        self.last_seed = new_seed() if config.seed is None else config.seed
        ends = self._stop_token_ids(stop_token_ids)
        session = self._session(
            samplers.choose(sampler, settings, self._sampler),
            sample_seeds(self.last_seed, num_samples) * len(pairs),
            config,
            stop_token_ids=ends,
            memory_length=memory_length,
            jit_compile=None if max(limits) >= FEWEST_COMPILED_TOKENS else False,
            storage_dtype=storage_dtype,
        )

        # 3. Tokens are written. After every 16 of them, rows at a limit or a stop text end.
        def ends_row(prompt_ids: np.ndarray, row: np.ndarray, limit: int) -> bool:
            if len(row) >= limit:
                return True
            parts = TOKENS_PER_CHECK, config.stop
            return bool(config.stop) and has_new_stop(tokenizer, prompt_ids, row, *parts)

        def is_over(rows: np.ndarray) -> np.ndarray:
            width = len(rows) // len(prompts)  # of beams
            whole = zip(np.repeat(np.arange(len(prompts)), width), rows, strict=True)
            return np.array([ends_row(prompts[i], row[row >= 0], limits[i]) for i, row in whole])

        check = is_over if config.stop or len(set(limits)) > 1 else None
        outputs = session.write(prompts, max_tokens=max(limits), is_over=check)
        # 4. Texts or ids, cut at the limit, the first stop token and the first stop text.
        continuations: list[str | np.ndarray] = []
        for before, ids, beams, limit in zip(befores, prompts, outputs, limits, strict=True):
            for row in np.atleast_2d(beams):
                row = _until(row[:limit], ends)
                if isinstance(before, str):
                    text = text_until(tokenizer, ids, row, config.stop)
                    continuations.append(text if strip_prompt else before + text)
                else:
                    row = tokens_until(tokenizer, ids, row, config.stop)
                    continuations.append(row if strip_prompt else np.concatenate([ids, row]))
        is_alone = is_one_text(inputs) and num_samples == 1 and outputs.ndim == 2
        return continuations[0] if is_alone else continuations

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

        The arguments have the same meaning as in `generate`. `sampler` must not be a `BeamSampler`.
        `max_tokens` is the default for each call.

        Raises:
            ValueError: If a value is out of its range, or the model has no tokenizer.
            TypeError: If `sampler` is not a sampler.
        """
        tokenizer = self._required_tokenizer("session")
        config = GenerationConfig.from_dict(settings)
        session_sampler = samplers.choose(sampler, settings, self._sampler)
        if isinstance(session_sampler, samplers.BeamSampler):
            raise ValueError(
                "`sampler` must not be a beam search in a session: its tokens are certain only at "
                f"the end. Received: sampler={session_sampler}"
            )
        seeds = [new_seed() if config.seed is None else config.seed]
        lengths = {"memory_length": memory_length, "storage_dtype": storage_dtype}
        session = self._session(session_sampler, seeds, config, **lengths)
        return TextSession(session, tokenizer, config, self._stop_token_ids(stop_token_ids))

    def _stop_token_ids(self, stop_token_ids: Sequence[int] | str | None) -> tuple[int, ...]:
        if stop_token_ids == "auto":
            end = None if self.tokenizer is None else self.tokenizer.end_token_id
            stop_token_ids = () if end is None else (end,)
        return tuple(int(each) for each in stop_token_ids or ())

    def _session(
        self, sampler: Any, seeds: list[int], settings: GenerationConfig, **options: Any
    ) -> GenerationSession:
        """Returns a session with empty rows; it reuses what an earlier call compiled."""
        if type(sampler) is samplers.RandomSampler:
            # The settings of this sampler are inputs, so one compiled session serves all of them.
            settings = settings.replace(
                **{name: getattr(sampler, name) for name in samplers.SETTINGS}
            )
            sampler = None
        session = self._cached_object(
            GenerationSession,
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


def _limits(max_length: int, prompts: Sequence[np.ndarray]) -> list[int]:
    """Returns the most tokens to write after each prompt."""
    limits = [max(0, max_length - len(ids)) for ids in prompts]
    if not any(limits):
        raise ValueError(
            "`max_length` must be larger than the shortest prompt. "
            f"Received: max_length={max_length}, shortest={min(map(len, prompts))}"
        )
    return limits


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
    values = [texts] if is_one_text(texts) else texts
    is_list = isinstance(values, Sequence | np.ndarray) and len(values) > 0
    if not is_list or not all(map(is_one_text, values)):
        raise ValueError(
            f"`{argument}` must be a str, a vector of token ids, or a list of these that is not "
            f"empty. Received: {argument}={shown_value(texts)}"
        )
    return [each if isinstance(each, str) else np.asarray(each) for each in values]
