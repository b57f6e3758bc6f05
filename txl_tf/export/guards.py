"""Refuses bad requests within the graph, by value and place.

Shape letters used in this module: B rows, T tokens.
"""

from collections.abc import Callable

import tensorflow as tf

_FINE = "0"


def refuse_unless(
    is_good: tf.Tensor, describe: Callable[[], tf.Tensor], tensor: tf.Tensor
) -> tf.Tensor:
    """Passes a tensor on, or ends the request as an invalid argument.

    An assertion says what is wrong. Compilers and graph rewrites may leave
    assertions out, so what follows also needs a number that is read from the
    message, which only a good request has; it is data, and cannot be left out.
    (To add the number to a shape was not enough: a reshape to the same shape is
    taken out, and the number with it.)

    Args:
        is_good: bool scalar.
        describe: function that returns the message, a string scalar. It is
            computed where something is wrong only.
        tensor: tensor of any type and shape.

    Returns:
        The same tensor. Whatever is computed from it is computed after the
        check.

    Raises:
        tf.errors.InvalidArgumentError: When it runs, if `is_good` is false.
    """
    message = tf.cond(is_good, lambda: tf.constant(_FINE), describe)
    with tf.control_dependencies([tf.debugging.Assert(is_good, [message])]):
        message = tf.identity(message)
    zero = tf.strings.to_number(message, tf.int32)
    # All of the tensor, from its beginning, which nobody knows before.
    rank = tf.rank(tensor)
    checked = tf.slice(tensor, tf.fill([rank], zero), tf.fill([rank], -1))
    checked.set_shape(tensor.shape)
    return checked


def of_rank(tensor: tf.Tensor, name: str, axes: tuple[str, ...]) -> tf.Tensor:
    """Refuses a tensor that has not these axes; returns it with its rank known.

    Signatures must leave ranks and sizes open. Those that they promise are taken
    for granted by graph rewrites, and servers do not check them.
    """
    name, wanted = tf.constant(name), tf.constant(", ".join(axes))
    checked = refuse_unless(
        tf.equal(tf.rank(tensor), len(axes)),
        lambda: tf.strings.join(
            [name, " has the shape ", _shape_text(tensor), "; it must be (", wanted, ")."]
        ),
        tensor,
    )
    return tf.ensure_shape(checked, [None] * len(axes))


def row_vector(tensor: tf.Tensor, name: str, num_rows: tf.Tensor | None = None) -> tf.Tensor:
    """Refuses what is not a tensor `(B,)`.

    `num_rows` is an int32 scalar, the rows of the other inputs. With it a scalar
    stands for all rows. Without it, there must be one row at least.
    """
    if num_rows is not None:
        # Without a branch, of which a graph has two functions and their arguments.
        is_scalar = tf.cast(tf.equal(tf.rank(tensor), 0), tf.int32)
        shape = tf.concat([tf.fill([is_scalar], num_rows), tf.shape(tensor)], axis=0)
        tensor = tf.broadcast_to(tensor, shape)
    checked = of_rank(tensor, name, ("rows",))
    found = tf.shape(checked)[0]
    if num_rows is None:
        return refuse_unless(found > 0, lambda: tf.constant(f"{name} has no rows."), checked)
    name = tf.constant(name)
    return refuse_unless(
        tf.equal(found, num_rows),
        lambda: tf.strings.join(
            [name, " has ", _text(found), " rows; the batch has ", _text(num_rows), "."]
        ),
        checked,
    )


def in_range(
    tensor: tf.Tensor,
    name: str,
    lowest: tf.Tensor | float,
    highest: tf.Tensor | float,
    counts: tf.Tensor | None = None,
) -> tf.Tensor:
    """Refuses numbers that are not from `lowest` to `highest`, or not a number.

    Where `counts`, a bool tensor of the same shape, is false, any number is good.
    """
    lowest, highest = tf.cast(lowest, tensor.dtype), tf.cast(highest, tensor.dtype)
    is_bad = tf.logical_not((tensor >= lowest) & (tensor <= highest))
    if counts is not None:
        is_bad &= counts
    # A constant here, and not within the message: messages of all inputs are one function.
    name = tf.constant(name)
    return refuse_unless(
        tf.logical_not(tf.reduce_any(is_bad)),
        lambda: tf.strings.join(
            [_first(is_bad, tensor, name), "; it must be ", _text(lowest), " to ", _text(highest)]
        ),
        tensor,
    )


def finite(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Refuses a float tensor of known rank with what is infinite or not a number."""
    is_bad = tf.logical_not(tf.math.is_finite(tensor))
    name = tf.constant(name)
    return refuse_unless(
        tf.logical_not(tf.reduce_any(is_bad)),
        lambda: tf.strings.join([_first(is_bad, tensor, name), "; it must be finite."]),
        tensor,
    )


def of_shape(tensor: tf.Tensor, name: str, shapes: list[tf.Tensor], meaning: str) -> tf.Tensor:
    """Refuses a tensor that has none of some shapes, int32 vectors.

    `meaning` is what the axes are, for the message.
    """
    texts = tf.stack([_vector_text(shape) for shape in shapes])
    return refuse_unless(
        tf.reduce_any(tf.equal(_shape_text(tensor), texts)),
        lambda: tf.strings.join(
            [
                f"{name} has the shape ",
                _shape_text(tensor),
                "; it must be ",
                tf.strings.reduce_join(texts, separator=" or "),
                f": {meaning}.",
            ]
        ),
        tensor,
    )


def texts(tensor: tf.Tensor, name: str, max_bytes: int, *, only_utf8: bool) -> tf.Tensor:
    """Refuses what are not strings `(B,)` of at most `max_bytes`, in UTF-8 if asked for."""
    checked = row_vector(tensor, name)
    lengths = tf.strings.length(checked)
    is_long = lengths > max_bytes
    checked = refuse_unless(
        tf.logical_not(tf.reduce_any(is_long)),
        lambda: tf.strings.join(
            [_first(is_long, lengths, name), f" bytes long; it must be {max_bytes} at most."]
        ),
        checked,
    )
    if not only_utf8:
        return checked
    is_bad = tf.not_equal(_utf8_bytes(checked), tf.strings.length(checked))
    return refuse_unless(
        tf.logical_not(tf.reduce_any(is_bad)),
        lambda: tf.strings.join([_place(is_bad, name), " is not UTF-8."]),
        checked,
    )


def _utf8_bytes(texts: tf.Tensor) -> tf.Tensor:
    """How many bytes the characters of each text take; fewer than it has if some are none."""
    characters = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    counts = sum(
        tf.cast(characters.values >= first, tf.int32) for first in (0, 0x80, 0x800, 0x10000)
    )
    return tf.reduce_sum(characters.with_values(counts), axis=1)


def _first(is_bad: tf.Tensor, tensor: tf.Tensor, name: str | tf.Tensor) -> tf.Tensor:
    """`name[1, 3] is -1`, of the first that is bad."""
    index = _first_index(is_bad)
    return tf.strings.join([_place(is_bad, name), " is ", _text(tf.reshape(tensor, [-1])[index])])


def _place(is_bad: tf.Tensor, name: str | tf.Tensor) -> tf.Tensor:
    place = tf.unravel_index(_first_index(is_bad), tf.shape(is_bad, out_type=tf.int64))
    numbers = tf.strings.reduce_join(tf.strings.as_string(place), separator=", ")
    return tf.strings.join([name, "[", numbers, "]"])


def _first_index(is_bad: tf.Tensor) -> tf.Tensor:
    return tf.argmax(tf.cast(tf.reshape(is_bad, [-1]), tf.uint8))


def _text(number: tf.Tensor) -> tf.Tensor:
    if number.dtype.is_floating:
        return tf.strings.as_string(tf.cast(number, tf.float32), shortest=True)
    return tf.strings.as_string(number)


def _shape_text(tensor: tf.Tensor) -> tf.Tensor:
    return _vector_text(tf.shape(tensor))


def _vector_text(vector: tf.Tensor) -> tf.Tensor:
    numbers = tf.strings.reduce_join(tf.strings.as_string(vector), separator=", ")
    return tf.strings.join(["(", numbers, ")"])
