"""Transformer-XL that keeps its memory in variables, for training with Keras `fit`.

Shape letters used in this module: B rows, T segment length, M memory length, D hidden width, L
layers, V vocabulary.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from txl_tf.layers.decoder_block import MemoryVariables
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


def check_num_rows(batch: Any, batch_size: int) -> None:
    """Refuses a batch, as Keras has it, with more rows than `B`, which memory is for.

    Inputs whose number of rows is not known pass.

    Raises:
        ValueError: If there are more rows.
    """
    num_rows = _rows_of(_inputs_of(batch))
    if num_rows is not None and num_rows > batch_size:
        raise ValueError(
            f"A batch must have at most {batch_size} rows, the model's `batch_size`. "
            f"Received: a batch of {num_rows}"
        )


def with_checked_batches(function: Callable[[Any], Any], batch_size: int) -> Callable[[Any], Any]:
    """Checks batches before Keras' function for a step on TensorFlow takes them.

    A compiled program cannot refuse a batch by a sentence. Where every batch is
    known beforehand to have one number of rows, the program gets the iterator
    as it is.

    Args:
        function: Keras' `train_function` or `test_function`, which take an iterator,
            or `predict_function`, which takes a list.
        batch_size: int. `B`.
    """

    def checked(iterator: Iterator[Any] | list[Any]) -> Any:
        if isinstance(iterator, list):
            return function(list(_checked(iter(iterator), batch_size)))
        spec = getattr(iterator, "element_spec", None)
        if spec is not None and _rows_of(_inputs_of(spec)) is not None:
            check_num_rows(spec, batch_size)
            return function(iterator)
        # Without a first batch it is the end, which Keras expects to hear by StopIteration.
        first = next(iterator)
        return function(_checked(itertools.chain([first], iterator), batch_size))

    return checked


def _checked(batches: Iterator[Any], batch_size: int) -> Iterator[Any]:
    for batch in batches:
        check_num_rows(batch, batch_size)
        yield batch


def _inputs_of(batch: Any) -> Any:
    return keras.utils.unpack_x_y_sample_weight(batch)[0]


def _rows_of(inputs: Any) -> int | None:
    shape = getattr(inputs, "shape", None)
    return shape[0] if shape else None


@keras.saving.register_keras_serializable(package="txl_tf")
class StatefulTransformerXL(keras.Model):
    """A `TransformerXL` that keeps its memory in variables of its own.

    In the manner of a stateful `keras.layers.RNN`: the batch size is fixed,
    each call continues where the last one stopped, and `reset_state` forgets.
    So `compile` and `fit` on ordered data just work, on one device:

    ```python
    model = txl_tf.StatefulTransformerXL(config, batch_size=16)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(ordered_dataset, shuffle=False)
    model.reset_state()
    ```

    Row `r` of every batch has to continue row `r` of the batch before. A batch
    may have fewer rows than `B`: the rows it does not have keep their memory.
    Several replicas need the trainer: Keras would merge their memories.

    `evaluate`, validation in `fit` among it, and `predict` read with a memory of
    their own, which is empty when they begin; that of training stays as it is.
    `test_on_batch` and `predict_on_batch` go on from call to call with these
    memories. A call of the model goes on with the memory of training.

    Args:
        config: `ModelConfig`, the dict that its `to_dict` returns, or a `TransformerXL`,
            which is then trained in place.
        batch_size: int. The most rows of a batch, `B`.
        **kwargs: other keyword arguments passed to `keras.Model`.

    Attributes:
        transformer_xl: the `TransformerXL` that is trained.

    Call arguments:
        token_ids: int tensor `(B, T)`, or of fewer rows; or embedded inputs, see
            `TransformerXL`.
        training: bool. Whether dropout is active.

    Returns:
        Log-probabilities of the next tokens, float32 `(B, T, V)`; a loss takes
        them as logits.

    Raises:
        ValueError: If `batch_size` is not positive, or a batch has more rows.
    """

    def __init__(self, config, batch_size, **kwargs):
        model = config if isinstance(config, TransformerXL) else None
        if model is not None:
            kwargs["dtype"] = model.dtype_policy
        super().__init__(**kwargs)
        if batch_size <= 0:
            raise ValueError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        self.batch_size = batch_size
        self.transformer_xl = model or TransformerXL(
            config, dtype=self.dtype_policy, name="transformer_xl"
        )
        self.transformer_xl.build((batch_size, None))
        self.config = config = self.transformer_xl.config
        shape = (batch_size, config.effective_memory_length, config.hidden_dim)
        self._shapes = {f"memory_{layer}": shape for layer in range(config.num_layers)}
        dtype = self.transformer_xl.compute_dtype
        self._trained_memory = MemoryVariables.of_layer(self, self._shapes, dtype)
        self._evaluate_memory = self._predict_memory = None
        self._current_memory = self._trained_memory
        self.built = True

    @property
    def memory(self):
        """The current `Memory` of training and of calls of the model."""
        *states, valid_length = self._trained_memory.read()
        return Memory(tuple(states), valid_length)

    @property
    def token_embedding(self):
        """The layer that embeds token ids, by the name that KerasHub's backbones have for it."""
        return self.transformer_xl.embedding

    @property
    def variables(self):
        variables = super().variables
        if keras.backend.backend() == "jax":
            # There a step changes only what is listed here. They are no weights, though:
            # they begin empty, so there is nothing to save and to compare.
            for aside in (self._evaluate_memory, self._predict_memory):
                variables = variables + ([] if aside is None else aside.variables)
        return variables

    def __call__(self, token_ids, *args, **kwargs):
        check_num_rows(token_ids, self.batch_size)
        self.transformer_xl.check_inputs(token_ids)
        return super().__call__(token_ids, *args, **kwargs)

    def call(self, token_ids, training=False):
        is_whole = token_ids.shape[0] == self.batch_size
        num_rows = None if is_whole else ops.shape(token_ids)[0]
        *states, valid_length = self._current_memory.read(num_rows)
        memory = Memory(tuple(states), valid_length)
        hidden, memory = self.transformer_xl(token_ids, memory, training=training)
        self._current_memory.write(*memory.states, memory.valid_length, num_rows=num_rows)
        return self.transformer_xl.log_probs_of(hidden)

    def make_train_function(self, force=False):
        self._make_checking("train_function", super().make_train_function, force)

    def make_test_function(self, force=False):
        if self._evaluate_memory is None:
            self._evaluate_memory = self._memory_aside("evaluate")
        self._make_checking("test_function", super().make_test_function, force)

    def make_predict_function(self, force=False):
        if self._predict_memory is None:
            self._predict_memory = self._memory_aside("predict")
        self._make_checking("predict_function", super().make_predict_function, force)

    def _make_checking(self, name, make, force):
        if getattr(self, name) is not None and not force:
            return
        make(force=True)
        # Other backends compile for known shapes, so the steps know the number of rows.
        if keras.backend.backend() == "tensorflow":
            setattr(self, name, with_checked_batches(getattr(self, name), self.batch_size))

    def _memory_aside(self, name):
        def create(shape, dtype, variable_name):
            options = {"trainable": False, "autocast": False, "name": f"{name}_{variable_name}"}
            return keras.Variable(ops.zeros(shape, dtype), dtype=dtype, **options)

        return MemoryVariables(self._shapes, self.transformer_xl.compute_dtype, create)

    # A step is traced, or runs, within these calls; what it reads is decided there for good.
    def train_step(self, *state_and_data):
        check_num_rows(state_and_data[-1], self.batch_size)
        with self._using(self._trained_memory):
            return super().train_step(*state_and_data)

    def test_step(self, *state_and_data):
        check_num_rows(state_and_data[-1], self.batch_size)
        with self._using(self._evaluate_memory):
            return super().test_step(*state_and_data)

    def predict_step(self, *state_and_data):
        check_num_rows(state_and_data[-1], self.batch_size)
        with self._using(self._predict_memory):
            return super().predict_step(*state_and_data)

    @contextlib.contextmanager
    def _using(self, memory):
        before = self._current_memory
        self._current_memory = memory
        try:
            yield
        finally:
            self._current_memory = before

    def evaluate(self, *args, **kwargs):
        self.make_test_function()
        with self._beginning_empty(self._evaluate_memory):
            return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        self.make_predict_function()
        with self._beginning_empty(self._predict_memory):
            return super().predict(*args, **kwargs)

    @contextlib.contextmanager
    def _beginning_empty(self, memory):
        memory.reset()
        try:
            yield
        finally:
            memory.reset()

    def reset_state(self):
        """Forgets what all rows have read, in training and aside from it."""
        for memory in (self._trained_memory, self._evaluate_memory, self._predict_memory):
            if memory is not None:
                memory.reset()

    def get_config(self):
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "batch_size": self.batch_size,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)
