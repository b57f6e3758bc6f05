"""Batches of texts or token ids in main memory, in the order that the memory of a model needs.

Letters: B rows, T segment length, S segments of each row.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import keras
import numpy as np

from txl_tf.data.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    checked_token_ids,
    narrowest_token_dtype,
)
from txl_tf.imports import tensorflow as tf

_PREFETCHED_BATCHES = 2


def ordered_batches(
    texts_or_ids: Any,
    tokenizer: Tokenizer | None,
    batch_size: int,
    segment_length: int,
) -> Any:
    """Makes batches in which row `r` continues row `r` of the previous batch.

    The texts are encoded and joined, as `txl prepare` does, and cut into `B` pieces of equal
    length. Each row reads one piece, segment by segment, so that every token of a piece is an input
    once. Tokens at the end that do not fill a segment of every row are dropped.

    Args:
        texts_or_ids: str, bytes, or a vector or list of token ids; or an iterable of such
            documents.
        tokenizer: `Tokenizer`, or `None` if all documents are token ids.
        batch_size: int. Rows `B`.
        segment_length: int. Tokens `T` of a row in each batch.

    Returns:
        `tf.data.Dataset` of `(x, y)`, int32 `(B, T)`. `y` has the token after each token of `x`.
        The length of the data set is `S`, the number of steps. If JAX is the backend of Keras, the
        result is a `keras.utils.PyDataset` with the same elements, which needs no TensorFlow.

    Raises:
        TypeError: If a document has another type.
        ValueError: If there are too few tokens, an id is not in the vocabulary, a text cannot be
            encoded, or there is a text but no tokenizer.

    Example:
    ```python
    tokenizer = txl_tf.data.ByteTokenizer()
    batches = txl_tf.data.ordered_batches(text, tokenizer, batch_size=2, segment_length=4)
    print(len(batches))  # steps
    ```
    """
    for name, size in (("batch_size", batch_size), ("segment_length", segment_length)):
        if not isinstance(size, int | np.integer) or size <= 0:
            raise ValueError(f"`{name}` must be a positive int. Received: {name}={size}")
    num_ids = getattr(tokenizer, "vocabulary_size", np.iinfo(np.int32).max)
    token_ids = token_stream(texts_or_ids, tokenizer, num_ids)
    min_tokens = batch_size * segment_length + 1
    if len(token_ids) < min_tokens:
        raise ValueError(
            f"There must be at least {min_tokens} tokens for batch_size={batch_size} and "
            f"segment_length={segment_length}; give more text. Received: {len(token_ids)} tokens"
        )
    num_steps = (len(token_ids) - 1) // (batch_size * segment_length)
    num_read = batch_size * num_steps * segment_length
    inputs, targets = (
        ids.reshape(batch_size, num_steps, segment_length).swapaxes(0, 1)  # [S, B, T]
        for ids in (token_ids[:num_read], token_ids[1 : num_read + 1])
    )
    if keras.backend.backend() != "tensorflow":
        return _Batches(inputs, targets)

    # AutoGraph would take seconds, and nothing here needs it.
    @tf.autograph.experimental.do_not_convert
    def widened(*ids: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tuple(tf.cast(each, tf.int32) for each in ids)

    batches = tf.data.Dataset.from_tensor_slices((inputs, targets))
    return batches.map(widened).prefetch(_PREFETCHED_BATCHES)


class _Batches(keras.utils.PyDataset):
    """Batches that `fit` of Keras reads without TensorFlow."""

    def __init__(self, *arrays: np.ndarray) -> None:
        super().__init__()
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays[0])

    def __getitem__(self, step: int) -> tuple[np.ndarray, ...]:
        return tuple(each[step].astype(np.int32) for each in self._arrays)


def token_stream(
    texts_or_ids: Any, tokenizer: Tokenizer | None, vocabulary_size: int
) -> np.ndarray:
    """Encodes documents and joins their ids, in the narrowest stored type for the vocabulary size.

    Arguments and errors are the same as for `ordered_batches`, except that any length is allowed.
    """
    dtype = narrowest_token_dtype(vocabulary_size)
    parts = [np.zeros(0, dtype)]
    for number, document in enumerate(_documents(texts_or_ids), 1):
        if isinstance(document, np.ndarray):
            ids = document
        elif isinstance(tokenizer, Tokenizer):
            try:
                ids = tokenizer.encode(document)
            except InvalidTextError as error:
                raise ValueError(f"Document {number}: {error}") from error
        else:
            raise ValueError(
                "`tokenizer` must be a `Tokenizer` for texts; without it, give token ids. "
                f"Received: tokenizer={tokenizer!r} and {document[:80]!r}"
            )
        parts.append(checked_token_ids(ids, vocabulary_size).astype(dtype))
    return np.concatenate(parts)


def _documents(value: Any) -> Iterator[str | bytes | np.ndarray]:
    """Yields the texts and vectors of ids in a value, in order, at any depth of nesting."""
    if isinstance(value, list | tuple) and all(isinstance(e, int | np.integer) for e in value):
        value = np.asarray(value)
    elif hasattr(value, "__array__") and not isinstance(value, str | bytes):
        value = np.asarray(value)
        value = value if value.ndim else value.item()
    is_vector = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    if is_vector or isinstance(value, str | bytes):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, Mapping | Set):
        for each in value:
            yield from _documents(each)
    else:
        raise TypeError(
            "A document must be str, bytes or a vector of token ids; several documents must be an "
            f"iterable with an order. Received: {type(value).__name__}"
        )
