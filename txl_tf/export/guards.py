"""Guards that refuse bad requests within the graph, by value and index.

Shape letters used in this module: B rows, K values of a row.
"""

from collections.abc import Callable

import tensorflow as tf

_FINE = "0"


def refuse_unless(
    is_good: tf.Tensor, describe: Callable[[], tf.Tensor], tensor: tf.Tensor
) -> tf.Tensor:
    """Returns the tensor, or ends the request as an invalid argument with a message.

    An assertion reports the message. Compilers and graph rewrites may remove assertions, so the
    result also depends on a number parsed from the message, which only a good request has. (To add
    it to a shape was not enough: rewrites remove a reshape to the same shape.) The message is
    computed only on failure.
    """
    message = tf.cond(is_good, lambda: tf.constant(_FINE), describe)
    with tf.control_dependencies([tf.debugging.Assert(is_good, [message])]):
        message = tf.identity(message)
    zero = tf.strings.to_number(message, tf.int32)
    # The whole tensor, but by a slice whose beginning is not known before run time.
    rank = tf.rank(tensor)
    result = tf.slice(tensor, tf.fill([rank], zero), tf.fill([rank], -1))
    result.set_shape(tensor.shape)
    return result


def of_rank(tensor: tf.Tensor, name: str, axes: tuple[str, ...]) -> tf.Tensor:
    """Refuses a tensor that does not have these axes; returns it with its rank known.

    Signatures must leave ranks and sizes open: graph rewrites assume the declared ones, and
    servers do not check them.
    """
    result = refuse_unless(
        tf.equal(tf.rank(tensor), len(axes)),
        lambda: tf.strings.join(
            [
                f"{name} has the shape ",
                _vector_text(tf.shape(tensor)),
                f"; it must be ({', '.join(axes)}).",
            ]
        ),
        tensor,
    )
    return tf.ensure_shape(result, [None] * len(axes))


def row_vector(tensor: tf.Tensor, name: str, num_rows: tf.Tensor) -> tf.Tensor:
    """Refuses a tensor that is not `(B,)`; a scalar stands for all rows."""
    # A branch would add two functions with their arguments to the graph.
    is_scalar = tf.cast(tf.equal(tf.rank(tensor), 0), tf.int32)
    shape = tf.concat([tf.fill([is_scalar], num_rows), tf.shape(tensor)], axis=0)
    return _of_rows(of_rank(tf.broadcast_to(tensor, shape), name, ("rows",)), name, num_rows)


def row_lists(tensor: tf.Tensor, name: str, num_rows: tf.Tensor) -> tf.Tensor:
    """Refuses a tensor that is not `(B, K)`; a single row stands for all rows."""
    lists = of_rank(tensor, name, ("rows", "values"))
    num_lists, num_values = tf.unstack(tf.shape(lists))
    shape = tf.stack([tf.where(num_lists == 1, num_rows, num_lists), num_values])
    return _of_rows(tf.broadcast_to(lists, shape), name, num_rows)


def _of_rows(tensor: tf.Tensor, name: str, num_rows: tf.Tensor) -> tf.Tensor:
    num_tensor_rows = tf.shape(tensor)[0]
    return refuse_unless(
        tf.equal(num_tensor_rows, num_rows),
        lambda: tf.strings.join(
            [f"{name} has ", _text(num_tensor_rows), " rows; the batch has ", _text(num_rows), "."]
        ),
        tensor,
    )


def not_empty(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Refuses a tensor without rows."""
    return refuse_unless(
        tf.shape(tensor)[0] > 0, lambda: tf.constant(f"{name} has no rows."), tensor
    )


def in_range(
    tensor: tf.Tensor,
    name: str,
    lowest: tf.Tensor | float,
    highest: tf.Tensor | float,
    counts: tf.Tensor | None = None,
) -> tf.Tensor:
    """Refuses numbers that are NaN or not in `lowest` to `highest`.

    Numbers where `counts`, a bool tensor of the same shape, is false are not checked.
    """
    lowest, highest = tf.cast(lowest, tensor.dtype), tf.cast(highest, tensor.dtype)
    is_bad = tf.logical_not((tensor >= lowest) & (tensor <= highest))
    if counts is not None:
        is_bad &= counts

    def must() -> tf.Tensor:
        return tf.strings.join(["; it must be ", _text(lowest), " to ", _text(highest)])

    return _refuse_first(is_bad, tensor, name, must, tensor)


def finite(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Refuses a float tensor of known rank that contains an infinity or NaN."""
    is_bad = tf.logical_not(tf.math.is_finite(tensor))
    return _refuse_first(is_bad, tensor, name, lambda: "; it must be finite.", tensor)


def of_shape(tensor: tf.Tensor, name: str, shapes: list[tf.Tensor], meaning: str) -> tf.Tensor:
    """Refuses a tensor whose shape is not in `shapes`, int32 vectors.

    `meaning` names the axes in the message.
    """
    texts = tf.stack([_vector_text(shape) for shape in shapes])
    return refuse_unless(
        tf.reduce_any(tf.equal(_vector_text(tf.shape(tensor)), texts)),
        lambda: tf.strings.join(
            [
                f"{name} has the shape ",
                _vector_text(tf.shape(tensor)),
                "; it must be ",
                tf.strings.reduce_join(texts, separator=" or "),
                f": {meaning}.",
            ]
        ),
        tensor,
    )


def texts(tensor: tf.Tensor, name: str, max_bytes: int, *, only_utf8: bool) -> tf.Tensor:
    """Refuses all but strings of at most `max_bytes`, in UTF-8 if `only_utf8`."""
    lengths = tf.strings.length(tensor)
    must = f" bytes long; it must be at most {max_bytes}."
    tensor = _refuse_first(lengths > max_bytes, lengths, name, lambda: must, tensor)
    if not only_utf8:
        return tensor
    is_bad = tf.not_equal(_utf8_bytes(tensor), tf.strings.length(tensor))
    return refuse_where(is_bad, name, lambda: " is not UTF-8.", tensor)


def _utf8_bytes(texts: tf.Tensor) -> tf.Tensor:
    """Counts the bytes in valid UTF-8 characters of each text."""
    characters = tf.strings.unicode_decode(tf.reshape(texts, [-1]), "UTF-8", errors="ignore")
    counts = sum(
        tf.cast(characters.values >= first, tf.int32) for first in (0, 0x80, 0x800, 0x10000)
    )
    counts = tf.reduce_sum(characters.with_values(counts), axis=1)
    return tf.reshape(counts, tf.shape(texts))


def _refuse_first(
    is_bad: tf.Tensor,
    numbers: tf.Tensor,
    name: str,
    must: Callable[[], tf.Tensor | str],
    tensor: tf.Tensor,
) -> tf.Tensor:
    """Refuses the first bad number, such as `name[1, 3] is -1; it must be 0 to 5`."""

    def message() -> tf.Tensor:
        number = tf.reshape(numbers, [-1])[_first_index(is_bad)]
        return tf.strings.join([" is ", _text(number), must()])

    return refuse_where(is_bad, name, message, tensor)


def refuse_where(
    is_bad: tf.Tensor, name: str, describe: Callable[[], tf.Tensor | str], tensor: tf.Tensor
) -> tf.Tensor:
    """Refuses a bad element; the message has the place of the first, and then `describe`."""
    return refuse_unless(
        tf.logical_not(tf.reduce_any(is_bad)),
        lambda: tf.strings.join([_place(is_bad, name), describe()]),
        tensor,
    )


def _place(is_bad: tf.Tensor, name: str) -> tf.Tensor:
    place = tf.unravel_index(_first_index(is_bad), tf.shape(is_bad, out_type=tf.int64))
    numbers = tf.strings.reduce_join(tf.strings.as_string(place), separator=", ")
    return tf.strings.join([name, "[", numbers, "]"])


def _first_index(is_bad: tf.Tensor) -> tf.Tensor:
    return tf.argmax(tf.cast(tf.reshape(is_bad, [-1]), tf.uint8))


def _text(number: tf.Tensor) -> tf.Tensor:
    if number.dtype.is_floating:
        return tf.strings.as_string(tf.cast(number, tf.float32), shortest=True)
    return tf.strings.as_string(number)


def _vector_text(vector: tf.Tensor) -> tf.Tensor:
    numbers = tf.strings.reduce_join(tf.strings.as_string(vector), separator=", ")
    return tf.strings.join(["(", numbers, ")"])
