"""Inference engine, which reads tokens with fixed weights.

Shape letters used in this module: B rows, T tokens, M memory length, D hidden width.
"""

import keras
from keras import ops

from txl_tf.config.model import ModelConfig
from txl_tf.inference.execution_plan import ExecutionPlan, device_of
from txl_tf.inference.hidden_state_steps import HiddenStateSteps, takes_reading
from txl_tf.inference.key_value_steps import KeyValueSteps
from txl_tf.inference.stacked_steps import StackedSteps
from txl_tf.layers.token_ids import check_rank
from txl_tf.models.computed_from_weights import ComputedFromWeights
from txl_tf.models.language_model import language_model_of


class InferenceEngine:
    """Inference engine that reads tokens with fixed weights and carries memory.

    Memory is an argument and a result, as in the model. With relative positions it holds keys and
    values: with fixed weights, attention would compute the same keys and values from hidden states
    again in every segment. Otherwise it is the model's own memory.

    Segments are read with `read` and `score`, by the layers of the model. Single tokens are read
    with `steps`, by the layers or by a loop over stacked weights, see `StackedSteps`.

    ```python
    engine = txl_tf.InferenceEngine(model, num_rows=1)
    memory = engine.initial_memory(1)
    nll, memory = engine.score(token_ids[:, :-1], token_ids[:, 1:], memory)
    ```

    Args:
        model: `TransformerXL`, `LSTMLanguageModel` or `QRNNLanguageModel`; for a
            `StatefulTransformerXL` its inner model is used.
        memory_length: optional int. `M`, if it differs from `config`. Recurrent models ignore it.
        keeps_states: bool. If `True`, memory is the model's own memory of hidden states. Then
            weights may change between reads.
        segment_length: optional int. Tokens of a segment, if they differ from `config`.
        config: optional `ModelConfig` with the lengths to read with, if they are not the model's.
        plan: optional `ExecutionPlan`. By default it is chosen for the model's device.
        **choice: arguments of `ExecutionPlan.choose`, such as `num_rows`.

    Attributes:
        plan: `ExecutionPlan`.
        memory_length: int, 1 for recurrent models.
        steps: `Steps` for the kind of memory, which read single tokens.
        cached_constants: function like `constants` for loops outside of programs. It computes the
            tensors again only when a weight or the number of tokens has changed.
    """

    def __init__(
        self,
        model,
        memory_length=None,
        keeps_states=False,
        *,
        segment_length=None,
        config=None,
        plan=None,
        **choice,
    ):
        self.model = model = language_model_of(model)
        self.config = config = config or model.config
        if not isinstance(config, ModelConfig):
            memory_length = 1
        elif memory_length is None:
            memory_length = config.effective_memory_length
        self.memory_length = memory_length
        self.segment_length = segment_length or config.segment_length
        keeps_keys = config.has_relative_positions and takes_reading(model) and not keeps_states
        self.plan = plan or ExecutionPlan.choose(
            config,
            device=device_of(model),
            keeps_states=not keeps_keys,
            # Models in bfloat16 read half the bytes already.
            memory_length=memory_length if model.compute_dtype == "float32" else 0,
            **choice,
        )
        kind = HiddenStateSteps
        if keeps_keys:
            is_stacked = self.plan.stacks_layers and StackedSteps.is_possible(model)
            kind = StackedSteps if is_stacked else KeyValueSteps
        self.steps = kind(model, config, memory_length, self.segment_length, self.plan)
        self.cached_constants = ComputedFromWeights(self.constants, model)

    def initial_memory(self, num_rows):
        """Returns the `KeyValueMemory` or `Memory` of `B` rows that have read nothing yet."""
        return self.steps.initial_memory(num_rows)

    def adopt(self, memory):
        """Returns a memory of the model or of another engine as a memory of this engine.

        Raises ValueError if the memory is of another kind or length.
        """
        memory, own_memory = self.steps.converted(memory), self.initial_memory(1)
        kinds = [
            (type(each), *(getattr(leaf, "shape", ())[1:] for leaf in keras.tree.flatten(each)))
            for each in (memory, own_memory)
        ]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"`memory` must be like {own_memory}, with any rows. Received: memory={memory}"
            )
        # Memories for the kernel for TPUs have the same number of places for different lengths. So
        # an engine with a longer memory may have filled more of them.
        return memory._replace(valid_length=ops.minimum(memory.valid_length, self.memory_length))

    def constants(self, num_tokens):
        """Computes the tensors for reading at most `num_tokens` that depend only on the weights."""
        return self.steps.constants(num_tokens)

    def read(self, token_ids, memory, *, lengths=None, document_starts=None, constants=None):
        """Reads tokens. The results are the same as if each segment were read by its own call.

        Args:
            token_ids: int tensor `(B, T)`, or embedded inputs, see `TransformerXL`.
            memory: memory of the preceding tokens.
            lengths: optional int32 tensor `(B,)` or `()`, from 0 to `T`: the tokens of each row
                that enter memory. Absolute positions count from the end of all `T` tokens, which
                are then at most one segment.
            document_starts: optional bool tensor `(B, T)`, as in `TransformerXL`. It cannot be
                combined with `lengths`.
            constants: optional result of `constants(T)`.

        Returns:
            Tuple of the hidden states `(B, T, D)` and the memory after the length of each row.

        Raises:
            ValueError: If ids are out of range, or there are `lengths` and more than one segment
                with the model's own memory.
        """
        check_rank(token_ids, (2, 3), "(B, T)")
        num_tokens, at_once = token_ids.shape[1] or 0, self.segment_length
        if self.steps.spans_segments or num_tokens <= at_once:
            arguments = self.steps.arguments(token_ids, memory, lengths, document_starts, constants)
            return self.model(token_ids, memory, **arguments)
        if lengths is not None:
            raise ValueError(
                "With `lengths` and the model's own memory, `token_ids` must have at most one "
                f"segment of {at_once} tokens. Received: {num_tokens} tokens"
            )
        hidden = []
        for start in range(0, num_tokens, at_once):
            piece = slice(start, start + at_once)
            starts = None if document_starts is None else document_starts[:, piece]
            outputs, memory = self.read(token_ids[:, piece], memory, document_starts=starts)
            hidden.append(outputs)
        return ops.concatenate(hidden, axis=1), memory

    def hidden_states(self, token_ids, memory, lengths=None, document_starts=None, constants=None):
        """Returns the hidden states of all layers, and the next memory; arguments are as in `read`.

        The hidden states are a list of the embeddings and the output of each of `L` blocks, `L + 1`
        tensors `(B, T, D)`. With the model's own memory, `T` is at most one segment. Recurrent
        models have no such states.
        """
        self.model.check_inputs(token_ids)
        arguments = self.steps.arguments(token_ids, memory, lengths, document_starts, constants)
        return self.model.hidden_states(token_ids, memory, **arguments)

    def score(self, token_ids, target_ids, memory, **as_read):
        """Scores the tokens `(B, T)` that follow `token_ids`; further arguments are as in `read`.

        Returns the negative log-likelihoods in nats, float32 `(B, T)`, and the next memory.
        """
        hidden, memory = self.read(token_ids, memory, **as_read)
        return self.model.negative_log_likelihood(hidden, target_ids), memory
