"""Looks at the batches that Keras is about to hand to a step.

Shape letters used in this module: B rows, T segment length.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras


def check_num_rows(batch: Any, batch_size: int) -> None:
    """Refuses a batch with more rows than there is memory for.

    Args:
        batch: a batch as Keras has it: the inputs, or a tuple of inputs, targets
            and weights. Inputs whose number of rows is not known pass.
        batch_size: int. `B`.

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

    Returns:
        A function like `function`.
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
