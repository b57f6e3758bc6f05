"""Every server refuses a bad request with value and index; good requests pass unchanged."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.export import guards


@pytest.fixture
def without_assertions():
    """Lets TensorFlow strip assertions, as the graph rewrites of a server may."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"debug_stripper": True})
    yield
    tf.config.optimizer.set_experimental_options({"debug_stripper": False, **before})


def test_no_rewrite_leaves_the_check_out(without_assertions):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
    def asserted_only(values):
        with tf.control_dependencies([tf.debugging.Assert(values[0] > 0, [values])]):
            return tf.identity(values)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
    def checked(values):
        return guards.in_range(values, "values", 1, 5)

    np.testing.assert_array_equal(asserted_only([0]), [0])  # the rewrite is at work
    np.testing.assert_array_equal(checked([1, 5]), [1, 5])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"values\[1\] is 6; it must be 1 to 5"
    ):
        checked([1, 6])


CHECK_TEXTS = {
    only_utf8: tf.function(
        lambda texts, only_utf8=only_utf8: guards.texts(texts, "texts", 9, only_utf8=only_utf8),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    for only_utf8 in (False, True)
}
CHARACTERS = ["\0", "\x7f", "\u0080", "\u07ff", "\u0800", "\ufeff", "\ufffd", "\U0010ffff"]


def test_texts_are_checked_for_length_and_encoding():
    texts = [each.encode() for each in CHARACTERS] + [b"", "a\ufeff\U00010000".encode()]
    for check in CHECK_TEXTS.values():
        assert check(texts).numpy().tolist() == texts
    for bad in (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"):
        assert CHECK_TEXTS[False]([b"a", bad]).numpy().tolist() == [b"a", bad]
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"texts\[1\] is not UTF-8"):
            CHECK_TEXTS[True]([b"a", bad])
    for length in (10, 1 << 20, 100 << 20):
        message = rf"texts\[1\] is {length} bytes long; it must be at most 9"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            CHECK_TEXTS[True]([b"a", b"x" * length])
