"""Inference engine, which reads and writes tokens with fixed weights, and its plan by device.

Shape letters used in this module:
  B rows of memory, W rows that share one of them, R = B * W rows, T tokens, M memory length,
  K = M + T key length, C tokens that attend together or capacity for recent tokens, D hidden
  width, N heads, H head width, V vocabulary, L layers.
"""

import dataclasses
import functools
from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import RELATIVE_ENCODINGS, ModelConfig, RecurrentConfig
from txl_tf.inference.blocks import (
    BatchedBlock,
    OnChipBlock,
    PerHeadBlock,
    StackedTokenBlock,
    TokenBlock,
    distance_keys,
    in_pairs,
    product_in_halves,
    written,
)
from txl_tf.layers.adaptive_softmax import check_rank
from txl_tf.layers.attention import VisibleKeys
from txl_tf.models.language_model import language_model_of
from txl_tf.models.memory import KeyValueMemory, Memory, check_memory
from txl_tf.tpu_kernels.attention_plan import AttentionKernel, places_of

_BLOCKS = {"batched": BatchedBlock, "per_head": PerHeadBlock, "on_chip": OnChipBlock}
# Folding reads less and computes more, and costs more above this number of rows.
_MAX_FOLDED_ROWS = 2
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
        `jit_compile` overrides the choice. `storage_dtype="auto"` lets steps round.
        """
        if keras.backend.backend() == "jax":
            jit_compile = True  # as every program of JAX
        on_cpu = device == "CPU" and not is_distributed
        compiles = not on_cpu or config.hidden_dim <= _WIDEST_COMPILED_ON_CPU
        compiles = (compiles if jit_compile is None else jit_compile) and not is_distributed
        if keeps_states:
            return cls(kernel="model", compile_read=compiles)
        if attention_kernel is not None and not writes:
            return cls(
                kernel="on_chip",
                attention_kernel=attention_kernel,
                tokens_per_read=_TOKENS_PER_READ_ON_CHIP,
                compile_read=compiles,
            )
        if on_cpu and num_rows == 1 and not writes and not jit_compile:
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
        plan: `ExecutionPlan`.
        memory_length: int, 1 for recurrent models.
    """

    keeps_states = True
    """True if memory is the model's own."""

    def __new__(cls, model, memory_length=None, keeps="auto", **options):
        if keeps not in ("auto", "keys_and_values", "hidden_states"):
            raise ValueError(
                '`keeps` must be "auto", "keys_and_values" or "hidden_states". '
                f"Received: keeps={keeps!r}"
            )
        is_relative = language_model_of(model).config.has_relative_positions
        keeps_keys = keeps == "keys_and_values" or (keeps == "auto" and is_relative)
        return super().__new__(_KeyValueEngine if keeps_keys else InferenceEngine)

    def __init__(
        self, model, memory_length=None, keeps="auto", *, segment_length=None, plan=None, **choice
    ):
        self.model = model = language_model_of(model)
        self._is_recurrent = not isinstance(model.config, ModelConfig)
        if self._is_recurrent and memory_length not in (None, 1):
            raise ValueError(
                "`memory_length` must be None or 1 for a recurrent model. "
                f"Received: memory_length={memory_length}"
            )
        if memory_length is None:
            memory_length = 1 if self._is_recurrent else model.config.effective_memory_length
        self.memory_length = memory_length
        self.segment_length = segment_length or model.config.segment_length
        self.plan = plan or ExecutionPlan.choose(
            model.config,
            device=device_of(model),
            keeps_states=self.keeps_states,
            # Models in bfloat16 read half the bytes already.
            memory_length=memory_length if model.compute_dtype == "float32" else 0,
            **choice,
        )

    def initial_memory(self, num_rows):
        """Returns the `KeyValueMemory` or `Memory` of `B` rows that have read nothing yet."""
        if self._is_recurrent:
            return self.model.initial_memory(num_rows)
        return self.model.initial_memory(num_rows, self.memory_length)

    def adopt(self, memory):
        """Returns the memory of the model or of another engine as one of this engine.

        Raises ValueError if it is of another kind or length.
        """
        expected = self.initial_memory(1)
        kinds = [
            (type(each), *(getattr(leaf, "shape", ())[1:] for leaf in keras.tree.flatten(each)))
            for each in (memory, expected)
        ]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"`memory` must be like {expected}, with any rows. Received: memory={memory}"
            )
        return memory

    def constants(self, num_tokens):
        """Computes the tensors for reading at most `num_tokens` that depend only on the weights."""
        return ()

    def read(self, token_ids, memory, *, lengths=None, document_starts=None, constants=None):
        """Reads tokens; more than `segment_length` with the results of one segment after the other.

        Args:
            token_ids: int tensor `(B, T)`, or embedded inputs, see `TransformerXL`.
            memory: memory of the preceding tokens.
            lengths: optional int32 tensor `(B,)`, from 0 to `T`: the tokens of each row that
                enter memory. Without relative positions it must be a scalar.
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
        if self.keeps_states and (token_ids.shape[1] or 0) > self.segment_length:
            return self._read_segments(token_ids, memory, lengths, document_starts)
        hidden_states, memory = self.hidden_states(
            token_ids, memory, lengths, document_starts, constants
        )
        return hidden_states[-1], memory

    def _read_segments(self, token_ids, memory, lengths, document_starts):
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
        """Returns the hidden states of all layers, and the next memory; arguments are as in `read`.

        They are a list of the embeddings and the output of every block, `L + 1` tensors
        `(B, T, D)`; of a recurrent model only the last output. With the model's own memory at
        most one segment is read.
        """
        self.model.check_inputs(token_ids)
        if lengths is not None and document_starts is not None:
            raise ValueError("`lengths` and `document_starts` exclude each other. Received: both")
        return self._hidden_states(token_ids, memory, lengths, document_starts, constants)

    def _hidden_states(self, token_ids, memory, lengths, document_starts, constants):
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
        """Scores the tokens `(B, T)` after `token_ids`: nats, float32 `(B, T)`, and next memory.

        Further arguments are as in `read`.
        """
        hidden, memory = self.read(token_ids, memory, **as_read)
        return self.model.negative_log_likelihood(hidden, target_ids), memory

    def step_constants(self, num_rows):
        """Computes the tensors for `step` of `R` rows that depend only on the weights."""
        return ()

    def begin(self, memory, rows_per_memory=1, capacity=64):
        """Creates the room for tokens that are read one at a time.

        `memory` is of `B` rows, each shared by `rows_per_memory` rows, and `capacity` the most
        tokens before `finish`. Raises ValueError if the plan's kernel cannot read single tokens.
        """
        return keras.tree.map_structure(
            lambda each: ops.repeat(each, rows_per_memory, axis=0), memory
        )

    def memory_of_steps(self, memory):
        """Returns memory as `step` reads it until `finish`, rounded if the plan says so."""
        return memory

    def step(self, token_ids, is_active, memory, recent, constants):
        """Reads one token `(R,)` per row; returns logits `(R, V)` and the next `recent`.

        `is_active`, bool `(R,)`, is false for rows whose tokens are not kept; with keys and values
        `finish` drops them. `memory` comes from `memory_of_steps`, `recent` from `begin` or
        `step`, `constants` from `step_constants`.
        """
        hidden, read = self.model(ops.expand_dims(token_ids, 1), recent)
        logits = self.model.logits_of(hidden)

        # The model's memory cannot drop a token later, so finished rows keep their old memory.
        def kept(new, old):
            is_kept = ops.reshape(is_active, [-1] + [1] * (len(old.shape) - 1))
            return ops.where(is_kept, new, old)

        return logits[:, 0], keras.tree.map_structure(kept, read, recent)

    def select(self, recent, rows):
        """Returns `recent` with its rows in the order of `rows`, int32 `(R,)`; a row may recur."""
        return keras.tree.map_structure(lambda each: ops.take(each, rows, axis=0), recent)

    def finish(self, memory, recent, lengths):
        """Merges the tokens that were read one at a time into memory, which is returned.

        `recent` has the `B` rows of memory; `lengths`, int32 `(B,)` or a scalar, are the tokens of
        each row to remember.
        """
        return recent


class _FoldedDistances(NamedTuple):
    """Position projections of queries, which read fewer bytes for one or two rows.

    One table of sinusoids `(D, M + 1)` for all layers replaces the keys of all distances of each.
    Its column `j` belongs to the distance `M - j`. The projection is `(N, H, D)`.
    """

    projection: Any
    sinusoids: Any


class _KeyValueEngine(InferenceEngine):
    """Engine of a `TransformerXL` with relative positions, whose memory is a `KeyValueMemory`.

    Keys and values, and the keys of all distances, depend on fixed weights and are computed once.
    Several segments are read at once, because large products take less time per token.

    `step` does not change memory: moving it by one place for every token would cost more than all
    arithmetic on it. The `recent` tokens are a `KeyValueMemory` of their own with `C` places, which
    fills from the left. Its valid length is a scalar, the same for all rows. If the plan stacks
    layers, the recent tokens and the memory of steps are one tensor of all layers.
    """

    keeps_states = False

    def __init__(self, model, *arguments, **options):
        super().__init__(model, *arguments, **options)
        model, config, plan = self.model, self.model.config, self.plan
        if not config.has_relative_positions:
            raise ValueError(
                '`keeps="keys_and_values"` needs a model with `position_encoding` '
                f"{' or '.join(RELATIVE_ENCODINGS)}. "
                f"Received: position_encoding={getattr(config, 'position_encoding', None)!r}"
            )
        self._num_places = plan.num_places(self.memory_length)
        self._biases = biases = {}
        if config.share_attention_biases:
            biases |= {"content_bias": model.content_bias, "position_bias": model.position_bias}
        self._blocks = [_BLOCKS[plan.kernel](block, biases) for block in model.blocks]
        if plan.stacks_layers:
            create = StackedTokenBlock
        else:
            product = product_in_halves if plan.splits_products else ops.matmul
            create = functools.partial(TokenBlock, product=product)
        self._token_blocks = [create(block, biases) for block in model.blocks]
        self._stored = in_pairs if plan.rounds_steps else lambda tensor, axis: tensor

    def initial_memory(self, num_rows):
        return self._empty(num_rows, self._num_places)

    def _empty(self, num_rows, num_places):
        config = self.model.config
        shape = (num_rows, num_places, config.num_heads, config.head_dim)
        zeros = ops.zeros(shape, self.model.compute_dtype)
        empty = [block.arranged(zeros, zeros) for block in self._blocks]
        return KeyValueMemory(*zip(*empty, strict=True), ops.zeros((num_rows,), "int32"))

    def adopt(self, memory):
        if isinstance(memory, Memory):
            unused = [[0, 0], [self._num_places - self.memory_length, 0], [0, 0]]
            pairs = zip(self._blocks, memory.states, strict=True)
            projected = [block.project(ops.pad(state, unused)) for block, state in pairs]
            memory = KeyValueMemory(*zip(*projected, strict=True), memory.valid_length)
        if not isinstance(memory, KeyValueMemory):
            raise ValueError(
                "`memory` must be a `Memory` or a `KeyValueMemory`. "
                f"Received: memory of type {type(memory).__name__}"
            )
        if (len(memory.keys[0].shape) == 3) != (self.plan.kernel == "on_chip"):
            raise ValueError(
                "`memory` of the kernel 'on_chip' fits only engines with this kernel, and other "
                f"memory only the other engines. This engine has the kernel {self.plan.kernel!r}. "
                f"Received: keys of shape {tuple(memory.keys[0].shape)}"
            )
        if memory.memory_length != self._num_places:
            raise ValueError(
                f"`memory` must be of length {self._num_places}. "
                f"Received: a memory of length {memory.memory_length}"
            )
        # An engine with a longer memory may have filled more positions.
        valid_length = ops.minimum(memory.valid_length, self.memory_length)
        return memory._replace(valid_length=valid_length)

    def constants(self, num_tokens):
        if self.plan.kernel != "on_chip":
            return self._position_keys(self.memory_length + self._tokens_together(num_tokens))
        kernel = self.plan.attention_kernel
        plan = self._blocks[0].plan_of_table(kernel, num_tokens, self._num_places)
        encoding = self.model.sinusoids(plan.padded_key_length)
        return tuple(block.distance_table(plan, encoding) for block in self._blocks)

    def _position_keys(self, key_length):
        """Returns the `distance_keys` of all layers, of `K` distances."""
        encoding = self.model.sinusoids(key_length)
        return tuple(
            distance_keys(block.attention, key_length, encoding) for block in self.model.blocks
        )

    def _tokens_together(self, num_tokens):
        """Returns how many of `T` tokens attend together, which sets the number of distances."""
        together = self.plan.tokens_together
        if together is None:
            return num_tokens
        num_segments = max(1, together // self.segment_length)
        return min(num_tokens, num_segments * self.segment_length)

    def _hidden_states(self, token_ids, memory, lengths, document_starts, constants):
        check_memory(memory, KeyValueMemory, token_ids)
        num_tokens = ops.shape(token_ids)[1]
        constants = constants or self.constants(num_tokens)
        hidden = self.model.embed(token_ids)  # [B, T, D]
        hidden_states, remembered = [hidden], []
        masks = self._masks(num_tokens, memory.valid_length, document_starts)
        for block, keys, values, distances in zip(
            self._blocks, memory.keys, memory.values, constants, strict=True
        ):
            hidden, *keys_and_values = block(hidden, keys, values, masks, distances, lengths)
            hidden_states.append(hidden)
            remembered.append(keys_and_values)
        num_read = num_tokens if lengths is None else lengths
        valid_length = functional.next_valid_length(
            memory.valid_length, self.memory_length, num_read, document_starts
        )
        return hidden_states, KeyValueMemory(*zip(*remembered, strict=True), valid_length)

    def _masks(self, num_tokens, valid_length, document_starts):
        """Returns the argument `mask_scores` of the blocks."""
        memory_length = self.memory_length
        if self.plan.kernel == "on_chip":
            return VisibleKeys(
                self.plan.attention_kernel,
                self._num_places,
                valid_length,
                self.model.config.farthest(memory_length),
                document_starts,
                self.segment_length,
                num_unused=self._num_places - memory_length,
            )
        same_document = None
        if document_starts is not None:
            same_document = functional.same_document_mask(document_starts, memory_length)
        if self.plan.kernel != "per_head":
            return self._mask_scores(num_tokens, valid_length, same_document)
        together = self._tokens_together(num_tokens)
        masks = []
        for start in range(0, num_tokens, together):
            stop = min(start + together, num_tokens)
            filled = ops.minimum(valid_length + start, memory_length)
            of_part = None
            if same_document is not None:
                of_part = same_document[:, :, start:stop, start : memory_length + stop]
            scores = self._mask_scores(stop - start, filled, of_part)
            masks.append(ops.squeeze(scores, axis=1))  # [B, C, M + C + 1]
        return tuple(masks)

    def _mask_scores(self, num_tokens, valid_length, same_document):
        """Returns scores over distances, `(B, 1, T, K + 1)`: 0 where attention is allowed."""
        memory_length, segment_length = self.memory_length, self.segment_length
        farthest = self.model.config.farthest(memory_length)
        allowed = functional.causal_memory_mask(num_tokens, memory_length, valid_length, farthest)
        if segment_length != num_tokens:
            # Read one after the other, a segment forgets all tokens before its memory.
            queries = ops.arange(num_tokens, dtype="int32")
            first_key = queries // segment_length * segment_length
            keys = ops.arange(memory_length + num_tokens, dtype="int32")
            own_segment = ops.expand_dims(keys, 0) >= ops.expand_dims(first_key, 1)  # [T, K]
            allowed = ops.logical_and(allowed, ops.expand_dims(own_segment, (0, 1)))
        if same_document is not None:
            allowed = ops.logical_and(allowed, same_document)
        scores = functional.mask_scores(ops.zeros((), self.model.compute_dtype), allowed)
        return functional.unshift_padded(scores)

    def step_constants(self, num_rows):
        """Returns the `kernels` and the `_FoldedDistances` or `distance_keys` of all layers.

        If the plan stacks layers, both are stacked, and a third part holds the `variables`.
        """
        kernels = tuple(block.kernels() for block in self._token_blocks)
        key_length = self.memory_length + 1
        if self.plan.stacks_layers:
            kernels = [tuple(self._stored(each, 0) for each in block) for block in kernels]
            distances = [
                (self._stored(ops.swapaxes(keys, 1, 2), -1), added)
                for keys, added in self._position_keys(key_length)
            ]
            variables = [[each.value for each in block.variables()] for block in self._token_blocks]
            return _stacked(list(zip(kernels, distances, variables, strict=True)))
        has_sinusoids = self.model.config.position_encoding == "transformer_xl"
        if not has_sinusoids or num_rows > _MAX_FOLDED_ROWS:
            return kernels, self._position_keys(key_length)
        sinusoids = ops.transpose(self.model.sinusoids(key_length))
        return kernels, tuple(
            _FoldedDistances(block.folding_projection(), sinusoids) for block in self._token_blocks
        )

    def begin(self, memory, rows_per_memory=1, capacity=64):
        if self.plan.kernel != "batched":
            raise ValueError(
                "Reading single tokens needs an engine that was created with `writes=True`. "
                f"Received: an engine with the kernel {self.plan.kernel!r}"
            )
        num_rows = memory.valid_length.shape[0] * rows_per_memory
        keys, values, _ = self._empty(num_rows, capacity)
        if self.plan.stacks_layers:
            keys, values = ops.stack(keys), ops.stack(values)
        return KeyValueMemory(keys, values, ops.zeros((), dtype="int32"))

    def memory_of_steps(self, memory):
        if not self.plan.stacks_layers:
            return memory
        keys = ops.stack([self._stored(ops.swapaxes(k, 2, 3), -1) for k in memory.keys])
        values = ops.stack([self._stored(v, -2) for v in memory.values])
        return memory._replace(keys=keys, values=values)

    def step(self, token_ids, is_active, memory, recent, constants):
        position, capacity = recent.valid_length, recent.keys[0].shape[3]
        memory_length = memory.keys[0].shape[2 if self.plan.stacks_layers else 3]
        shape = token_ids.shape[0], memory_length, capacity
        mask_scores = self._step_mask_scores(memory.valid_length, *shape, position)

        def read(block, hidden, memory, recent, kernels, distances):
            def over_distances(query):
                scores = _distance_scores(block, query, distances)  # [R, N, 1, M + 1]
                return _by_place(scores, memory_length, capacity, position)

            return block(hidden, memory, recent, position, mask_scores, kernels, over_distances)

        hidden = self.model.embedding(ops.expand_dims(token_ids, 1))  # [R, 1, D]
        if self.plan.stacks_layers:
            hidden, keys, values = self._read_stacked(read, hidden, memory, recent, constants)
        else:
            kept = []
            memories = zip(*memory[:2], strict=True), zip(*recent[:2], strict=True)
            for block, *of_layer in zip(self._token_blocks, *memories, *constants, strict=True):
                hidden, new = read(block, hidden, *of_layer)
                kept.append(new)
            keys, values = zip(*kept, strict=True)
        logits = ops.squeeze(self.model.logits_of(hidden), axis=1)
        return logits, KeyValueMemory(keys, values, position + 1)

    def _read_stacked(self, read, hidden, memory, recent, constants):
        """Reads a token by a loop over stacked layers, which compiles in a tenth of the time.

        Every layer computes with the first block and its own weights.
        """
        block, num_layers = self._token_blocks[0], len(self._token_blocks)
        shared = [(each, each.value) for each in self._biases.values()]

        def body(layer, hidden, *kept):
            tensors = (memory[:2], recent[:2], *constants)
            *memories, kernels, distances, values = keras.tree.map_structure(
                lambda each: None if each is None else _at(each, layer), tensors
            )
            own = list(zip(block.variables(), values, strict=True))
            with keras.StatelessScope(shared + own):
                hidden, new = read(block, hidden, *memories, kernels, distances)
            pairs = zip(kept, new, strict=True)
            kept = [ops.slice_update(all_, [layer, 0, 0, 0, 0], one[None]) for all_, one in pairs]
            return layer + 1, hidden, *kept

        empty = ops.zeros_like(recent.values[..., :1, :])  # [L, R, N, 1, H]
        first = ops.convert_to_tensor(0, "int32")
        state = first, hidden, empty, empty
        _, hidden, *new = ops.while_loop(lambda layer, *_: layer < num_layers, body, state)
        return hidden, *written(recent[:2], recent.valid_length, *new)

    def _step_mask_scores(self, valid_length, num_rows, memory_length, capacity, position):
        """Returns masks as scores for all layers, `(R, 1, 1, M)` and `(R, 1, 1, C)`."""
        reach = self.memory_length
        farthest = self.model.config.farthest(reach)
        farthest = reach if farthest is None else farthest
        places = ops.arange(memory_length + capacity, dtype="int32")
        distances = memory_length + position - places
        nearest = 1 if memory_length > 0 else 0  # a token in place is one of its own keys
        in_reach = ops.logical_and(distances >= nearest, distances <= farthest)
        first_filled = reach - valid_length
        first_filled = ops.repeat(first_filled, num_rows // valid_length.shape[0], axis=0)
        filled = ops.expand_dims(places, 0) >= ops.expand_dims(first_filled, 1)
        allowed = ops.logical_and(filled, ops.expand_dims(in_reach, 0))
        allowed = ops.reshape(allowed, [num_rows, 1, 1, memory_length + capacity])
        zero = functional.at_least_float32(ops.zeros((), self.model.compute_dtype))
        scores = functional.mask_scores(zero, allowed)
        return scores[..., :memory_length], scores[..., memory_length:]

    def select(self, recent, rows):
        # Reordered rows share their memory, so only the recent tokens move.
        taken = ([ops.take(each, rows, axis=0) for each in tensors] for tensors in recent[:2])
        keys, values = map(tuple, taken)
        return recent._replace(keys=keys, values=values)

    def finish(self, memory, recent, lengths):
        memory_length = self.memory_length
        if self.plan.stacks_layers:
            recent = recent._replace(
                keys=ops.unstack(recent.keys), values=ops.unstack(recent.values)
            )
        keys, values = (
            tuple(
                functional.last_positions(
                    ops.concatenate(pair, axis=axis), axis, lengths, memory_length
                )
                for pair in zip(old, new, strict=True)
            )
            for axis, old, new in ((3, memory.keys, recent.keys), (2, memory.values, recent.values))
        )
        valid_length = functional.next_valid_length(memory.valid_length, memory_length, lengths)
        return KeyValueMemory(keys, values, valid_length)


def _stacked(layers):
    """Stacks the tensors of equal structures; `None` stays."""
    return keras.tree.map_structure(
        lambda *each: None if each[0] is None else ops.stack(each), *layers
    )


def _at(stacked, layer):
    """Returns one of stacked tensors; XLA slices where it reads, and a gather would copy."""
    shape = [1, *stacked.shape[1:]]
    return ops.reshape(ops.slice(stacked, [layer] + [0] * (len(shape) - 1), shape), shape[1:])


def _distance_scores(block, query, distances):
    """Scores queries `(R, N, 1, H)`: `(R, N, 1, M + 1)`, column `j` for the distance `M - j`."""
    heads_first = ops.transpose(ops.squeeze(query, axis=2), [1, 0, 2])  # [N, R, H]
    if isinstance(distances, _FoldedDistances):
        folded = ops.matmul(heads_first, distances.projection)  # [N, R, D]
        num_heads, num_rows, width = folded.shape
        scores = ops.matmul(ops.reshape(folded, [-1, width]), distances.sinusoids)
        scores = ops.reshape(scores, [num_heads, num_rows, scores.shape[-1]])
    else:
        keys, added = distances
        scores = block.scores(heads_first, keys)
        if added is not None:
            scores = scores + added
        scores = scores[..., 1:]  # column 0 belongs to no distance
    return ops.expand_dims(ops.transpose(scores, [1, 0, 2]), axis=2)


def _by_place(scores, memory_length, capacity, position):
    """Reorders scores `(R, N, 1, D)` from distances `D - 1` to 0 to key positions.

    Returns scores of memory, of the recent tokens, valid only up to `position`, and of the token
    itself.
    """
    num_places = memory_length + capacity
    padding = [num_places + 1 - scores.shape[-1], capacity - 1]
    padded = ops.pad(scores, [[0, 0], [0, 0], [0, 0], padding])
    shape = [*scores.shape[:2], 1, num_places]
    by_place = ops.slice(padded, [0, 0, 0, capacity - position], shape)
    return by_place[..., :memory_length], by_place[..., memory_length:], scores[..., -1:]
