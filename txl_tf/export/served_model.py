"""What an export computes of requests that were checked.

Shape letters used in this module:
  B rows, T tokens, S tokens to write, M memory length, D hidden width,
  V vocabulary, L layers, C candidates.
"""

import tensorflow as tf

from txl_tf.export import guards
from txl_tf.export.padded_reader import PaddedReader
from txl_tf.export.sampling import Sampling
from txl_tf.export.served_weights import ServedWeights
from txl_tf.export.token_writer import TokenWriter
from txl_tf.export.tracing import traced_once
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


class ServedModel:
    """The functions that signatures share, each of them traced once.

    Args:
        model: `TransformerXL`. Of its weights only names and shapes matter.
        weights: `ServedWeights`, in the order of `model.weights`.
        num_candidates: int. `C`.
    """

    def __init__(self, model: TransformerXL, weights: ServedWeights, num_candidates: int) -> None:
        if model.compute_dtype != "float32":
            model = TransformerXL(model.config, dtype="float32")
        self.config = model.config
        self.num_candidates = min(num_candidates, model.config.vocabulary_size)
        self._model = model
        self._weights = weights
        self._reader = PaddedReader(model)
        ids, rows = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        memory = self._memory_spec()
        self.score = traced_once(self._score, [ids, ids, rows, memory])
        self.next_token = traced_once(self._next_token, [ids, rows, rows, memory])
        sampling = Sampling(*Sampling.specs(are_checked=True))
        self.generate = traced_once(self._generate, [ids, rows, sampling, memory])

    def _memory_spec(self) -> Memory:
        config = self.config
        states = tf.TensorSpec([None, config.effective_memory_length, config.hidden_dim])
        return Memory((states,) * config.num_layers, tf.TensorSpec([None], tf.int32))

    def initial_memory(self, num_rows: int) -> Memory:
        """Memory of rows that have read nothing."""
        return self._model.initial_memory(num_rows)

    def _score(self, token_ids, target_ids, lengths, memory):
        """Nats of the targets `(B, T)`, zeros behind a row's length, and the next memory."""
        weights = self._weights.values()

        def use(nll, hidden, start):
            stop = start + tf.shape(hidden)[1]
            with self._reader.with_weights(weights):
                new = self._model.negative_log_likelihood(hidden, target_ids[:, start:stop])
            return tf.concat([nll, new], axis=1)

        nothing = tf.zeros([tf.shape(token_ids)[0], 0])
        nll, memory = self._reader.read(weights, token_ids, lengths, memory, nothing, use)
        nll = tf.where(tf.sequence_mask(lengths, tf.shape(nll)[1]), nll, 0.0)
        return guards.finite(nll, "nll"), memory

    def _next_token(self, token_ids, lengths, kept_lengths, memory):
        """Likely tokens after each row's last, `(B, C)`, and the memory with those kept."""
        weights = self._weights.values()

        def use(last, hidden, start):
            place = lengths - 1 - start
            is_here = (place >= 0) & (place < tf.shape(hidden)[1])
            here = tf.gather(hidden, tf.where(is_here, place, 0), batch_dims=1)
            return tf.where(is_here[:, None], here, last)

        nothing = tf.zeros([tf.shape(token_ids)[0], self.config.hidden_dim])
        last, memory = self._reader.read(weights, token_ids, kept_lengths, memory, nothing, use)
        last = tf.ensure_shape(last, [None, self.config.hidden_dim])
        with self._reader.with_weights(weights):
            log_probs = self._model.log_probs_of(last[:, None])[:, 0]
        log_probs, candidate_ids = tf.math.top_k(log_probs, self.num_candidates)
        return candidate_ids, guards.finite(tf.exp(log_probs), "probabilities"), memory

    def _generate(self, token_ids, lengths, sampling, memory):
        """What was written, its nats, how much it is, and the memory without the last."""
        weights = self._weights.values()
        nothing = tf.zeros([0, 0])
        read_ids = token_ids[:, : tf.reduce_max(lengths) - 1]
        _, memory = self._reader.read(
            weights, read_ids, lengths - 1, memory, nothing, lambda carry, *_: carry
        )
        pending = tf.gather(token_ids, lengths - 1, batch_dims=1)
        with self._reader.with_weights(weights):
            writer = TokenWriter(self._model)
            written, nll, counts, memory = writer.write(pending, memory, sampling)
        return written, guards.finite(nll, "nll"), counts, memory
