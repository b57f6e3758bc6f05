"""The smallest thing that can be exported."""

import tensorflow as tf


def small_root():
    root = tf.Module()
    root.weight = tf.Variable(tf.ones([1000]))
    double = tf.function(
        lambda x: {"y": x + root.weight[0]}, input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    return root, {"double": double}
