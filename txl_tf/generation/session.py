"""Generation session, which continues texts and keeps their memory, and its file.

The file is a NumPy archive of memory, newest tokens and the hash of the model.

Shape letters used in this module: B rows of memory, W beams of a row, R = B * W rows, P prompt
length, S tokens to write, V vocabulary.
"""

import copy
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal, Self

import keras
import numpy as np
from keras import ops

from txl_tf import samplers
from txl_tf.config.base import DEFAULT_NEW_TOKENS
from txl_tf.config.generation import new_seed
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.generation.decoding import (
    NOTHING,
    DecodingState,
    Sampler,
    TokenRules,
    is_id,
    with_used,
    write_tokens,
)
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader, common_length
from txl_tf.layers.adaptive_softmax import check_token_ids
from txl_tf.layers.compiled_parts import compiled
from txl_tf.models.language_model import language_model_of
from txl_tf.models.memory import KeyValueMemory, Memory
from txl_tf.samplers import BeamSampler, RandomSampler, RepetitionPenalty
from txl_tf.storage.array_archives import read_array_archive
from txl_tf.storage.files import file_bytes, first_line, read_file, write_file
from txl_tf.storage.untrusted_files import storage_errors

CAPACITY = 64
"""Tokens that are kept beside memory before they are merged into it."""
FEWEST_COMPILED_TOKENS = 300
"""Fewer tokens take less time than the compilation by XLA."""

_FORMAT_VERSION = 3
# Most tokens that a session of a file has written. Positions are int32, so as many may follow.
_LAST_POSITION = 2**30
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
# Most bytes of an archive besides the data of its arrays.
_OVERHEAD_BYTES = 1 << 16
_REMEDY = "Name the file of a saved session."


def writing_engine(
    model: keras.Model, memory_length: int | None, num_rows: int, **choice: Any
) -> InferenceEngine:
    """Returns the engine that writes with a model, see `GenerationSession`."""
    config = model.config
    if memory_length is None and config.has_relative_positions and not config.recurrence:
        # A model without recurrence remembers the rest of a segment while it writes.
        memory_length = config.segment_length - 1
    return InferenceEngine(model, memory_length, num_rows=num_rows, writes=True, **choice)


def _token_writer(engine: InferenceEngine, rules: TokenRules) -> Any:
    """Returns `write_tokens` as a graph function, whose `settings` are those of `RandomSampler`."""

    def write(memory, constants, state, seeds, settings, max_tokens):
        def step(token_ids, is_active, recent):
            return engine.step(token_ids, is_active, memory, recent, constants)

        sampler = RandomSampler(*settings) if rules.sampler is None else rules.sampler
        chosen = rules._replace(sampler=sampler)
        return write_tokens(step, chosen, seeds, state, max_tokens, CAPACITY)

    return compiled(write, engine.model, engine.plan.compile_step)


def _beam_searcher(engine: InferenceEngine, rules: TokenRules) -> Any:
    """Returns beam search as a graph function.

    All beams of a row share the memory before the search, which is read once for all of them;
    only the states of tokens written since then move with the beams.
    """
    sampler, width = rules.sampler, rules.sampler.num_beams

    def search(memory, constants, recent, pending, is_used, tokens):
        """Fills `tokens` `(R, S)`; returns them by row, `(B, W, S)`, best first.

        Also returns the recent states, lengths and newest tokens `(B,)` of the best beams.
        """
        num_rows, max_tokens = tokens.shape
        firsts = ops.arange(0, num_rows, width, dtype="int32")
        is_finished = ops.zeros([num_rows], "bool")
        lengths = ops.zeros([num_rows], "int32")

        def continues(index, scores, tokens, state):
            return ops.logical_and(index < max_tokens, ops.logical_not(ops.all(state.is_finished)))

        def body(index, scores, tokens, state):
            is_active = ops.logical_not(state.is_finished)
            log_probs, recent = engine.step(
                state.pending, is_active, memory, state.recent, constants
            )
            log_probs = rules.apply(log_probs, state.is_used)
            scores, parents, next_ids = sampler(
                ops.reshape(log_probs, [-1, width, log_probs.shape[-1]]),
                scores,
                ops.reshape(state.is_finished, [-1, width]),
            )
            parents = ops.reshape(parents + firsts[:, None], [-1])  # among all rows
            next_ids = ops.reshape(next_ids, [-1])
            lengths = state.lengths + ops.cast(is_active, "int32")
            pending, is_finished, is_used, lengths, tokens = (
                ops.take(each, parents, axis=0)
                for each in (state.pending, state.is_finished, state.is_used, lengths, tokens)
            )
            pending = ops.where(is_finished, pending, next_ids)
            written = ops.where(is_finished, NOTHING, next_ids)
            tokens = ops.slice_update(tokens, [0, index], written[:, None])
            state = DecodingState(
                pending=pending,
                is_finished=ops.logical_or(is_finished, rules.is_stop(pending)),
                is_used=with_used(is_used, is_id(pending, log_probs.shape[-1])),
                lengths=lengths,
                position=state.position,
                recent=engine.select(recent, parents),
            )
            return index + 1, scores, tokens, state

        first = ops.convert_to_tensor(0, "int32")
        state = DecodingState(pending, is_finished, is_used, lengths, first, recent)
        scores = sampler.initial_scores(num_rows // width)
        _, _, tokens, state = ops.while_loop(continues, body, (first, scores, tokens, state))
        # The best beam of each row is its first.
        best = engine.select(state.recent, firsts)
        tokens = ops.reshape(tokens, [-1, width, max_tokens])
        return tokens, best, state.lengths[::width], state.pending[::width]

    return compiled(search, engine.model, engine.plan.compile_step)


class GenerationSession:
    """Generation session: one text per row, continued with its memory.

    The first call compiles programs, which later calls reuse. The weights of the model must not
    change.

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        sampler: function of logits `(R, V)` and seeds `(R, 2)` that returns token ids `(R,)`,
            such as `RandomSampler(0.8)`, or a `BeamSampler`; or `None`: `sibling` takes the
            settings of a `RandomSampler` without compiling again.
        num_rows: int. `R`.
        seed: optional int, or one for each row. The same seed writes the same text after the same
            prompt in any row. Defaults to `None`: a new one.
        memory_length: optional int. Tokens to remember, if not the model's.
        memory: optional `Memory` or `KeyValueMemory` of the preceding text.
        repetition_penalty: float, at least 1. See `RepetitionPenalty`; it applies to tokens read
            or written in this session.
        stop_token_ids: ints. A row ends with the first of them.
        excluded_token_ids: ints. They are never written.
        jit_compile: optional bool. If `True`, XLA compiles the work of every token: this takes
            seconds, and each token then half the time. Defaults to `None`: by the execution plan.
        storage_dtype: str. `"auto"` reads weights and memory in bfloat16 where that is faster: for
            one row of a model larger than the caches of a CPU. `"float32"` rounds nothing.

    Attributes:
        seeds: int32 vector `(R,)`.

    Example:
    ```python
    session = txl_tf.GenerationSession(model, txl_tf.samplers.RandomSampler(0.8))
    text = session.write(prompt_ids, max_tokens=100)
    more = session.write(max_tokens=100)
    session.save("session.npz")
    ```

    Raises:
        ValueError: If a value is out of its range.
    """

    def __init__(
        self,
        model: keras.Model,
        sampler: Sampler | BeamSampler | None,
        *,
        num_rows: int = 1,
        seed: int | Sequence[int] | None = None,
        memory_length: int | None = None,
        memory: Any = None,
        repetition_penalty: float = 1.0,
        stop_token_ids: Sequence[int] = (),
        excluded_token_ids: Sequence[int] = (),
        jit_compile: bool | None = None,
        storage_dtype: Literal["auto", "float32"] = "auto",
    ) -> None:
        self._model = model = language_model_of(model)
        self._vocabulary_size = model.config.vocabulary_size
        if num_rows < 1:
            raise ValueError(f"`num_rows` must be positive. Received: num_rows={num_rows}")
        check_token_ids(list(stop_token_ids), self._vocabulary_size, "stop_token_ids")
        check_token_ids(list(excluded_token_ids), self._vocabulary_size, "excluded_token_ids")
        if storage_dtype not in ("auto", "float32"):
            raise ValueError(
                f'`storage_dtype` must be "auto" or "float32". Received: {storage_dtype!r}'
            )
        self._beams = sampler if isinstance(sampler, BeamSampler) else None
        width, choice = 1, {"jit_compile": jit_compile, "storage_dtype": storage_dtype}
        if self._beams is not None:
            width, choice["storage_dtype"] = self._beams.num_beams, "float32"
        self._engine = writing_engine(model, memory_length, num_rows * width, **choice)
        self._prompt_reader = SegmentReader(self._engine)
        self._finish = compiled(self._engine.finish, model)
        self._has_penalty = repetition_penalty != 1.0
        self._num_rows = num_rows
        penalty = RepetitionPenalty(repetition_penalty)
        rules = TokenRules(sampler, penalty, stop_token_ids, excluded_token_ids)
        create = _token_writer if self._beams is None else _beam_searcher
        self._writer: Any = create(self._engine, rules)
        self._constants = self._engine.step_constants(num_rows * width)
        self._memory_of_steps = compiled(self._engine.memory_of_steps, model)
        self._restart(seed, memory, RandomSampler())

    def _restart(self, seed: Any, memory: Any, settings: RandomSampler) -> None:
        """Clears all rows and keeps the compiled functions."""
        num_rows = self._num_rows
        given = self._engine.initial_memory(num_rows) if memory is None else memory
        self._memory = self._engine.adopt(given)
        found = keras.tree.flatten(self._memory)[0].shape[0]
        if found != num_rows:
            raise ValueError(f"`memory` must have {num_rows} rows. Received: {found} rows")
        seeds = np.atleast_1d(np.asarray(new_seed() if seed is None else seed))
        is_integer = seeds.dtype.kind in "iu" and seeds.min() >= -(2**31) and seeds.max() < 2**31
        if not is_integer or seeds.shape not in ((1,), (num_rows,)):
            raise ValueError(
                f"`seed` must be a 32-bit int, or {num_rows}, one per row. Received: seed={seed}"
            )
        self.seeds = np.broadcast_to(seeds, (num_rows,)).astype(np.int32)
        self._settings = [
            ops.convert_to_tensor(np.full(num_rows, getattr(settings, name)), dtype)
            for name, dtype in samplers.SETTINGS.items()
        ]
        self._position = 0
        self._pending: np.ndarray | None = None
        self._is_used = np.zeros((num_rows, self._vocabulary_size), bool)
        self._begin_recent()

    def sibling(
        self, seed: int | Sequence[int] | None = None, settings: RandomSampler | None = None
    ) -> Self:
        """Returns a session with empty rows that shares the compiled functions.

        Args:
            seed: as for the constructor.
            settings: `RandomSampler` for a session without a sampler.
        """
        session = copy.copy(self)
        session._restart(seed, None, settings or RandomSampler())
        return session

    def _begin_recent(self) -> None:
        self._recent = self._engine.begin(self._memory, capacity=CAPACITY)
        self._read_memory = self._memory_of_steps(self._memory)
        self._lengths = np.zeros((self._num_rows,), np.int32)
        self._filled = 0

    @property
    def memory(self) -> Any:
        """Memory of all tokens read and written except the newest token of each row."""
        self._settle()
        return self._memory

    def _settle(self) -> None:
        if self._filled:
            lengths = common_length(self._lengths)
            self._memory = self._finish(self._memory, self._recent, lengths)
            self._begin_recent()

    def write(
        self, prompt_ids: np.ndarray | Sequence[np.ndarray] | None = None, *, max_tokens: int
    ) -> np.ndarray:
        """Reads the prompts, if given, and writes their continuation.

        Args:
            prompt_ids: int array `(R, P)`, or a sequence of `R` int vectors that may differ in
                length, or `None` to continue without one.
            max_tokens: int. `S`, the most to write.

        Returns:
            Int32 array `(R, S)`, or `(R, W, S)` from a `BeamSampler` that returns all beams. -1
            after the stop token of a row.

        Raises:
            ValueError: If there is nothing to write or to continue, or a token id is out of range.
        """
        if max_tokens < 1:
            raise ValueError(f"`max_tokens` must be positive. Received: max_tokens={max_tokens}")
        self._read(prompt_ids)
        if self._beams is None:
            return self._write_tokens(max_tokens)
        written = self._search(max_tokens, self._beams.num_beams)
        return written if self._beams.return_all_beams else written[:, 0]

    def _read(self, prompt_ids: Any) -> None:
        if prompt_ids is None:
            if self._pending is None:
                raise ValueError("A new session needs `prompt_ids`. Received: prompt_ids=None")
            if (self._lengths != self._filled).any():
                self._settle()  # rows that ended continue from their end
            return
        rows = [np.asarray(row) for row in prompt_ids]
        if len(rows) != self._num_rows or any(row.ndim != 1 or not row.size for row in rows):
            raise ValueError(
                f"`prompt_ids` must have a vector of token ids per row ({self._num_rows}), none of "
                f"them empty. Received: shapes={[row.shape for row in rows]}"
            )
        for row in rows:
            check_token_ids(row, self._vocabulary_size, "prompt_ids")
        self._note(rows)
        if self._pending is not None:
            rows = [np.append(token, row) for token, row in zip(self._pending, rows, strict=True)]
        rows = [row.astype(np.int32) for row in rows]
        if any(len(row) > 1 for row in rows):
            self._settle()
            read = [row[:-1] for row in rows]
            self._memory = self._prompt_reader.memory_after(read, self._memory)
            self._begin_recent()
        self._pending = np.array([row[-1] for row in rows], np.int32)

    def _used_tokens(self) -> Any:
        return ops.convert_to_tensor(self._is_used if self._has_penalty else self._is_used[:, :0])

    def _write_tokens(self, max_tokens: int) -> np.ndarray:
        written = np.full((self._num_rows, max_tokens), NOTHING, np.int32)
        is_finished = np.zeros((self._num_rows,), bool)
        used, done = self._used_tokens(), 0
        while done < max_tokens and not is_finished.all():
            if self._filled == CAPACITY:
                self._settle()
            count = min(max_tokens - done, CAPACITY - self._filled)
            state = DecodingState(
                pending=ops.convert_to_tensor(self._pending),
                is_finished=ops.convert_to_tensor(is_finished),
                is_used=used,
                lengths=ops.convert_to_tensor(self._lengths),
                position=ops.convert_to_tensor(self._position, "int32"),
                recent=self._recent,
            )
            (columns,), state = self._writer(
                self._read_memory,
                self._constants,
                state,
                ops.convert_to_tensor(self.seeds),
                self._settings,
                ops.convert_to_tensor(count, "int32"),
            )
            written[:, done : done + count] = np.asarray(columns)[:count].T
            done += count
            is_finished, used = np.asarray(state.is_finished), state.is_used
            self._pending, self._lengths = np.asarray(state.pending), np.asarray(state.lengths)
            self._filled += int(state.position) - self._position
            self._position, self._recent = int(state.position), state.recent
        self._note(written)
        return written

    def _search(self, max_tokens: int, width: int) -> np.ndarray:
        self._settle()
        tokens, recent, lengths, pending = self._writer(
            self._read_memory,
            self._constants,
            self._engine.begin(self._read_memory, width, max_tokens),
            ops.convert_to_tensor(np.repeat(self._pending, width), "int32"),
            ops.repeat(self._used_tokens(), width, axis=0),
            ops.full([self._num_rows * width, max_tokens], NOTHING, "int32"),
        )
        self._memory = self._finish(self._memory, recent, common_length(lengths))
        self._begin_recent()
        tokens, self._pending = np.asarray(tokens), np.asarray(pending)
        self._position += max_tokens
        self._note(tokens[:, 0])
        return tokens

    def _note(self, rows: Sequence[np.ndarray] | np.ndarray) -> None:
        for is_used, row in zip(self._is_used, rows, strict=True):
            is_used[row[row != NOTHING]] = True

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state of the session, without the weights; replaces a complete file.

        Raises:
            OSError: If the file, which may be remote, cannot be written.
        """
        write_session(os.fspath(path), self._arrays())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restores the state from a file that `save` wrote, seed included.

        The file is not trusted. If loading fails, the session stays unchanged.

        Raises:
            MismatchError: If the model, the number of rows or the memory length differ.
            DataDamagedError: If the file is damaged, or has ids or numbers out of range.
            InputMissingError: If the file does not exist.
        """
        expected = self._arrays()
        limits = {"pending": (-1, self._vocabulary_size - 1), "position": (0, _LAST_POSITION)}
        for part, array in expected.items():
            if part.startswith("memory") and array.dtype.kind == "i":
                limits[part] = 0, self._engine.memory_length or 0
        arrays = _read_session(os.fspath(path), expected, limits)
        _, position, pending, self._is_used, self.seeds, *memory = arrays.values()
        tensors = [ops.convert_to_tensor(each) for each in memory]
        self._memory = keras.tree.pack_sequence_as(self._memory, tensors)
        self._pending = None if (pending < 0).any() else pending
        self._position = int(position)
        self._begin_recent()

    def _arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays of a session file."""
        nothing = np.full((self._num_rows,), NOTHING, np.int32)
        leaves = enumerate(keras.tree.flatten(self.memory))
        return {
            "model": np.array(_model_identity(self._model)),
            "position": np.array(self._position),
            "pending": nothing if self._pending is None else self._pending,
            "is_used": self._is_used,
            "seeds": self.seeds,
            **{f"memory.{index}": np.asarray(leaf) for index, leaf in leaves},
        }


def _model_identity(model: keras.Model) -> str:
    """Returns the SHA-256 of a model's class, configuration and weights."""
    own = [_FORMAT_VERSION, type(model).__name__, model.config.to_dict(), model.compute_dtype]
    digest = hashlib.sha256(json.dumps(own).encode())
    for variable in sorted(model.weights, key=lambda each: each.path):
        digest.update(f"{variable.path} {tuple(variable.shape)} {variable.dtype}\n".encode())
        digest.update(np.ascontiguousarray(variable).tobytes())
    return digest.hexdigest()


def write_session(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file completely or not at all."""
    content = io.BytesIO()
    np.savez(content, **{name: array.view(_stored_dtype(array)) for name, array in arrays.items()})
    write_file(path, content.getvalue())


def _stored_dtype(array: np.ndarray) -> np.dtype:
    """Returns the dtype in a file: NumPy's format does not know bfloat16."""
    return np.dtype(np.uint16) if array.dtype.name == "bfloat16" else array.dtype


def _read_session(
    path: str, expected: Mapping[str, np.ndarray], limits: Mapping[str, tuple[int, int]]
) -> dict[str, np.ndarray]:
    """Reads the arrays of a file that is not trusted.

    They have the types and shapes of those expected, the same `model`, and values within `limits`.
    Raises InputMissingError, MismatchError and DataDamagedError.
    """
    most = sum(each.nbytes for each in expected.values()) + _OVERHEAD_BYTES
    differs = MismatchError(
        "The session was saved with another model, number of rows or memory length.",
        where=path,
        remedy="Load it with the same model, rows and memory length, or begin a new session.",
    )
    with storage_errors("The session cannot be read", path, _REMEDY):
        try:
            if file_bytes(path) > most:
                raise differs
            found = _arrays_of(io.BytesIO(read_file(path, max_bytes=most)), most, path)
        except FileNotFoundError as error:
            raise InputMissingError("The file is missing.", where=path, remedy=_REMEDY) from error
    stored = {name: (_stored_dtype(each), each.shape) for name, each in expected.items()}
    if {name: (each.dtype, each.shape) for name, each in found.items()} != stored:
        raise differs
    arrays = {name: found[name].view(each.dtype) for name, each in expected.items()}
    if arrays["model"] != expected["model"]:
        raise differs
    for name, array in arrays.items():
        low, high = limits.get(name, (-_LARGEST_FLOAT, _LARGEST_FLOAT))
        # NaN is in no range.
        if name != "model" and not ((array >= low) & (array <= high)).all():
            raise _damaged(f"`{name}` has a value outside of {low:g} to {high:g}", path)
    return arrays


def check_session(file: IO[bytes], where: str) -> int:
    """Returns the number of arrays of a file, whatever its model; DataDamagedError without any."""
    return len(_arrays_of(file, None, where))


def _arrays_of(file: IO[bytes], max_bytes: int | None, where: str) -> dict[str, np.ndarray]:
    try:
        arrays = read_array_archive(file, max_bytes=max_bytes)
    except ValueError as error:
        raise _damaged(first_line(error), where) from error
    if "model" not in arrays:
        raise _damaged("the array `model` is missing", where)
    return arrays


def _damaged(what: str, where: str) -> DataDamagedError:
    return DataDamagedError(
        f"The file is damaged or no session: {what}.", where=where, remedy="Begin a new session."
    )


def generate(
    model: keras.Model,
    prompt_ids: np.ndarray | Sequence[np.ndarray],
    *,
    max_tokens: int = DEFAULT_NEW_TOKENS,
    sampler: Sampler | BeamSampler | str | None = None,
    memory: Any = None,
    memory_length: int | None = None,
    jit_compile: bool | None = None,
    **options: Any,
) -> tuple[np.ndarray, Any]:
    """Continues prompts.

    For more than one call with a model, a `GenerationSession` compiles once.

    Args:
        model: as for `GenerationSession`.
        prompt_ids: int array `(R, P)`, or a sequence of `R` int vectors that may differ in length;
            at least one token in every row.
        max_tokens: int. `S`, the most to write after the prompt. Defaults to `128`.
        sampler: optional sampler, or its name in `txl_tf.samplers`. Defaults to `None`: a
            `RandomSampler`.
        memory: optional memory of the text before the prompt, from the model or this function.
        memory_length: optional int. Tokens to remember. Defaults to `None`: as many as `memory`
            or the model.
        jit_compile: optional bool. Defaults to `None`: XLA compiles from a few hundred tokens on,
            if the execution plan of the device does.
        **options: arguments of `RandomSampler`, such as `temperature`, if there is no `sampler`;
            and other arguments of `GenerationSession`, such as `seed`.

    Returns:
        Tuple of the array of `GenerationSession.write`, and the memory of all tokens but the last
        of each row. To continue, pass this memory, and the last token as the prompt.

    Raises:
        ValueError: If a prompt is empty, an id or a setting is out of range, or `max_tokens`
            is not positive.
    """
    if memory_length is None and isinstance(memory, Memory | KeyValueMemory):
        memory_length = memory.memory_length
    if jit_compile is None and max_tokens < FEWEST_COMPILED_TOKENS:
        jit_compile = False
    session = GenerationSession(
        model,
        samplers.choose(sampler, options),
        num_rows=max(1, len(prompt_ids)),
        memory_length=memory_length,
        memory=memory,
        jit_compile=jit_compile,
        **{name: each for name, each in options.items() if name not in samplers.SETTINGS},
    )
    written = session.write(prompt_ids, max_tokens=max_tokens)
    return written, session.memory
