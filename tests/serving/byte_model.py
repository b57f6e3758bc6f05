"""A tiny SavedModel with the signatures of an export, which takes a second to make.

What comes next is drawn from a table by the newest token and by each token in
memory, so that a text whose memory was mixed with another's goes on otherwise.
"""

import hashlib
import os

import numpy as np
import tensorflow as tf

NUM_LAYERS, MEMORY_LENGTH, HIDDEN_DIM, VOCABULARY_SIZE = 2, 4, 3, 256
NUM_CANDIDATES = 5
MAX_TOKENS, MAX_NEW_TOKENS = 1024, 64

_IDS = tf.TensorSpec([None, None], tf.int32)
_ROWS = tf.TensorSpec([None], tf.int32)
_FLOATS = tf.TensorSpec([None], tf.float32)
_MEMORY = {
    "memory_states": tf.TensorSpec([None, NUM_LAYERS, MEMORY_LENGTH, HIDDEN_DIM]),
    "memory_valid_length": _ROWS,
}
_SAMPLING = {
    "max_tokens": _ROWS,
    "temperature": _FLOATS,
    "top_k": _ROWS,
    "top_p": _FLOATS,
    "seed": _ROWS,
    "stop_token_id": _ROWS,
}
_TEXTS = {"texts": tf.TensorSpec([None], tf.string), "previous_token_ids": _ROWS}


class ByteModel(tf.Module):
    """Memory is the ids themselves, in every layer and number."""

    def __init__(self, seed):
        super().__init__()
        shape = [MEMORY_LENGTH + 1, VOCABULARY_SIZE, VOCABULARY_SIZE]
        drawn = np.random.default_rng(seed).normal(size=shape, scale=2.0)
        self.table = tf.Variable(drawn.astype("float32"), name="table")
        rows = {"token_ids": _IDS, "lengths": _ROWS}
        self.functions = {
            "score": _function(self._score, {**rows, "target_ids": _IDS, **_MEMORY}),
            "next_token": _function(self._next_token, {**rows, **_MEMORY}),
            "generate": _function(self._generate, {**rows, **_SAMPLING, **_MEMORY}),
            "generate_text": _function(self._generate_text, {**_TEXTS, **_SAMPLING, **_MEMORY}),
        }

    def _log_probs(self, memory, valid_length, last):
        logits = tf.gather(self.table[MEMORY_LENGTH], last)
        for place in range(MEMORY_LENGTH):
            is_there = tf.cast(place >= MEMORY_LENGTH - valid_length, tf.float32)
            logits += is_there[:, None] * tf.gather(self.table[place], memory[:, place])
        return tf.nn.log_softmax(logits)

    def _read(self, token_ids, lengths, memory, valid_length):
        log_probs = tf.TensorArray(tf.float32, tf.shape(token_ids)[1])
        for place in tf.range(tf.shape(token_ids)[1]):
            last = token_ids[:, place]
            log_probs = log_probs.write(place, self._log_probs(memory, valid_length, last))
            memory, valid_length = _remember(memory, valid_length, last, place < lengths)
        return tf.transpose(log_probs.stack(), [1, 0, 2]), memory, valid_length

    def _score(self, token_ids, lengths, target_ids, memory_states, memory_valid_length):
        token_ids = _checked(token_ids)
        memory = _ids_in(memory_states)
        log_probs, *memory = self._read(token_ids, lengths, memory, memory_valid_length)
        nll = -tf.gather(log_probs, target_ids, batch_dims=2)
        nll = tf.where(tf.sequence_mask(lengths, tf.shape(nll)[1]), nll, 0.0)
        totals = {"total_nll": tf.reduce_sum(nll, axis=1), "num_scored": lengths}
        return {"nll": nll, **totals, **_memory_of(*memory)}

    def _next_token(self, token_ids, lengths, memory_states, memory_valid_length):
        memory = _ids_in(memory_states)
        log_probs, *memory = self._read(_checked(token_ids), lengths, memory, memory_valid_length)
        last = tf.gather(log_probs, lengths - 1, batch_dims=1)
        last, ids = tf.math.top_k(last, NUM_CANDIDATES)
        return {"candidate_ids": ids, "probabilities": tf.exp(last), **_memory_of(*memory)}

    def _generate(
        self,
        token_ids,
        lengths,
        max_tokens,
        temperature,
        top_k,
        top_p,
        seed,
        stop_token_id,
        memory_states,
        memory_valid_length,
    ):
        token_ids = _checked(token_ids)
        memory, valid_length = _ids_in(memory_states), memory_valid_length
        _, memory, valid_length = self._read(token_ids, lengths - 1, memory, valid_length)
        last = tf.gather(token_ids, lengths - 1, batch_dims=1)
        count = _within(tf.reduce_max(max_tokens), "max_tokens", MAX_NEW_TOKENS)
        ids, nll = tf.TensorArray(tf.int32, count), tf.TensorArray(tf.float32, count)
        for place in tf.range(count):
            log_probs = self._log_probs(memory, valid_length, last)
            drawn = _drawn(log_probs, temperature, seed, place)
            is_written = place < max_tokens
            memory, valid_length = _remember(memory, valid_length, last, is_written)
            last = tf.where(is_written, drawn, last)
            ids = ids.write(place, tf.where(is_written, drawn, 0))
            surprise = -tf.gather(log_probs, drawn, batch_dims=1)
            nll = nll.write(place, tf.where(is_written, surprise, 0.0))
        written = {"token_ids": tf.transpose(ids.stack()), "nll": tf.transpose(nll.stack())}
        # Settings that change nothing here would otherwise not be inputs of the graph.
        unused = 0 * (top_k + stop_token_id + tf.cast(top_p, tf.int32))
        return {**written, "lengths": max_tokens + unused, **_memory_of(memory, valid_length)}

    def _generate_text(self, texts, previous_token_ids, **others):
        length = _within(tf.reduce_max(tf.strings.length(texts)), "texts", MAX_TOKENS)
        padded = tf.io.decode_raw(texts, tf.uint8, fixed_length=tf.maximum(length, 1))
        read = tf.cast(padded, tf.int32)[:, :length]
        begins = tf.reduce_all(previous_token_ids < 0)
        beginning = previous_token_ids[:, None]
        read = tf.cond(begins, lambda: read, lambda: tf.concat([beginning, read], axis=1))
        lengths = tf.fill([tf.shape(read)[0]], tf.shape(read)[1])
        answer = self._generate(read, lengths, **others)
        ids = answer["token_ids"]
        letters = tf.gather(tf.constant([bytes([byte]) for byte in range(256)]), ids)
        texts = tf.strings.reduce_join(letters, axis=1)
        return {**answer, "texts_bytes": texts, "last_token_ids": ids[:, -1]}


def write_version(folder, number, seed=0):
    """Writes `folder/number`, which appears when it is complete.

    Args:
        folder: path of all versions.
        number: int.
        seed: int, of the table.
    """
    hidden = os.path.join(folder, f".{number}")
    model = ByteModel(seed)
    signatures = {**model.functions, "serving_default": model.functions["score"]}
    tf.saved_model.save(model, hidden, signatures)
    lines = []
    for path, _, names in os.walk(hidden):
        for name in names:
            file = os.path.join(path, name)
            with open(file, "rb") as content:
                digest = hashlib.sha256(content.read()).hexdigest()
            lines.append(f"{digest}  {os.path.relpath(file, hidden)}\n")
    with open(os.path.join(hidden, "SHA256SUMS"), "w") as sums:
        sums.writelines(lines)
    os.rename(hidden, os.path.join(folder, str(number)))


def _function(function, specs):
    named = {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in specs.items()}

    def by_name(*tensors):
        return function(**dict(zip(named, tensors, strict=True)))

    return tf.function(by_name, input_signature=list(named.values()))


def _within(number, name, highest):
    is_good = (number >= 0) & (number <= highest)
    message = tf.strings.join([name, " is ", tf.strings.as_string(number), f"; to {highest}."])
    with tf.control_dependencies([tf.debugging.Assert(is_good, [message])]):
        return tf.identity(number)


def _checked(token_ids):
    num_tokens = _within(tf.shape(token_ids)[1], "tokens", MAX_TOKENS)
    token_ids = token_ids[:, :num_tokens]
    highest = tf.reduce_max(token_ids)
    is_good = (highest < VOCABULARY_SIZE) & (tf.reduce_min(token_ids) >= 0)
    message = tf.strings.join(["token_ids has ", tf.strings.as_string(highest), "; to 255."])
    with tf.control_dependencies([tf.debugging.Assert(is_good, [message])]):
        return tf.identity(token_ids)


def _ids_in(memory_states):
    return tf.cast(tf.round(tf.reduce_mean(memory_states, axis=[1, 3])), tf.int32)


def _memory_of(memory, valid_length):
    numbers = tf.cast(memory, tf.float32)[:, None, :, None]
    states = tf.tile(numbers, [1, NUM_LAYERS, 1, HIDDEN_DIM])
    return {"memory_states": states, "memory_valid_length": valid_length}


def _remember(memory, valid_length, last, is_read):
    longer = tf.concat([memory[:, 1:], last[:, None]], axis=1)
    longer.set_shape([None, MEMORY_LENGTH])
    return (
        tf.where(is_read[:, None], longer, memory),
        tf.where(is_read, tf.minimum(valid_length + 1, MEMORY_LENGTH), valid_length),
    )


def _drawn(log_probs, temperature, seed, place):
    def row(values):
        log_probs, temperature, seed = values
        noise = tf.random.stateless_uniform([VOCABULARY_SIZE], tf.stack([seed, place]), 1e-6, 1.0)
        drawn = log_probs - temperature * tf.math.log(-tf.math.log(noise))
        return tf.argmax(drawn, output_type=tf.int32)

    return tf.map_fn(row, (log_probs, temperature, seed), fn_output_signature=tf.int32)
