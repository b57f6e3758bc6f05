"""Tests of `txl_tf.tpu_compiler`."""
