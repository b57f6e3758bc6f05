"""Decoder block in inference: one residual path, four ways to attend.

Shape letters used in this module:
  B rows of memory, W rows that share one of them, R = B * W rows, T segment
  length, M memory length, K = M + T key length, C tokens of a part of the
  segment or capacity for recent tokens, D hidden width, N heads, H head width,
  P places of memory on a chip, S rows of its table of distances.
"""

import functools
import itertools
import math

from keras import ops

from txl_tf import functional
from txl_tf.layers.attention import RelativeAttention, side_by_side
from txl_tf.tpu_kernels.attention_plan import InferencePlan


def scaled_query_kernel(attention):
    """Returns the query kernel divided by `sqrt(H)`: scaling every query would cost more."""
    return ops.cast(attention.query.kernel, attention.compute_dtype) * attention.head_dim**-0.5


def split_queries(attention, scaled_query, biases):
    """Returns the queries for contents and for distances, `(B, T, N, H)` each.

    `scaled_query`, `(B, T, N * H)`, is inputs times `scaled_query_kernel`.
    """
    query, scale = attention.split_heads(scaled_query), attention.head_dim**-0.5
    if isinstance(attention, RelativeAttention):
        return tuple(query + bias * scale for bias in attention.biases(**biases))
    if attention.has_biases:
        return query + ops.cast(attention.content_bias, attention.compute_dtype) * scale, query
    return query, query


def distance_keys(attention, key_length, encoding):
    """Returns the keys of all distances, and their scores, the same for all queries, or `None`.

    Row `j` of `encoding` `(K, D)` is the distance `K - 1 - j`. Keys are `(N, H, K + 1)`, scores
    `(N, 1, K + 1)`: column 0 belongs to no distance, and `functional.shift_padded` drops it.
    """
    padding, scores = [[0, 0], [0, 0], [1, 0]], None
    if isinstance(attention, RelativeAttention):
        keys = attention.split_heads(attention.distance_table(encoding)[None])[0]  # [K, N, H]
    else:
        keys = attention.of_distances(attention.distance_keys, key_length)
        if attention.has_biases:
            rows = functional.distances_to_end(key_length, attention.num_positions)
            scores = ops.transpose(ops.take(attention.distance_bias, rows, axis=0))[:, None]
            scores = ops.cast(scores * attention.head_dim**-0.5, attention.compute_dtype)
            scores = ops.pad(scores, padding)
    return ops.pad(ops.transpose(keys, [1, 2, 0]), padding), scores


class InferenceBlock:
    """Computes a `DecoderBlock` with `training=False` from the block's own weights.

    `biases` has `content_bias` and `position_bias` if the block has no own ones.
    """

    def __init__(self, block, biases):
        self._block = block
        self._attention = block.attention
        self._biases = biases

    def _attention_inputs(self, hidden):
        block = self._block
        return _normalized(block.attention_norm, hidden) if block.config.pre_norm else hidden

    def _transform(self, hidden, attended, kernels=()):
        """Applies residual or gate, feed-forward layer and norms, `(B, T, D)`."""
        block, pre_norm = self._block, self._block.config.pre_norm
        hidden = self._add(block.attention_gate, hidden, attended)
        if not pre_norm:
            hidden = _normalized(block.attention_norm, hidden)
        transformed = _normalized(block.feed_forward_norm, hidden) if pre_norm else hidden
        # On a plain matrix of rows, the kernels fuse bias and ReLU into the product.
        rows = ops.reshape(transformed, [-1, transformed.shape[-1]])  # [B * T, D]
        transformed = ops.reshape(self._feed_forward(rows, *kernels), ops.shape(hidden))
        hidden = self._add(block.feed_forward_gate, hidden, transformed)
        return hidden if pre_norm else _normalized(block.feed_forward_norm, hidden)

    def _add(self, gate, hidden, outputs):
        return hidden + outputs if gate is None else gate.mix(hidden, outputs, self._gate_product)

    def _gate_product(self, layer, inputs):
        return layer(inputs)

    def _feed_forward(self, rows):
        return self._block.feed_forward(rows)


class BatchedBlock(InferenceBlock):
    """Block that reads segments, with all rows and heads in one product."""

    KEYS_AXIS, VALUES_AXIS = 3, 2  # of the places of memory

    def arranged(self, keys, values):
        """Arranges keys and values `(B, M, N, H)` as in memory."""
        return ops.transpose(keys, [0, 2, 3, 1]), ops.transpose(values, [0, 2, 1, 3])

    def project(self, hidden):
        """Returns the keys and values of inputs `(B, T, D)` in the layout of the memory."""
        hidden = ops.cast(hidden, self._attention.compute_dtype)
        return self._project_normalized(self._attention_inputs(hidden))

    def _project_normalized(self, hidden):
        attention = self._attention
        projected = attention.key(hidden), attention.value(hidden)
        return self.arranged(*map(attention.split_heads, projected))

    def __call__(self, hidden, keys, values, mask_scores, distances, lengths=None):
        """Reads one segment; returns hidden states `(B, T, D)`, and the next keys and values.

        `keys` are `(B, N, H, M)`, `values` `(B, N, M, H)`. `mask_scores` broadcast to
        `(B, N, T, K + 1)`, over distances: 0 where attention is allowed, very negative elsewhere.
        `distances` are `distance_keys` of `K` distances; `lengths` as in
        `functional.last_positions`.
        """
        inputs = self._attention_inputs(hidden)
        new = self._project_normalized(inputs)
        num_places = values.shape[self.VALUES_AXIS]
        keys, values = self._put_together((keys, values), new)
        attended = self._attend(inputs, keys, values, mask_scores, distances)
        hidden = self._transform(hidden, self._attention.output_projection(attended))
        return hidden, *self._remembered((keys, values), lengths, num_places)

    def _put_together(self, memory, new):
        """Concatenates keys and values of memory and segment."""
        pairs = zip(memory, new, (self.KEYS_AXIS, self.VALUES_AXIS), strict=True)
        return [ops.concatenate([old, more], axis=axis) for old, more, axis in pairs]

    def _remembered(self, keys_and_values, lengths, num_places):
        """Returns the last positions of keys and values of memory and segment."""
        pairs = zip(keys_and_values, (self.KEYS_AXIS, self.VALUES_AXIS), strict=True)
        return [functional.last_positions(each, axis, lengths, num_places) for each, axis in pairs]

    def _attend(self, inputs, keys, values, mask_scores, distances):
        """Returns the results of all heads side by side, `(B, T, N * H)`."""
        (content_query, distance_query), (of_distances, added) = self._queries(inputs), distances
        # oneDNN fuses the addition of the mask into the product.
        over_distances = self._masked_products(distance_query, of_distances, mask_scores)
        if added is not None:
            over_distances = over_distances + added  # [B, N, T, K + 1]
        over_keys = functional.shift_padded(over_distances)  # [B, N, T, K]
        scores = functional.at_least_float32(ops.matmul(content_query, keys) + over_keys)
        probabilities = ops.cast(functional.softmax_over_keys(scores), values.dtype)
        attended = ops.transpose(ops.matmul(probabilities, values), [0, 2, 1, 3])
        width = self._attention.num_heads * self._attention.head_dim
        return ops.reshape(attended, [-1, ops.shape(inputs)[1], width])

    def _queries(self, inputs):
        """Returns content and distance queries, `(B, N, T, H)` each."""
        query = ops.matmul(inputs, scaled_query_kernel(self._attention))
        queries = split_queries(self._attention, query, self._biases)
        return [ops.transpose(each, [0, 2, 1, 3]) for each in queries]

    def _masked_products(self, distance_query, keys, mask_scores):
        """Multiplies with the keys of all distances, `(B, N, T, K + 1)`."""
        if self._attention.num_heads > 1:
            return ops.matmul(distance_query, keys[None]) + mask_scores
        # With one head of many rows, oneDNN in TensorFlow 2.20 crashes when it fuses the mask,
        # which it does only if there is an axis of heads.
        return (ops.matmul(distance_query[:, 0], keys[0]) + mask_scores[:, 0])[:, None]


class PerHeadBlock(BatchedBlock):
    """Block that reads segments head by head, for few rows on a processor with caches.

    The scores of one head and a part of the segment fit in a cache, and for them
    `functional.relative_shift` is a view. A part attends only as far back as its memory. The
    program grows with heads and rows, so it suits neither compilers nor many rows.

    `mask_scores` are a tuple with one tensor per part, in order, that broadcasts to
    `(B, C, M + C + 1)`, over distances. A part attends to the `M + C` keys that end with its own;
    `distances` are those of the longest part, `M + C`.
    """

    def _attend(self, inputs, keys, values, mask_scores, distances):
        num_heads, num_tokens = self._attention.num_heads, inputs.shape[1]
        content_queries, distance_queries = map(_matrices, self._queries(inputs))
        keys, values = _matrices(keys), _matrices(values)
        memory_length = values[0].shape[0] - num_tokens
        of_distances, added = ops.unstack(distances[0], axis=0), distances[1]
        masks = [ops.unstack(mask, axis=0) for mask in mask_scores]
        starts = itertools.accumulate((mask.shape[1] for mask in mask_scores[:-1]), initial=0)
        parts = list(zip(starts, masks, strict=True))

        def attend(index, start, masks_of_rows):
            """Returns the result `(C, H)` of one head of one row for the tokens of a part."""
            row, head = divmod(index, num_heads)
            mask = masks_of_rows[row if len(masks_of_rows) > 1 else 0]
            length, width = mask.shape
            tokens = slice(start, start + length)
            seen = slice(start, start + memory_length + length)
            # The surplus distances are too far.
            scores = ops.matmul(distance_queries[index][tokens], of_distances[head][:, -width:])
            scores = scores + mask
            if added is not None:
                scores = scores + added[head, :, -width:]
            contents = ops.matmul(content_queries[index][tokens], keys[index][:, seen])
            scores = functional.at_least_float32(contents + _shifted(scores))  # [C, M + C]
            probabilities = ops.cast(functional.softmax_over_keys(scores), values[index].dtype)
            return ops.matmul(probabilities, values[index][seen])

        attended = [
            ops.concatenate([attend(index, *part) for part in parts], axis=0)
            for index in range(len(keys))
        ]  # [T, H] each
        rows = [
            ops.concatenate(attended[first : first + num_heads], axis=-1)
            for first in range(0, len(attended), num_heads)
        ]
        return ops.stack(rows)  # [B, T, N * H]


def _matrices(tensor):
    """Splits `(B, N, ...)` into its `B * N` matrices, without a copy."""
    return ops.unstack(ops.reshape(tensor, [-1, *tensor.shape[2:]]), axis=0)


def _shifted(scores):
    """Applies `functional.shift_padded` to one head: `(T, K + 1)` to `(T, K)`."""
    num_tokens, width = scores.shape
    read_in_order = ops.reshape(scores, [num_tokens * width])
    return ops.reshape(read_in_order[num_tokens:], [num_tokens, width - 1])


class OnChipBlock(BatchedBlock):
    """Block that reads segments by the attention kernel for TPUs, mainly for long memories.

    Moving scores `(B, N, T, K)` through the memory of a TPU takes longer than all arithmetic. The
    kernel computes them tile by tile, and also writes the next memory. `keys` and `values` are
    `(B, P, N * H)`, which need no transposition. Places in front may be unused, as moving whole
    tiles is faster. `mask_scores` are `VisibleKeys`, `distances` come from `distance_table`.
    """

    KEYS_AXIS = VALUES_AXIS = 1

    def arranged(self, keys, values):
        width = self._attention.num_heads * self._attention.head_dim
        shape = [*(-1 if each is None else each for each in keys.shape[:2]), width]
        return ops.reshape(keys, shape), ops.reshape(values, shape)

    def plan_of_table(self, kernel, num_tokens, num_places):
        """Returns an `InferencePlan` for the table of distances of `T` tokens."""
        return InferencePlan(
            num_rows=1,
            segment_length=num_tokens,
            memory_length=num_places,
            num_heads=self._attention.num_heads,
            head_dim=self._attention.head_dim,
            dtype=self._attention.compute_dtype,
            kernel=kernel,
        )

    def distance_table(self, plan, encoding):
        """Returns the keys `(S, N * H)` of all distances; `K` of the encoding includes padding."""
        table = self._attention.distance_table(encoding)
        return ops.pad(table, [[0, plan.table_length - plan.padded_key_length], [0, 0]])

    def __call__(self, hidden, keys, values, mask_scores, distances, lengths=None):
        # Imported here, as it needs TensorFlow and JAX.
        from txl_tf.tpu_kernels.attention_call import attend_in_inference

        inputs = self._attention_inputs(hidden)
        query = self._attention.query(inputs)  # [B, T, N * H]
        new = self._project_normalized(inputs)
        num_tokens, num_places = query.shape[1], keys.shape[1]
        plan = mask_scores.inference_plan(query, self._attention.num_heads)
        attended, *next_memory = attend_in_inference(
            plan,
            mask_scores.first_keys(num_tokens),
            query,
            *new,
            keys,
            values,
            distances,
            side_by_side(self._attention.biases(**self._biases)),
        )
        if lengths is not None or not plan.writes_memory:
            together = self._put_together((keys, values), new)
            next_memory = self._remembered(together, lengths, num_places)
        hidden = self._transform(hidden, self._attention.output_projection(attended))
        return hidden, *next_memory


class TokenBlock(InferenceBlock):
    """Block that reads segments of one token, in an order in which memory is only read.

    If memory is empty, as its tokens are in place among the recent ones, the token is written
    first. Then one softmax over one tensor suffices, in half as many kernels on a GPU.

    Several rows may share a row of memory, such as the beams of one text. `product` multiplies
    rows `(..., X)` by a kernel `(X, Y)`.
    """

    def __init__(self, block, biases, product):
        super().__init__(block, biases)
        self._product = product
        attention, feed_forward = block.attention, block.feed_forward
        layers = [attention.query, attention.key, attention.value, attention.output_projection]
        self._layers = [*layers, feed_forward.inner, feed_forward.outer]

    def folding_projection(self):
        """The projection `(N, H, D)` from distance queries to the width of the sinusoids."""
        attention = self._attention
        kernel = ops.cast(attention.position.kernel, attention.compute_dtype)  # [D, N * H]
        heads = ops.reshape(kernel, [-1, attention.num_heads, attention.head_dim])
        return ops.transpose(heads, [1, 2, 0])

    def kernels(self):
        """The kernels of query, key and value side by side, of the output and of feed-forward."""
        dtype = self._attention.compute_dtype
        key, value, *others = [ops.cast(each.kernel, dtype) for each in self._layers[1:]]
        return ops.concatenate([scaled_query_kernel(self._attention), key, value], axis=-1), *others

    def variables(self):
        """The variables that a step reads beside `kernels`: biases, norms, gates."""
        stored = {id(layer.kernel) for layer in self._layers}
        return [each for each in self._block.variables if id(each) not in stored]

    def __call__(self, hidden, memory, recent, position, mask_scores, kernels, over_distances):
        """Reads one token per row; returns hidden states `(R, 1, D)` and the next `recent`.

        `memory` is keys `(B, N, H, M)` and values `(B, N, M, H)`, or as in `memory_of_steps`;
        `recent` is keys `(R, N, H, C)` and values `(R, N, C, H)`. The token is written at
        `position`. `mask_scores` `(R, 1, 1, M)` and `(R, 1, 1, C)` are 0 where attention is
        allowed and very negative elsewhere, also at `position` if `M` is not 0. `over_distances`
        maps distance queries `(R, N, 1, H)` to
        scores for memory, recent tokens and the token itself, `(R, N, 1, _)`.
        """
        (content_query, distance_query), key, value = self._project(hidden, kernels[0])
        is_in_place = memory[1].shape[2] == 0
        if is_in_place:
            recent = written(recent, position, key, value)
        of_memory, of_recent, of_itself = over_distances(distance_query)
        of_recent = of_recent + ops.matmul(content_query, recent[0])
        scores = [functional.at_least_float32(of_recent) + mask_scores[1]]
        if not is_in_place:
            of_itself = of_itself + ops.sum(content_query * key, axis=-1, keepdims=True)
            scores.append(functional.at_least_float32(of_itself))
            of_memory = of_memory + self._scores_of_memory(content_query, memory[0])
            scores.append(functional.at_least_float32(of_memory) + mask_scores[0])
        weights, total = _unnormalized_softmax(scores)
        weights = [ops.cast(each, value.dtype) for each in weights]
        attended = ops.matmul(weights[0], recent[1])  # [R, N, 1, H]
        if not is_in_place:
            attended = attended + weights[1] * value + self._sums_of_memory(weights[2], memory[1])
            # After all reads, so that no compiler for processors keeps a copy for them.
            recent = self._keep(recent, position, key, value)
        # Divide last: the result is smaller than the weights.
        attended = ops.cast(functional.at_least_float32(attended) / total, value.dtype)
        attended = ops.reshape(attended, [hidden.shape[0], 1, -1])
        attended = self._dense(self._attention.output_projection, kernels[1], attended)
        return self._transform(hidden, attended, kernels[2:]), recent

    def scores(self, queries, keys):
        """Multiplies queries `(N, R, H)` with keys as in `step_constants`: `(N, R, _)`."""
        return ops.matmul(queries, keys)

    def _scores_of_memory(self, queries, keys):
        return _of_memory(queries, keys)

    def _sums_of_memory(self, weights, values):
        return _of_memory(weights, values)

    def _keep(self, recent, position, key, value):
        return written(recent, position, key, value)

    def _project(self, hidden, kernel):
        """Returns both queries, the key and the value of the token, each `(R, N, 1, H)`."""
        attention = self._attention
        projected = self._product(self._attention_inputs(hidden), kernel)  # [R, 1, 3 * N * H]
        query, key, value = ops.split(projected, 3, axis=-1)
        queries = split_queries(attention, query, self._biases)
        # With one token, heads are in order for either axis first.
        shape = [-1, attention.num_heads, 1, attention.head_dim]
        queries = tuple(ops.reshape(each, shape) for each in queries)
        return queries, ops.reshape(key, shape), ops.reshape(value, shape)

    def _feed_forward(self, rows, inner, outer):
        layer = self._block.feed_forward
        return self._dense(layer.outer, outer, ops.relu(self._dense(layer.inner, inner, rows)))

    def _gate_product(self, layer, inputs):
        return self._dense(layer, ops.cast(layer.kernel, inputs.dtype), inputs)

    def _dense(self, layer, kernel, inputs):
        """Applies a `Dense` layer with a stored kernel to `(..., X)`."""
        outputs = self._product(inputs, kernel)
        if layer.use_bias:
            outputs = outputs + ops.cast(layer.bias, outputs.dtype)
        return layer.activation(outputs)


class StackedTokenBlock(TokenBlock):
    """Block of a loop over layers, for one row.

    Its products are elementwise, so that XLA reads a layer's slice of the stacked numbers, which
    for a matrix product it would copy first. For the same reason it returns the key and the value
    of the token alone. The numbers are float32 or, in half the bytes, `in_pairs`.
    """

    def __init__(self, block, biases):
        super().__init__(block, biases, product_of_stored)

    def scores(self, queries, keys):
        return scores_of_stored(queries, keys)

    def _scores_of_memory(self, queries, keys):
        return scores_of_stored(queries, keys)

    def _sums_of_memory(self, weights, values):
        return product_of_stored(weights, values)

    def _keep(self, recent, position, key, value):
        return key, value


def written(recent, position, key, value):
    """Returns recent keys `(..., H, C)` and values `(..., C, H)` with those of one token."""
    keys, values = recent
    outer = [0] * (len(keys.shape) - 2)
    return (
        ops.slice_update(keys, [*outer, 0, position], ops.swapaxes(key, -1, -2)),
        ops.slice_update(values, [*outer, position, 0], value),
    )


def _unnormalized_softmax(parts):
    """Returns unnormalised softmax weights of scores `(R, N, 1, K_i)` in parts, and their sum.

    Concatenating, dividing and splitting the scores would read and write them many times.
    """
    highest = [ops.max(part, axis=-1, keepdims=True) for part in parts]
    highest = functools.reduce(ops.maximum, highest)
    weights = [ops.exp(part - highest) for part in parts]
    return weights, sum(ops.sum(each, axis=-1, keepdims=True) for each in weights)


def _normalized(layer, inputs):
    """Applies a `LayerNormalization`, reading and writing `inputs` fewer times."""
    tensor = functional.at_least_float32(inputs)
    centered = tensor - ops.mean(tensor, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    outputs = centered * ops.rsqrt(variance + layer.epsilon) * layer.gamma + layer.beta
    return ops.cast(outputs, layer.compute_dtype)


def product_in_halves(inputs, kernel):
    """Multiplies `(..., X)` by a kernel `(X, Y)`; one row in two halves, for two threads.

    XLA computes the product of one row in one thread of a processor, and batched products in
    several. Reading the kernel takes most of the time.
    """
    width, units = kernel.shape
    if math.prod(inputs.shape) > width or width % 2:
        return ops.matmul(inputs, kernel)
    halves = ops.reshape(kernel, [2, width // 2, units])
    products = ops.matmul(ops.reshape(inputs, [2, 1, width // 2]), halves)  # [2, 1, Y]
    return ops.reshape(ops.sum(products, axis=0), [*inputs.shape[:-1], units])


def in_pairs(tensor, axis):
    """Rounds to bfloat16, a number of the first and one of the second half in each uint32.

    XLA unpacks them as fast as it reads them, and its own products of bfloat16 are slow.
    """
    bits = ops.cast(ops.view(ops.cast(tensor, "bfloat16"), "uint16"), "uint32")
    first, second = ops.split(bits, 2, axis=axis)
    return ops.bitwise_or(first, ops.left_shift(second, 16))


def _parts(inputs, stored):
    """Returns pairs of float32 factors: all of both, or a half of both for each half `in_pairs`."""
    if stored.dtype != "uint32":
        return [(inputs, stored)]
    # Zero, but not to XLA, which would unpack constants before the loop and read float32 in it.
    zero = ops.cast(ops.reshape(inputs, [-1])[0] * 0, "uint32")
    pairs = ops.bitwise_xor(stored, zero)
    upper = ops.bitwise_and(pairs, ops.full((), 0xFFFF0000, "uint32"))
    numbers = ops.view(ops.left_shift(pairs, 16), "float32"), ops.view(upper, "float32")
    return list(zip(ops.split(inputs, 2, axis=-1), numbers, strict=True))


def scores_of_stored(inputs, keys):
    """Multiplies float32 `(..., 1, X)` with keys `(..., Y, X)` or their pairs: `(..., 1, Y)`."""
    products = sum(part * numbers for part, numbers in _parts(inputs, keys))
    return ops.expand_dims(ops.sum(products, axis=-1), axis=-2)


def product_of_stored(inputs, kernel):
    """Multiplies float32 `(..., 1, X)` with a kernel `(..., X, Y)` or its pairs: `(..., 1, Y)`.

    XLA makes loops over vectors of a sum of few products, but not of many.
    """
    parts = _parts(inputs, kernel)
    length, width = kernel.shape[-2:]
    count = math.gcd(length, 8 // len(parts))
    sums = 0.0
    for part, numbers in parts:
        shape = [*kernel.shape[:-2], count, length // count]
        part = ops.reshape(part, [*shape, 1])
        numbers = ops.reshape(numbers, [*shape, width])
        sums = sums + sum(part[..., i, :, :] * numbers[..., i, :, :] for i in range(count))
    return ops.reshape(ops.sum(sums, axis=-2), [*inputs.shape[:-1], width])


def _of_memory(rows, memory):
    """Multiplies rows `(R, N, 1, X)` with memory `(B, N, X, Y)`: `(R, N, 1, Y)`."""
    rows_per_memory = rows.shape[0] // memory.shape[0]
    if rows_per_memory == 1:
        return ops.matmul(rows, memory)
    _, num_heads, _, width = rows.shape
    grouped = ops.reshape(rows, [-1, rows_per_memory, num_heads, width])  # [B, W, N, X]
    products = ops.matmul(ops.transpose(grouped, [0, 2, 1, 3]), memory)  # [B, N, W, Y]
    products = ops.transpose(products, [0, 2, 1, 3])
    return ops.reshape(products, [-1, num_heads, 1, products.shape[-1]])
