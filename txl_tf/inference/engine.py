"""Inference engine, which reads and writes tokens with fixed weights, and its plan by device.

Shape letters used in this module:
  B rows of memory, W rows that share one of them, R = B * W rows, T tokens,
  M memory length, C capacity for recent tokens, D hidden width, V vocabulary.
"""

import dataclasses
from typing import Any, Literal

import keras
from keras import ops

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.inference.relative_model import RelativeModel
from txl_tf.layers.adaptive_softmax import check_rank
from txl_tf.models.language_model import language_model_of
from txl_tf.models.memory import KeyValueMemory, check_memory
from txl_tf.tpu_kernels.attention_plan import AttentionKernel, places_of

# Products of this many rows take the least time per token; more rows make large scores.
_TOKENS_PER_READ = 256
# Head by head, scores are small, and the copies of memory in each read dominate.
_TOKENS_PER_READ_PER_HEAD = 1024
# Scores of this many queries of a head fit in a cache, and their products are large enough.
_TOKENS_TOGETHER_PER_HEAD = 256
# On a TPU no scores are written, and a read moves all weights and copies memory.
_TOKENS_PER_READ_ON_CHIP = 1024
# On a CPU, XLA fuses the elementwise work that dominates narrow models, but its products are
# slower.
_WIDEST_COMPILED_ON_CPU = 64
# Caches of a CPU may hold fewer bytes of float32 weights and memory; rounding gains nothing there.
_FEWEST_ROUNDED_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """Kernel of an engine, the tokens it reads at once, and the parts to compile.

    An engine compiles nothing itself: its caller does so by the plan.
    """

    kernel: Literal["batched", "per_head", "on_chip", "model"]
    """Computation of attention; `"model"` calls the model itself."""
    attention_kernel: AttentionKernel | None = None
    """Settings of the kernel `"on_chip"`."""
    tokens_per_read: int = 0
    """Tokens of all rows to read at once; at least a segment is read."""
    tokens_together: int | None = None
    """Tokens that attend together; None means all."""
    compile_read: bool
    """True if XLA compiles the reading of segments."""
    compile_step: bool = False
    """True if XLA compiles the reading of single tokens."""
    splits_products: bool = True
    """True if the product of a single token is computed in two halves, for two threads."""
    stacks_layers: bool = False
    """True if the reading of a single token is a loop over layers, which compiles sooner."""
    rounds_steps: bool = False
    """True if that loop reads weights and memory in bfloat16, which are half the bytes. Sums stay
    float32."""

    @classmethod
    def choose(
        cls,
        config: ModelConfig | RecurrentConfig,
        *,
        device: str,
        num_rows: int | None = None,
        keeps_states: bool = False,
        writes: bool = False,
        is_distributed: bool = False,
        jit_compile: bool | None = None,
        attention_kernel: AttentionKernel | None = None,
        memory_length: int = 0,
        storage_dtype: Literal["auto", "float32"] = "float32",
    ) -> "ExecutionPlan":
        """Returns the fastest plan for a device.

        `num_rows` are the rows read side by side, `None` if unknown. `keeps_states` is true if
        memory is the model's own, `writes` if tokens are also read one at a time, and
        `is_distributed` under a `tf.distribute.Strategy`, which compiles for itself.
        `jit_compile` overrides the choice. `storage_dtype="auto"` lets steps round, which then read
        `memory_of_steps`.
        """
        if keras.backend.backend() == "jax":
            jit_compile = True  # as every program of JAX
        on_cpu = device == "CPU" and not is_distributed
        is_per_head = (
            on_cpu and num_rows == 1 and not keeps_states and not writes and not jit_compile
        )
        compiles = not on_cpu or config.hidden_dim <= _WIDEST_COMPILED_ON_CPU
        compiles = compiles if jit_compile is None else jit_compile
        compiles = compiles and not is_distributed
        if keeps_states:
            return cls(kernel="model", compile_read=compiles)
        if attention_kernel is not None and not writes:
            return cls(
                kernel="on_chip",
                attention_kernel=attention_kernel,
                tokens_per_read=_TOKENS_PER_READ_ON_CHIP,
                compile_read=compiles,
            )
        if is_per_head:
            return cls(
                kernel="per_head",
                tokens_per_read=_TOKENS_PER_READ_PER_HEAD,
                tokens_together=_TOKENS_TOGETHER_PER_HEAD,
                compile_read=False,
            )
        compiles_step = not is_distributed if jit_compile is None else jit_compile
        is_one_row = on_cpu and num_rows == 1 and writes
        stacks_layers = is_one_row and compiles_step and memory_length > 0
        return cls(
            kernel="batched",
            tokens_per_read=_TOKENS_PER_READ,
            compile_read=compiles,
            compile_step=compiles_step,
            splits_products=device == "CPU",
            stacks_layers=stacks_layers,
            rounds_steps=stacks_layers
            and storage_dtype == "auto"
            and _gains_by_rounding(config, memory_length),
        )

    def num_places(self, memory_length: int) -> int:
        """Returns the number of positions in a memory that remembers `memory_length` tokens."""
        return places_of(memory_length) if self.kernel == "on_chip" else memory_length

    def segments_per_read(self, num_rows: int, segment_length: int) -> int:
        """Returns how many segments of a row are best read at once, at least 1."""
        return max(1, self.tokens_per_read // (num_rows * segment_length))


def _gains_by_rounding(config: ModelConfig, memory_length: int) -> bool:
    """True if a step reads more than caches hold, in sizes that the products need."""
    width = config.num_heads * config.head_dim
    sizes = (memory_length, config.hidden_dim, config.head_dim, config.intermediate_dim)
    layer = 2 * config.hidden_dim * (2 * width + config.intermediate_dim)
    num_bytes = 4 * config.num_layers * (layer + 2 * memory_length * width)
    return num_bytes >= _FEWEST_ROUNDED_BYTES and all(size % 2 == 0 for size in sizes)


def tokens_on_chip(num_rows: int, segment_length: int) -> int:
    """Returns how many tokens of a row the kernel `"on_chip"` reads at once, as whole segments."""
    return max(1, _TOKENS_PER_READ_ON_CHIP // (num_rows * segment_length)) * segment_length


def device_of(model: Any) -> str:
    """Returns the kind of device of a Keras model's weights: `"CPU"`, `"GPU"` or `"TPU"`."""
    name = str(getattr(model.weights[0].value, "device", "")).upper()
    if "TPU" in name:
        return "TPU"
    return "GPU" if "GPU" in name or "CUDA" in name else "CPU"


class InferenceEngine:
    """Inference engine that reads tokens with fixed weights and carries memory.

    Memory is an argument and a result, as in the model. With relative positions it holds keys and
    values: with fixed weights, attention would compute the same ones again from hidden states in
    every segment. Otherwise it is the model's own memory. The results equal the model's.

    Segments are read with `read` and `score`, single tokens with `step`. Memory stays unchanged
    during steps, new tokens are kept beside it, and `finish` merges both.

    ```python
    engine = txl_tf.InferenceEngine(model, num_rows=1)
    memory = engine.initial_memory(1)
    nll, memory = engine.score(token_ids[:, :-1], token_ids[:, 1:], memory)
    ```

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        memory_length: optional int. `M`, if not the model's.
        keeps: str. `"keys_and_values"`, `"hidden_states"`, which is the model's
            own memory and lets weights change between reads, or `"auto"`.
        segment_length: optional int. Tokens of a segment, if not the model's.
        plan: optional `ExecutionPlan`, if not the plan of the model's device.
        **choice: arguments of `ExecutionPlan.choose`, such as `num_rows`.

    Attributes:
        model: the model.
        plan: `ExecutionPlan`.
        segment_length: int.
        memory_length: int, 1 for recurrent models.
        keeps_states: bool. True if memory is the model's own.
    """

    def __init__(
        self,
        model,
        memory_length=None,
        keeps="auto",
        *,
        segment_length=None,
        plan=None,
        **choice,
    ):
        model = language_model_of(model)
        config = model.config
        if keeps not in ("auto", "keys_and_values", "hidden_states"):
            raise ValueError(
                '`keeps` must be "auto", "keys_and_values" or "hidden_states". '
                f"Received: keeps={keeps!r}"
            )
        self._is_recurrent = not isinstance(config, ModelConfig)
        if self._is_recurrent and memory_length not in (None, 1):
            raise ValueError(
                "`memory_length` must be None or 1 for a recurrent model. "
                f"Received: memory_length={memory_length}"
            )
        self.model = model
        self.keeps_states = keeps == "hidden_states" or (
            keeps == "auto" and not config.has_relative_positions
        )
        if memory_length is None:
            memory_length = 1 if self._is_recurrent else config.effective_memory_length
        self.memory_length = memory_length
        self.segment_length = segment_length or config.segment_length
        self.plan = plan or ExecutionPlan.choose(
            config,
            device=device_of(model),
            keeps_states=self.keeps_states,
            # Models in bfloat16 read half the bytes already.
            memory_length=memory_length if model.compute_dtype == "float32" else 0,
            **choice,
        )
        self._relative = (
            None if self.keeps_states else RelativeModel(model, self.plan, memory_length)
        )

    def initial_memory(self, num_rows):
        """Returns the `KeyValueMemory` or `Memory` of `B` rows that have read nothing yet."""
        if self._relative is not None:
            return self._relative.initial_memory(num_rows)
        if self._is_recurrent:
            return self.model.initial_memory(num_rows)
        return self.model.initial_memory(num_rows, self.memory_length)

    def adopt(self, memory):
        """Returns the memory of the model or of another engine as one of this engine.

        Raises ValueError if it is of another kind or length.
        """
        if self._relative is not None:
            return self._relative.adopt(memory)
        expected = self.initial_memory(1)
        kinds = [
            (type(each), *(getattr(leaf, "shape", ())[1:] for leaf in keras.tree.flatten(each)))
            for each in (memory, expected)
        ]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"`memory` must be like {expected}, of any rows. Received: memory={memory}"
            )
        return memory

    def constants(self, num_tokens):
        """Computes the tensors for `read` and `score` that depend only on the weights.

        `num_tokens` is the most that is read at once. Returns a tuple, possibly empty.
        """
        if self._relative is None:
            return ()
        return self._relative.position_keys_of_read(num_tokens, self.segment_length)

    def read(self, token_ids, memory, *, lengths=None, document_starts=None, constants=None):
        """Reads tokens.

        More than `segment_length` tokens are read as several segments, with the same results as
        one after the other.

        Args:
            token_ids: int tensor `(B, T)` with values in `[0, V)`, or embedded inputs, see
                `TransformerXL`.
            memory: memory of the preceding tokens.
            lengths: optional int32 tensor `(B,)`, from 0 to `T`: the tokens of each row that
                enter memory. With relative positions the tokens after them have no influence;
                other models take only a scalar, the same for all rows.
            document_starts: optional bool tensor `(B, T)`, as in `TransformerXL`;
                not with `lengths`.
            constants: optional result of `constants(T)`.

        Returns:
            Tuple of the hidden states `(B, T, D)` and the memory after each row's
            length.

        Raises:
            ValueError: If ids are out of range, or `lengths` are not possible for the model.
        """
        check_rank(token_ids, (2, 3), "(B, T)")
        num_tokens = token_ids.shape[1]
        if self._relative is None and num_tokens is not None and num_tokens > self.segment_length:
            return self._read_segments(token_ids, memory, lengths, document_starts)
        hidden_states, memory = self.hidden_states(
            token_ids, memory, lengths, document_starts, constants
        )
        return hidden_states[-1], memory

    def _read_segments(self, token_ids, memory, lengths, document_starts):
        """Reads segment by segment, with the model's own memory."""
        if lengths is not None:
            raise ValueError(
                f"`lengths` need inputs of at most one segment, {self.segment_length} tokens. "
                f"Received: {token_ids.shape[1]} tokens"
            )
        hidden = []
        for start in range(0, token_ids.shape[1], self.segment_length):
            piece = slice(start, start + self.segment_length)
            starts = None if document_starts is None else document_starts[:, piece]
            outputs, memory = self.read(token_ids[:, piece], memory, document_starts=starts)
            hidden.append(outputs)
        return ops.concatenate(hidden, axis=1), memory

    def hidden_states(self, token_ids, memory, lengths=None, document_starts=None, constants=None):
        """Returns the hidden states of all layers of a `TransformerXL`, and the next memory.

        The arguments are as in `read`; with the model's own memory at most one segment. The
        hidden states are a list of the embeddings and the output of every block, `L + 1` tensors
        `(B, T, D)`; for a recurrent model only the last output.
        """
        self.model.check_inputs(token_ids)
        if lengths is not None and document_starts is not None:
            raise ValueError("`lengths` and `document_starts` exclude each other. Received: both")
        if self._relative is not None:
            check_memory(memory, KeyValueMemory, token_ids)
            constants = constants or self.constants(ops.shape(token_ids)[1])
            return self._relative(
                token_ids, memory, lengths, document_starts, constants, self.segment_length
            )
        is_ragged = lengths is not None and (self._is_recurrent or len(lengths.shape) > 0)
        if is_ragged and not self.model.config.has_relative_positions:
            raise ValueError(
                "Rows of different lengths need a model with relative positions. "
                f"Received: lengths={lengths}"
            )
        if self._is_recurrent:
            outputs, memory = self.model(token_ids, memory)
            return [outputs], memory
        hidden_states, next_memory = self.model.hidden_states(
            token_ids, memory, document_starts=document_starts
        )
        if lengths is not None:
            next_memory = memory.extended(hidden_states[:-1], lengths)
        return hidden_states, next_memory

    def score(self, token_ids, target_ids, memory, **as_read):
        """Scores targets in nats, and returns the memory after each row's length.

        `target_ids`, int `(B, T)`, are the tokens after `token_ids`; further arguments are as in
        `read`. The nats are float32 `(B, T)`.
        """
        hidden, memory = self.read(token_ids, memory, **as_read)
        return self.model.negative_log_likelihood(hidden, target_ids), memory

    def step_constants(self, num_rows):
        """Computes the tensors for `step` of `R` rows that depend only on the weights.

        Returns a tuple, possibly empty; `num_rows` decides the fastest form.
        """
        if self._relative is None:
            return ()
        return self._relative.step_constants(num_rows, self.memory_length)

    def begin(self, memory, rows_per_memory=1, capacity=64):
        """Creates the room for tokens that are read one at a time.

        `memory` is of `B` rows, each shared by `rows_per_memory` rows, and `capacity` the most
        tokens before `finish`. Raises ValueError if the plan's kernel is not `"batched"`.
        """
        if self._relative is None:
            return keras.tree.map_structure(
                lambda each: ops.repeat(each, rows_per_memory, axis=0), memory
            )
        if self.plan.kernel != "batched":
            raise ValueError(
                "Reading single tokens needs the kernel 'batched'. "
                f"Received: an engine with the kernel {self.plan.kernel!r}"
            )
        num_rows = memory.valid_length.shape[0] * rows_per_memory
        return self._relative.initial_recent(num_rows, capacity)

    def memory_of_steps(self, memory):
        """Returns memory as `step` reads it until `finish`, rounded if the plan says so."""
        return memory if self._relative is None else self._relative.memory_of_steps(memory)

    def step(self, token_ids, is_active, memory, recent, constants):
        """Reads one token `(R,)` per row; returns log-probabilities `(R, V)` and the next `recent`.

        `is_active`, bool `(R,)`, is false for rows whose tokens are not kept; with keys and values
        `finish` drops them. `memory` comes from `memory_of_steps`, `recent` from `begin` or
        `step`, `constants` from `step_constants`.
        """
        if self._relative is not None:
            return self._relative.step(token_ids, memory, recent, constants)
        log_probs, read = self.model.log_probs(ops.expand_dims(token_ids, 1), recent)

        # The model's memory cannot drop a token later, so finished rows keep their old memory.
        def kept(new, old):
            is_kept = ops.reshape(is_active, [-1] + [1] * (len(old.shape) - 1))
            return ops.where(is_kept, new, old)

        return log_probs[:, 0], keras.tree.map_structure(kept, read, recent)

    def select(self, recent, rows):
        """Returns `recent` with its rows in the order of `rows`, int32 `(R,)`; a row may recur."""
        if self._relative is None:
            return keras.tree.map_structure(lambda each: ops.take(each, rows, axis=0), recent)
        # Reordered rows share their memory, so only the recent tokens move.
        taken = ([ops.take(each, rows, axis=0) for each in tensors] for tensors in recent[:2])
        keys, values = map(tuple, taken)
        return recent._replace(keys=keys, values=values)

    def finish(self, memory, recent, lengths):
        """Merges the tokens that were read one at a time into memory, which is returned.

        `recent` has the `B` rows of memory; `lengths`, int32 `(B,)` or a scalar, are the tokens of
        each row to remember.
        """
        if self._relative is None:
            return recent
        return self._relative.merge_recent(memory, recent, lengths)
