"""Generation session, which continues texts and keeps their memory.

Shape letters used in this module: B rows of memory, W beams of a row, R = B * W rows, P prompt
length, T tokens of a piece, S tokens to write, V vocabulary.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import keras
import numpy as np
from keras import ops

from txl_tf import samplers
from txl_tf.config.generation import DEFAULT_NEW_TOKENS, SamplingConfig, new_seed
from txl_tf.generation.decoding import NOTHING, TOKENS_PER_CHECK, DecodingState, write_tokens
from txl_tf.generation.row_memory import RowMemory
from txl_tf.generation.token_rules import (
    PENALTIES,
    TokenRules,
    note_read,
    note_written,
    token_bias,
)
from txl_tf.inference.engine import InferenceEngine
from txl_tf.layers.compiled_parts import compiled
from txl_tf.layers.token_ids import check_token_ids
from txl_tf.models.computed_from_weights import ComputedFromWeights, same_variables
from txl_tf.models.language_model import language_model_of
from txl_tf.models.memory import KeyValueMemory, Memory
from txl_tf.samplers import BeamSampler

CAPACITY = 64
"""Tokens that are kept beside memory before they are merged into it."""
FEWEST_COMPILED_TOKENS = 300
"""Fewer tokens take less time than the compilation by XLA."""


def writing_engine(
    model: keras.Model, memory_length: int | None, num_rows: int, **choice: Any
) -> InferenceEngine:
    """Returns the engine that writes with a model, see `GenerationSession`."""
    config = model.config
    if memory_length is None and config.has_relative_positions and not config.recurrence:
        # A model without recurrence remembers the rest of a segment while it writes.
        memory_length = config.segment_length - 1
    return InferenceEngine(model, memory_length, num_rows=num_rows, writes=True, **choice)


def _token_writer(engine: InferenceEngine, stop_token_ids: Sequence[int], sampler: Any) -> Any:
    """Returns `write_tokens` as a graph function of tensors; its settings have a value per row."""
    steps = engine.steps
    rules: dict[str, Any] = {"stop_token_ids": stop_token_ids}
    if sampler is not None:
        rules["sampler"] = sampler

    def write(memory, constants, state, seeds, settings, max_tokens):
        def step(token_ids, is_active, step_state):
            return steps.step(token_ids, is_active, memory, step_state, constants)

        token_rules = TokenRules.of_settings(settings, **rules)
        return write_tokens(step, token_rules, seeds, state, max_tokens, steps.select)

    return compiled(write, engine.model, engine.plan.compile_step)


class GenerationSession:
    """Generation session: one text per row, continued with its memory.

    The first call compiles programs, which later calls reuse. They are bound to the variables of
    the layers: a new session is needed after `quantize` or `enable_lora`. Other changes of weights
    count from the next call on; memory keeps the states of the weights that computed it.

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        sampler: optional function of logits `(R, V)` and seeds `(R, 2)` that returns token ids
            `(R,)`, such as `RandomSampler(0.8)`, or a `BeamSampler`, or a name in
            `txl_tf.samplers`. Defaults to `None`: a `RandomSampler` of the settings, with which
            `sibling` takes other ones without compiling again.
        num_rows: int. `B`.
        memory_length: optional int. Tokens to remember, if not the model's.
        memory: optional `Memory` or `KeyValueMemory` of the preceding text.
        stop_token_ids: ints. A row ends with the first of them.
        excluded_token_ids: ints. They are never written.
        jit_compile: optional bool. If `True`, XLA compiles the work of every token: this takes
            seconds, and each token then half the time. Defaults to `None`: by the execution plan.
        storage_dtype: str. `"auto"` keeps memory, and reads weights, in bfloat16 where that is
            faster: for models larger than the caches of a CPU. `"float32"` rounds nothing. With a
            `BeamSampler` nothing is rounded.
        **settings: `repetition_penalty`, `frequency_penalty`, `presence_penalty` and `logit_bias`
            as in `GenerationConfig`; without a sampler `temperature`, `top_k`, `top_p` and `min_p`
            too; and `seed`, an int or one for each row, a new one by default. The same seed writes
            the same text after the same prompt in any row.

    Attributes:
        seeds: int32 vector `(B,)`.

    Example:
    ```python
    session = txl_tf.GenerationSession(model, txl_tf.samplers.RandomSampler(0.8))
    text = session.write(prompt_ids, max_tokens=100)
    more = session.write(max_tokens=100)
    ```

    Raises:
        ValueError: If a value is out of its range, or a sampler and its settings are given.
    """

    def __init__(
        self,
        model: keras.Model,
        sampler: Callable[[Any, Any], Any] | str | None = None,
        *,
        num_rows: int = 1,
        memory_length: int | None = None,
        memory: Any = None,
        stop_token_ids: Sequence[int] = (),
        excluded_token_ids: Sequence[int] = (),
        jit_compile: bool | None = None,
        storage_dtype: Literal["auto", "float32"] = "auto",
        **settings: Any,
    ) -> None:
        self._model = model = language_model_of(model)
        self._variables = model.weights
        self._vocabulary_size = model.config.vocabulary_size
        check_token_ids(list(stop_token_ids), self._vocabulary_size, "stop_token_ids")
        if storage_dtype not in ("auto", "float32"):
            raise ValueError(
                f'`storage_dtype` must be "auto" or "float32". Received: {storage_dtype!r}'
            )
        seed = settings.pop("seed", None)
        sampling = SamplingConfig.from_dict(settings)
        if sampler is not None:
            sampler = samplers.choose(sampler, settings)
        self._beams = sampler if isinstance(sampler, BeamSampler) else None
        self._width, choice = 1, {"jit_compile": jit_compile, "storage_dtype": storage_dtype}
        if self._beams is not None:
            self._width, choice["storage_dtype"] = self._beams.num_beams, "float32"
        self._excluded_token_ids = excluded_token_ids
        self._num_rows = num_rows
        self._engine = writing_engine(model, memory_length, num_rows * self._width, **choice)
        self._rows = RowMemory(self._engine, num_rows, memory)
        self._writer: Any = _token_writer(self._engine, stop_token_ids, sampler)
        self._step_constants = ComputedFromWeights(self._engine.steps.step_constants, model)
        self._reset(seed, sampling)

    def _reset(self, seed: Any, settings: SamplingConfig) -> None:
        """Sets everything that belongs to the texts, except memory, to its initial value."""
        num_rows, num_texts = self._num_rows, self._num_rows * self._width
        seeds = np.atleast_1d(np.asarray(new_seed() if seed is None else seed))
        is_integer = seeds.dtype.kind in "iu" and seeds.min() >= -(2**31) and seeds.max() < 2**31
        if not is_integer or seeds.shape not in ((1,), (num_rows,)):
            raise ValueError(
                f"`seed` must be a 32-bit int, or {num_rows}, one per row. Received: seed={seed}"
            )
        self.seeds = np.broadcast_to(seeds, (num_rows,)).astype(np.int32)
        types = {**samplers.SETTINGS, **dict.fromkeys(PENALTIES, "float32")}
        self._settings = {
            name: ops.convert_to_tensor(np.full(num_texts, getattr(settings, name)), dtype)
            for name, dtype in types.items()
        }
        bias = token_bias(settings, self._excluded_token_ids, self._vocabulary_size)
        if bias is not None:
            self._settings["bias"] = ops.convert_to_tensor(bias)
        self._counts_uses = settings.has_penalty
        self._uses = np.zeros((num_rows, self._vocabulary_size), np.int32)
        self._position = 0
        # A session is in one of two states. At rest, `_state` is `None`, and `_rows` hold the whole
        # texts. While it writes, `_state` holds the tokens after these, beside memory: of its
        # `_capacity` places `_num_filled` are filled, and `_has_ended_rows` is true if some rows
        # have filled fewer. `_begin` enters the state of writing, `_settle` the state of rest.
        self._state: DecodingState | None = None
        self._capacity = self._num_filled = 0
        self._has_ended_rows = False

    def sibling(
        self, seed: int | Sequence[int] | None = None, settings: SamplingConfig | None = None
    ) -> Self:
        """Returns a session with empty rows that shares the compiled functions.

        Args:
            seed: as for the constructor.
            settings: optional `SamplingConfig`, such as a `GenerationConfig`. Settings of a
                `RandomSampler` have no effect on a session with a sampler.
        """
        session = copy.copy(self)
        session._rows = self._rows.cleared()
        session._reset(seed, settings or SamplingConfig())
        return session

    def _begin(self, capacity: int, uses: Any = None) -> None:
        """Enters the state of writing, with places for `capacity` tokens beside memory.

        `uses`, int32 `(R, V)`, are as in a `DecodingState`. By default they are the counts on the
        host.
        """
        if uses is None and self._counts_uses:
            uses = ops.convert_to_tensor(np.repeat(self._uses, self._width, axis=0))
        num_texts = self._num_rows * self._width
        newest_token_ids = np.repeat(self._rows.newest_token_ids, self._width)
        self._state = DecodingState.begin(
            ops.convert_to_tensor(newest_token_ids, "int32"),
            self._engine.steps.begin(self._rows.joined(), self._width, capacity),
            capacity,
            uses=uses,
            totals=() if self._beams is None else self._beams.initial_totals(num_texts),
            position=self._position,
        )
        self._capacity = capacity
        self._num_filled, self._has_ended_rows = 0, False

    def _settle(self, rows: Sequence[np.ndarray] | None = None) -> None:
        """Enters the state of rest: memory has all tokens but the newest of each row.

        `rows`, an int vector per row, are further tokens to read.
        """
        state, width = self._state, self._width
        if state is not None and self._num_filled:
            step_state = state.step_state
            if self._beams is not None:  # The best beam of each row is its first.
                best_beams = np.arange(0, self._num_rows * width, width, dtype=np.int32)
                best_beams = ops.convert_to_tensor(best_beams)
                step_state = self._engine.steps.select(step_state, best_beams)
            lengths, pending = (
                np.asarray(each)[::width] for each in (state.lengths, state.pending)
            )
            self._rows.add_steps(step_state, lengths, pending)
        self._state = None
        if rows is not None:
            # One call then reads these and the tokens that `rewind` left unread.
            self._rows.append(rows)
        self._rows.read()

    @property
    def memory(self) -> Any:
        """Memory of all tokens read and written except the newest token of each row."""
        self._settle()
        return self._rows.memory

    def read(self, prompt_ids: np.ndarray | Sequence[np.ndarray]) -> None:
        """Reads prompts, which `write` continues.

        Args:
            prompt_ids: int array `(B, P)`, or a sequence of `B` int vectors that may differ in
                length.

        Raises:
            ValueError: If a prompt is empty, or a token id is out of range.
        """
        rows = [np.asarray(row) for row in prompt_ids]
        if len(rows) != self._num_rows or any(row.ndim != 1 or not row.size for row in rows):
            raise ValueError(
                f"`prompt_ids` must have a vector of token ids per row ({self._num_rows}), none of "
                f"them empty. Received: shapes={[row.shape for row in rows]}"
            )
        for row in rows:
            check_token_ids(row, self._vocabulary_size, "prompt_ids")
        for uses, row in zip(self._uses, rows, strict=True):
            note_read(uses, row)
        self._settle(rows)

    def constants(self) -> Any:
        """Returns what `write` computes from the weights alone, for several calls.

        Raises ValueError if layers have other variables than when the session began.
        """
        if not same_variables(self._variables, self._model.weights):
            raise ValueError(
                "Layers of the model have other variables than when the session began, as after "
                "`quantize` or `enable_lora`: begin a new session. "
                f"Received: model={self._model}"
            )
        return self._step_constants()

    def write(
        self,
        prompt_ids: np.ndarray | Sequence[np.ndarray] | None = None,
        *,
        max_tokens: int,
        is_over: Callable[[np.ndarray], np.ndarray] | None = None,
        constants: Any = None,
    ) -> np.ndarray:
        """Reads the prompts, if given, and writes their continuation.

        Args:
            prompt_ids: as for `read`, or `None` to continue without one.
            max_tokens: int. `S`, the most to write.
            is_over: optional function of the tokens written so far, `(R, T)`, that returns the
                rows to end, bool `(R,)`. It is called every 16 tokens, or with a `BeamSampler`
                after every token.
            constants: optional result of `constants()`, to look at the weights once for all calls.

        Returns:
            Int32 array `(B, S)`, or `(B, W, S)` from a `BeamSampler` that returns all beams. -1
            after the end of a row.

        Raises:
            ValueError: If there is nothing to continue, a token id is out of range, or layers have
                other variables than when the session began.
        """
        if prompt_ids is not None:
            self.read(prompt_ids)
        elif self._rows.is_unstarted:
            raise ValueError("A new session needs `prompt_ids`. Received: prompt_ids=None")
        if self._state is None or self._has_ended_rows:
            self._settle()
            # The tokens of beams enter memory only when all of them are written. Their number is
            # rounded up to a multiple, so that few programs are compiled.
            num_rounds = 1 if self._beams is None else max(1, math.ceil(max_tokens / CAPACITY))
            self._begin(num_rounds * CAPACITY)
        constants = self.constants() if constants is None else constants
        token_ids = self._write_tokens(max_tokens, is_over, constants)
        beams = token_ids.reshape(self._num_rows, self._width, max_tokens)
        for uses, row in zip(self._uses, beams[:, 0], strict=True):
            note_written(uses, row[row != NOTHING])
        if self._beams is None:
            return token_ids
        self._settle()
        return beams if self._beams.return_all_beams else beams[:, 0]

    def _write_tokens(self, max_tokens: int, is_over: Any, constants: Any) -> np.ndarray:
        """Writes in the state of writing; returns int32 `(R, S)`, -1 after the end of a row."""
        output = np.full((self._num_rows * self._width, max_tokens), NOTHING, np.int32)
        is_finished, num_written, max_per_call = np.zeros((len(output),), bool), 0, max_tokens
        seeds = ops.convert_to_tensor(np.repeat(self.seeds, self._width))
        if is_over is not None:
            max_per_call = TOKENS_PER_CHECK if self._beams is None else 1
        while num_written < max_tokens and not is_finished.all():
            assert self._state is not None
            # 1. If all places beside memory are filled, their tokens enter memory. Beams have
            #    places for all their tokens.
            if self._num_filled == self._capacity:
                uses = self._state.uses
                self._settle()
                self._begin(self._capacity, uses)
            # 2. One call of the program writes as many tokens as fit.
            num_before = self._num_filled
            count = min(max_tokens - num_written, self._capacity - num_before, max_per_call)
            self._state = state = self._writer(
                self._rows.joined(),
                constants,
                self._state._replace(is_finished=ops.convert_to_tensor(is_finished)),
                seeds,
                self._settings,
                ops.convert_to_tensor(count, "int32"),
            )
            self._num_filled = int(state.index)
            # 3. The new tokens are copied. Beams may also have other tokens in earlier places.
            first = max(0, num_before - num_written)
            columns = np.asarray(state.output_ids)[first : self._num_filled]
            start = num_written + first - num_before
            output[:, start : start + len(columns)] = columns.T
            self._position += self._num_filled - num_before
            num_written += count
            # 4. Rows that have ended write nothing more.
            is_finished = np.array(state.is_finished)
            if is_over is not None:
                is_finished |= is_over(output[:, :num_written])
            # Their memory then ends before the memory of other rows. A single row has no others.
            self._has_ended_rows = len(output) > 1 and bool(is_finished.any())
        return output

    def mark(self) -> Any:
        """Returns the present state, to which `rewind` returns."""
        self._settle()
        return copy.copy(self._rows), self._uses.copy()

    def rewind(self, mark: Any, rows: Sequence[np.ndarray]) -> None:
        """Returns to a mark, as if only `rows`, a vector for each row, had been written since.

        Tokens that are written later have new random numbers.
        """
        row_memory, uses = mark
        # Copies, because a caller may return to a mark several times.
        self._rows, self._uses = copy.copy(row_memory), uses.copy()
        self._rows.append(rows)
        self._state = None
        for uses, row in zip(self._uses, rows, strict=True):
            note_written(uses, row)


def generate(
    model: keras.Model,
    prompt_ids: np.ndarray | Sequence[np.ndarray],
    *,
    max_tokens: int = DEFAULT_NEW_TOKENS,
    sampler: Callable[[Any, Any], Any] | str | None = None,
    memory: Any = None,
    memory_length: int | None = None,
    jit_compile: bool | None = None,
    **options: Any,
) -> tuple[np.ndarray, Any]:
    """Continues prompts.

    For more than one call with a model, a `GenerationSession` compiles once.

    Args:
        model: as for `GenerationSession`.
        prompt_ids: int array `(B, P)`, or a sequence of `B` int vectors that may differ in length;
            at least one token in every row.
        max_tokens: int. `S`, the most to write after the prompt. Defaults to `128`.
        sampler: optional sampler or its name, as for `GenerationSession`.
        memory: optional memory of the text before the prompt, from the model or this function.
        memory_length: optional int. Tokens to remember. Defaults to `None`: as many as `memory`
            or the model.
        jit_compile: optional bool. Defaults to `None`: XLA compiles from a few hundred tokens on,
            if the execution plan of the device does.
        **options: other arguments and settings of `GenerationSession`, such as `seed`.

    Returns:
        Tuple of the array of `GenerationSession.write`, and the memory of all tokens but the last
        of each row. To continue, pass this memory, and the last token as the prompt.

    Raises:
        ValueError: If a prompt is empty, or an id or a setting is out of range.
    """
    if memory_length is None and isinstance(memory, Memory | KeyValueMemory):
        memory_length = memory.memory_length
    if jit_compile is None and max_tokens < FEWEST_COMPILED_TOKENS:
        jit_compile = False
    session = GenerationSession(
        model,
        sampler,
        num_rows=max(1, len(prompt_ids)),
        memory_length=memory_length,
        memory=memory,
        jit_compile=jit_compile,
        **options,
    )
    token_ids = session.write(prompt_ids, max_tokens=max_tokens)
    return token_ids, session.memory
