"""Loop over stacked layers that reads single tokens of few rows on a CPU.

It is the only reader that computes from the kernels of layers in their stead. It takes only
layers that it knows; for all others an engine calls the model. XLA compiles the loop in a third
of the time of the unrolled program, and reads weights and memory in half the bytes.

Shape letters used in this module: R rows, L layers, M memory length, J columns of distances,
C capacity for recent tokens, D hidden width, N heads, H head width.
"""

import math
from typing import Any, NamedTuple

import keras
from keras import ops

from txl_tf import functional
from txl_tf.inference.steps import KeyValueSteps
from txl_tf.layers.attention.operators import OneToken, written
from txl_tf.layers.attention.projections import DistanceKeys, KeysAndValues, Projections
from txl_tf.layers.attention.relative_attention import RelativeAttention
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.models.memory import KeyValueMemory
from txl_tf.models.reading import Reading
from txl_tf.models.transformer_xl import TransformerXL

# A matrix product unpacks its kernel into memory first. Up to this many rows, it costs less to read
# the pairs again for each row, from a cache.
_MOST_ROWS_APART = 4


class _LayerWeights(NamedTuple):
    """Numbers of one layer, or of all layers stacked: kernels and distances may be `in_pairs`."""

    projections: Any
    """Kernels of query, key and value side by side, `(D, 3 * N * H)`."""
    output: Any
    inner: Any
    outer: Any
    distances: Any
    """`(N, H, J)`."""
    biases: Any
    """Of contents and of positions, `(N, H)` each; of the inner and the outer layer."""
    norms: Any
    """Gain and offset of the norm of attention, then of the feed-forward layer."""


class StackedSteps(KeyValueSteps):
    """Memory of keys and values, with single tokens read by a loop over layers.

    A token reads every weight and all of memory once, and its time is that of reading them. The
    sizes below are of one row, 12 layers, D = `N * H` = 512, an inner width of 2,048, M = 1,600
    and C = 64, in float32.

    - Products with one vector are elementwise, so that XLA reads a layer's slice of the stacked
      numbers. For a matrix product it would copy the slice first: 12.6 MB of kernels and 6.6 MB of
      memory in each layer.
    - Recent tokens, 3.1 MB, stay outside of the loop, as XLA copied all of them for each layer. The
      loop carries only the token's own keys and values, 2 times `(R, L, N, 1, H)` or 49 KB, which
      are written into the recent ones after it.
    - With `rounds_steps` of the plan, weights and memory are bfloat16, half the bytes; sums are
      float32.
    """

    @staticmethod
    def is_possible(model: Any) -> bool:
        """True for a float32 model whose layers compute just as their classes here."""
        is_plain = type(model) is TransformerXL and model.compute_dtype == "float32"
        epsilon = model.config.layer_norm_epsilon
        return is_plain and all(_is_plain_block(each, epsilon) for each in model.blocks)

    def step_constants(self) -> _LayerWeights:
        distances = self._model.distance_keys(self._memory_length + 1, self._config)
        layers = [
            self._weights_of(block, each.keys)
            for block, each in zip(self._model.blocks, distances, strict=True)
        ]
        return keras.tree.map_structure(lambda *each: ops.stack(each), *layers)

    def _stored(self, tensor: Any) -> Any:
        return in_pairs(tensor) if self._plan.rounds_steps else tensor

    def _weights_of(self, block: Any, distance_keys: Any) -> _LayerWeights:
        model, attention, feed_forward = self._model, block.attention, block.feed_forward
        query, key, value, output, inner, outer = (each.kernel for each in _products(block))
        owner = attention if attention.own_biases else model
        norms = block.attention_norm, block.feed_forward_norm
        return _LayerWeights(
            projections=self._stored(ops.concatenate([query, key, value], axis=-1)),
            output=self._stored(_value(output)),
            inner=self._stored(_value(inner)),
            outer=self._stored(_value(outer)),
            distances=self._stored(distance_keys),
            biases=[
                _value(each)
                for each in (
                    owner.content_bias,
                    owner.position_bias,
                    feed_forward.inner.bias,
                    feed_forward.outer.bias,
                )
            ],
            norms=[[_value(each) for each in (norm.gamma, norm.beta)] for norm in norms],
        )

    def begin(self, memory: Any, rows_per_memory: int = 1, capacity: int = 64) -> KeyValueMemory:
        recent = super().begin(memory, rows_per_memory, capacity)
        return _map_tensors(lambda each: ops.stack(each, axis=1), recent)

    def memory_of_steps(self, memory: KeyValueMemory) -> KeyValueMemory:
        """Returns stacked memory: keys `(R, L, N, H, M)`, values `(R, L, N, M, H)`, or pairs."""
        return _map_tensors(lambda each: ops.stack(list(map(self._stored, each)), axis=1), memory)

    def memory_after_steps(self, memory: KeyValueMemory) -> KeyValueMemory:
        def layers(stacked: Any) -> tuple[Any, ...]:
            unstacked = ops.unstack(stacked, axis=1)
            return tuple(ops.concatenate(_numbers(each), axis=-2) for each in unstacked)

        return _map_tensors(layers, memory)

    def select(self, step_state: KeyValueMemory, rows: Any) -> KeyValueMemory:
        return step_state  # there are no beams

    def finish(self, memory: Any, step_state: KeyValueMemory, lengths: Any) -> KeyValueMemory:
        num_rows, reach = memory.valid_length.shape[0], self._memory_length
        of_rows = ops.broadcast_to(lengths, [num_rows])

        # Row by row, as each is copied on the way: 79 MB with the sizes above.
        def body(row, keys, values):
            new, old, length = (
                keras.tree.map_structure(lambda each: _at(each, row, 0)[None], each)
                for each in (step_state[:2], memory[:2], of_rows)
            )
            joined = ops.concatenate([old[0], self._stored(new[0])], axis=4)
            shifted = functional.last_positions(joined, 4, length, reach)
            keys = ops.slice_update(keys, [row, 0, 0, 0, 0], shifted)
            joined = ops.concatenate([*_numbers(old[1]), new[1]], axis=3)
            shifted = self._stored(functional.last_positions(joined, 3, length, reach))
            return row + 1, keys, ops.slice_update(values, [row, 0, 0, 0, 0], shifted)

        state = ops.convert_to_tensor(0, "int32"), *map(ops.zeros_like, memory[:2])
        _, keys, values = ops.while_loop(lambda row, *_: row < num_rows, body, state)
        valid_length = functional.next_valid_length(memory.valid_length, reach, lengths)
        return KeyValueMemory(keys, values, valid_length)

    def step(
        self,
        token_ids: Any,
        is_active: Any,
        memory: KeyValueMemory,
        step_state: KeyValueMemory,
        constants: _LayerWeights,
    ) -> tuple[Any, KeyValueMemory]:
        position, num_layers = step_state.valid_length, len(self._model.blocks)
        operator = _TokenOfStored(
            position=position,
            num_places_read=memory.keys.shape[4],
            capacity=step_state.keys.shape[4],
            num_rows=token_ids.shape[0],
        )
        reading = Reading(self._config, operator, self._memory_length)
        attend = operator.bind(reading.visible_keys(1, memory.valid_length), "float32")

        def body(layer, hidden, *new):
            kept = [
                KeysAndValues(*(_at(each, layer, 1) for each in part[:2]))
                for part in (memory, step_state)
            ]
            weights = keras.tree.map_structure(lambda each: _at(each, layer, 0), constants)
            hidden, of_token = self._layer(hidden, kept, weights, attend)
            pairs = zip(new, of_token, strict=True)
            new = [ops.slice_update(all_, [0, layer, 0, 0, 0], one[:, None]) for all_, one in pairs]
            return layer + 1, hidden, *new

        # Rows lie as the tokens of one text, so that a product serves all of them.
        hidden = self._model.embed(token_ids[None])  # [1, R, D]
        empty = ops.zeros_like(step_state.values[..., :1, :])  # [R, L, N, 1, H]
        state = ops.convert_to_tensor(0, "int32"), hidden, empty, empty
        _, hidden, *new = ops.while_loop(lambda layer, *_: layer < num_layers, body, state)
        kept = written(KeysAndValues(*step_state[:2]), position, *new)
        hidden = ops.swapaxes(hidden, 0, 1)
        return self._logits(hidden), KeyValueMemory(*kept, position + 1)

    def _layer(self, hidden, kept, weights, attend):
        """Computes one block; returns hidden states, and the key and value of the token."""
        pre_norm, block = self._config.pre_norm, self._model.blocks[0]
        content_bias, position_bias, inner_bias, outer_bias = weights.biases

        def norm(layer, index, inputs):
            return _normalized(inputs, *weights.norms[index], layer.epsilon)

        inputs = norm(block.attention_norm, 0, hidden) if pre_norm else hidden
        projected = ops.split(product_of_stored(inputs, weights.projections), 3, axis=-1)
        distances = DistanceKeys(weights.distances)
        projections = Projections(*projected, content_bias, position_bias, distances, kept)
        attended, of_token = attend(block.attention, projections)  # [R, 1, N * H]
        attended = ops.swapaxes(attended, 0, 1)
        hidden = hidden + product_of_stored(attended, weights.output)
        if not pre_norm:
            hidden = norm(block.attention_norm, 0, hidden)
        inputs = norm(block.feed_forward_norm, 1, hidden) if pre_norm else hidden
        inner = ops.relu(product_of_stored(inputs, weights.inner) + inner_bias)
        hidden = hidden + product_of_stored(inner, weights.outer) + outer_bias
        return hidden if pre_norm else norm(block.feed_forward_norm, 1, hidden), of_token


def _map_tensors(function: Any, memory: KeyValueMemory) -> KeyValueMemory:
    """Applies a function to the keys and to the values."""
    return memory._replace(keys=function(memory.keys), values=function(memory.values))


def _products(block: Any) -> list[Any]:
    attention, feed_forward = block.attention, block.feed_forward
    layers = [attention.query, attention.key, attention.value, attention.output_projection]
    return [*layers, feed_forward.inner, feed_forward.outer]


def _value(weight: Any) -> Any:
    """Returns the value of a variable; a kernel with adapters is a tensor already."""
    return ops.copy(weight) if isinstance(weight, keras.Variable) else weight


def _is_plain_block(block: Any, epsilon: float) -> bool:
    """True if all layers of a block are of the classes that the loop stands for."""
    return (
        type(block) is DecoderBlock
        and type(block.attention) is RelativeAttention
        and type(block.feed_forward) is FeedForward
        and block.attention_gate is None
        and all(map(_is_plain_product, _products(block)))
        and not any(layer.use_bias for layer in _products(block)[:4])
        and _is_plain_norm(block.attention_norm, epsilon)
        and _is_plain_norm(block.feed_forward_norm, epsilon)
    )


def _is_plain_product(layer: Any) -> bool:
    """True for a `Dense` layer that multiplies by its float32 kernel, adapters included."""
    return (
        type(layer) is keras.layers.Dense
        and layer.activation is keras.activations.linear
        and layer.dtype_policy.name == "float32"
        and layer.quantization_mode is None
    )


def _is_plain_norm(layer: Any, epsilon: float) -> bool:
    """True for a `LayerNormalization` with gain, offset and the epsilon of all layers."""
    is_plain = type(layer) is keras.layers.LayerNormalization and not layer.rms_scaling
    return is_plain and layer.scale and layer.center and layer.epsilon == epsilon


class _TokenOfStored(OneToken):
    """One token per row, with stored keys and values; returns the token's own ones alone."""

    def _scores_of_distances(self, query, distances):
        heads_first = ops.transpose(ops.squeeze(query, axis=2), [1, 0, 2])  # [N, R, H]
        return product_of_stored(heads_first, distances.keys)

    def _product_of_memory(self, rows, memory):
        return product_of_stored(rows, memory)

    def _written(self, recent, key, value):
        return KeysAndValues(key, value)


def _at(stacked: Any, layer: Any, axis: int) -> Any:
    """Returns one of stacked tensors; XLA slices where it reads, and a gather would copy."""
    shape, starts = list(stacked.shape), [0] * len(stacked.shape)
    shape[axis], starts[axis] = 1, layer
    return ops.squeeze(ops.slice(stacked, starts, shape), axis=axis)


def _normalized(inputs: Any, gain: Any, offset: Any, epsilon: float) -> Any:
    centered = inputs - ops.mean(inputs, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    return centered * ops.rsqrt(variance + epsilon) * gain + offset


def in_pairs(tensor: Any) -> Any:
    """Rounds `(..., X, Y)` to bfloat16: rows of the first and the second half in a uint32 each.

    XLA unpacks them as fast as it reads them, and its own products of bfloat16 are slow.
    """
    bits = ops.cast(ops.view(ops.cast(tensor, "bfloat16"), "uint16"), "uint32")
    first, second = ops.split(bits, 2, axis=-2)
    return ops.bitwise_or(first, ops.left_shift(second, 16))


def _numbers(stored: Any) -> list[Any]:
    """Returns float32 numbers as they are, or both halves of those `in_pairs`."""
    if stored.dtype != "uint32":
        return [stored]
    upper = ops.bitwise_and(stored, ops.full((), 0xFFFF0000, "uint32"))
    return [ops.view(ops.left_shift(stored, 16), "float32"), ops.view(upper, "float32")]


def product_of_stored(inputs: Any, kernel: Any) -> Any:
    """Multiplies float32 `(..., Q, X)` with a kernel `(..., X, Y)` or its pairs: `(..., Q, Y)`.

    XLA makes loops over vectors of a sum of few products, but not of many.
    """
    if kernel.dtype == "uint32":
        # Zero, but not to XLA, which would unpack constants before the loop and read float32 in it.
        zero = ops.cast(ops.reshape(inputs, [-1])[0] * 0, "uint32")
        kernel = ops.bitwise_xor(kernel, zero)
    halves = _numbers(kernel)
    parts = list(zip(ops.split(inputs, len(halves), axis=-1), halves, strict=True))
    num_rows = inputs.shape[-2]
    if num_rows > _MOST_ROWS_APART:
        return sum(ops.matmul(part, numbers) for part, numbers in parts)
    if num_rows > 1:
        rows = ops.split(inputs, num_rows, axis=-2)
        return ops.concatenate([product_of_stored(row, kernel) for row in rows], axis=-2)
    length, width = kernel.shape[-2:]
    count = math.gcd(length, 8 // len(parts))
    sums = 0.0
    for part, numbers in parts:
        shape = [*kernel.shape[:-2], count, length // count]
        part = ops.reshape(part, [*shape, 1])
        numbers = ops.reshape(numbers, [*shape, width])
        sums = sums + sum(part[..., i, :, :] * numbers[..., i, :, :] for i in range(count))
    return ops.reshape(ops.sum(sums, axis=-2), [*inputs.shape[:-1], width])
