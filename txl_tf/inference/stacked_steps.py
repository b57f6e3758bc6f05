"""Loop over stacked layers that reads single tokens of few rows on a CPU.

All other readers call the layers of the model. This one takes their weights, stacks them and
computes the layers by formulas of its own, in `StackedSteps._layer`. So it takes only models whose
layers compute by these formulas, see `StackedSteps.is_possible`: a change of a layer must change
both. For all other models an engine uses `KeyValueSteps`. XLA compiles the loop in a third of the
time that it needs for the unrolled program.

Shape letters used in this module: R rows, L layers, M memory length, J columns of distances,
C capacity for recent tokens, D hidden width, N heads, H head width.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from txl_tf import functional
from txl_tf.inference.bfloat16_pairs import in_pairs, numbers_of, product_of_stored
from txl_tf.inference.key_value_steps import KeyValueSteps
from txl_tf.layers.attention.operators import OneToken, written
from txl_tf.layers.attention.projections import DistanceKeys, KeysAndValues, Projections
from txl_tf.layers.attention.relative_attention import RelativeAttention
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.models.memory import KeyValueMemory
from txl_tf.models.reading import Reading
from txl_tf.models.transformer_xl import TransformerXL


class _LayerWeights(NamedTuple):
    """Weights of one layer, or of all layers with a first axis `L`.

    Kernels and distances are stored tensors, see `bfloat16_pairs`.
    """

    projections: Any
    """Kernels of query, key and value side by side, `(D, 3 * N * H)`."""
    output: Any
    inner: Any
    outer: Any
    distances: Any
    """Keys of distances, `(N, H, J)`."""
    biases: Any
    """Four biases: of contents and of positions, `(N, H)` each; of the inner and outer layer."""
    norms: Any
    """Gain and offset of the norm of attention, and the same of the feed-forward layer."""


class StackedSteps(KeyValueSteps):
    """Memory of keys and values, with single tokens read by a loop over layers.

    A token reads every weight and all of memory once, and this takes nearly all of its time. So the
    loop reads them without copies. The sizes below are for one row, 12 layers, D = `N * H` = 512,
    an inner width of 2,048, M = 1,600 and C = 64, in float32.

    - The weights and the memory of all layers are stacked, and each turn of the loop reads the
      slices of its layer. For a matrix product XLA would copy the slices first: 12.6 MB of kernels
      and 6.6 MB of memory in each layer. So products with one vector are elementwise, see
      `product_of_stored`.
    - The loop only reads the keys and values of recent tokens, 3.1 MB: XLA copied all of them for
      each layer when it also wrote them. It carries the key and value of the new token, 2 times
      `(R, L, N, 1, H)` or 49 KB, which join the recent ones after the loop.
    - With `rounds_steps` of the plan, kernels, distances and memory are stored as pairs of
      bfloat16, in half the bytes, see `bfloat16_pairs`. Recent tokens and all sums are float32.

    Keys `(..., H, M)` are in pairs along `H`, and values `(..., M, H)` along `M`. So `finish` can
    append new keys to stored keys, but must unpack values to append to them.
    """

    @staticmethod
    def is_possible(model: Any) -> bool:
        """True for a float32 model whose layers compute by the formulas of `_layer`."""
        return (
            type(model) is TransformerXL
            and model.compute_dtype == "float32"
            and all(_is_plain_block(each, model.config.layer_norm_epsilon) for each in model.blocks)
        )

    def step_constants(self) -> _LayerWeights:
        layers = [
            self._weights_of(block, distances.keys)
            for block, distances in zip(self._model.blocks, self.constants(1), strict=True)
        ]
        return keras.tree.map_structure(lambda *each: ops.stack(each), *layers)

    def _stored(self, tensor: Any) -> Any:
        return in_pairs(tensor) if self._plan.rounds_steps else tensor

    def _weights_of(self, block: Any, distance_keys: Any) -> _LayerWeights:
        model, attention, feed_forward = self._model, block.attention, block.feed_forward
        query, key, value, output, inner, outer = (each.kernel for each in _products(block))
        owner = attention if attention.own_biases else model
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
            norms=[
                [_value(norm.gamma), _value(norm.beta)]
                for norm in (block.attention_norm, block.feed_forward_norm)
            ],
        )

    def begin(self, memory: Any, rows_per_memory: int = 1, capacity: int = 64) -> KeyValueMemory:
        return _map_tensors(
            lambda each: ops.stack(each, axis=1), super().begin(memory, rows_per_memory, capacity)
        )

    def memory_of_steps(self, memory: KeyValueMemory) -> KeyValueMemory:
        """Returns keys `(R, L, N, H, M)` and values `(R, L, N, M, H)` as stored tensors."""
        return _map_tensors(lambda each: ops.stack(list(map(self._stored, each)), axis=1), memory)

    def memory_after_steps(self, memory: KeyValueMemory) -> KeyValueMemory:
        def layers(stacked: Any) -> tuple[Any, ...]:
            return tuple(
                ops.concatenate(numbers_of(each), axis=-2) for each in ops.unstack(stacked, axis=1)
            )

        return _map_tensors(layers, memory)

    def finish(self, memory: Any, step_state: KeyValueMemory, lengths: Any) -> KeyValueMemory:
        num_rows, reach = memory.valid_length.shape[0], self._memory_length
        of_rows = ops.broadcast_to(lengths, [num_rows])

        # One row after the other, as a row is copied on the way: 79 MB with the sizes above.
        def body(row, keys, values):
            new, old, length = (
                keras.tree.map_structure(lambda each: _at(each, row, 0)[None], each)
                for each in (step_state[:2], memory[:2], of_rows)
            )
            whole = ops.concatenate([old[0], self._stored(new[0])], axis=4)
            newest = functional.last_positions(whole, 4, length, reach)
            keys = ops.slice_update(keys, [row, 0, 0, 0, 0], newest)
            whole = ops.concatenate([*numbers_of(old[1]), new[1]], axis=3)
            newest = self._stored(functional.last_positions(whole, 3, length, reach))
            return row + 1, keys, ops.slice_update(values, [row, 0, 0, 0, 0], newest)

        state = ops.convert_to_tensor(0, "int32"), *map(ops.zeros_like, memory[:2])
        _, keys, values = ops.while_loop(lambda row, *_: row < num_rows, body, state)
        return KeyValueMemory(
            keys, values, functional.next_valid_length(memory.valid_length, reach, lengths)
        )

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
            states = [
                KeysAndValues(*(_at(each, layer, 1) for each in part[:2]))
                for part in (memory, step_state)
            ]
            weights = keras.tree.map_structure(lambda each: _at(each, layer, 0), constants)
            hidden, of_token = self._layer(hidden, states, weights, attend)
            new = [
                ops.slice_update(of_layers, [0, layer, 0, 0, 0], of_layer[:, None])
                for of_layers, of_layer in zip(new, of_token, strict=True)
            ]
            return layer + 1, hidden, *new

        # Rows are arranged like the tokens of one text, so that one product serves all of them.
        hidden = self._model.embed(token_ids[None])  # [1, R, D]
        empty = ops.zeros_like(step_state.values[..., :1, :])  # [R, L, N, 1, H]
        state = ops.convert_to_tensor(0, "int32"), hidden, empty, empty
        _, hidden, *new = ops.while_loop(lambda layer, *_: layer < num_layers, body, state)
        states = written(KeysAndValues(*step_state[:2]), position, *new)
        return self._logits(ops.swapaxes(hidden, 0, 1)), KeyValueMemory(*states, position + 1)

    def _layer(self, hidden, kept, weights, attend):
        """Computes a `DecoderBlock`; returns hidden states, and the key and value of the token."""
        pre_norm, block = self._config.pre_norm, self._model.blocks[0]
        content_bias, position_bias, inner_bias, outer_bias = weights.biases

        def norm(layer, index, inputs):
            return _normalized(inputs, *weights.norms[index], layer.epsilon)

        inputs = norm(block.attention_norm, 0, hidden) if pre_norm else hidden
        projections = Projections(
            *ops.split(product_of_stored(inputs, weights.projections), 3, axis=-1),
            content_bias,
            position_bias,
            DistanceKeys(weights.distances),
            kept,
        )
        attended, of_token = attend(block.attention, projections)  # [R, 1, N * H]
        hidden = hidden + product_of_stored(ops.swapaxes(attended, 0, 1), weights.output)
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
    return [
        attention.query,
        attention.key,
        attention.value,
        attention.output_projection,
        feed_forward.inner,
        feed_forward.outer,
    ]


def _value(weight: Any) -> Any:
    """Returns the value of a variable; the kernel of a layer with adapters is a tensor already."""
    return ops.copy(weight) if isinstance(weight, keras.Variable) else weight


def _is_plain_block(block: Any, epsilon: float) -> bool:
    """True if a block and its layers compute by the formulas of `StackedSteps._layer`."""
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
    """True for a `Dense` layer that only multiplies by its float32 kernel, and adds a bias."""
    return (
        type(layer) is keras.layers.Dense
        and layer.activation is keras.activations.linear
        and layer.dtype_policy.name == "float32"
        and layer.quantization_mode is None
    )


def _is_plain_norm(layer: Any, epsilon: float) -> bool:
    """True for a `LayerNormalization` with gain, offset and the epsilon of all layers."""
    return (
        type(layer) is keras.layers.LayerNormalization
        and not layer.rms_scaling
        and layer.scale
        and layer.center
        and layer.epsilon == epsilon
    )


class _TokenOfStored(OneToken):
    """One token per row, with a stored memory; returns only the key and value of this token."""

    def _scores_of_distances(self, query, distances):
        heads_first = ops.transpose(ops.squeeze(query, axis=2), [1, 0, 2])  # [N, R, H]
        return product_of_stored(heads_first, distances.keys)

    def _product_of_memory(self, rows, memory):
        return product_of_stored(rows, memory)

    def _written(self, recent, key, value):
        return KeysAndValues(key, value)


def _at(stacked: Any, index: Any, axis: int) -> Any:
    """Returns the tensor of a layer or row; XLA reads a slice in place, and copies for a gather."""
    shape, starts = list(stacked.shape), [0] * len(stacked.shape)
    shape[axis], starts[axis] = 1, index
    return ops.squeeze(ops.slice(stacked, starts, shape), axis=axis)


def _normalized(inputs: Any, gain: Any, offset: Any, epsilon: float) -> Any:
    differences = inputs - ops.mean(inputs, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(differences), axis=-1, keepdims=True)
    return differences * ops.rsqrt(variance + epsilon) * gain + offset
