"""Trains by `fit` of Keras on all devices of JAX, and prints the rows of memory on the first.

KERAS_BACKEND=jax JAX_NUM_CPU_DEVICES=4 python -m tests.models.divided_memory
"""

import json

import keras

import txl_tf
from tests.models.variants import config_of

if __name__ == "__main__":
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    lm = txl_tf.TransformerXLCausalLM(txl_tf.TransformerXL(config_of()))
    lm.fit([1, 2, 3] * 99, batch_size=8, verbose=0)
    states = lm._trained._states["fit"]
    rows = [each.value.addressable_shards[0].data.shape[0] for each in states.variables]
    print(json.dumps({"rows": rows}))
