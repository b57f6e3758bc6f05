"""Attention of models whose inputs carry absolute positions."""

import keras

from txl_tf.layers.memory_attention import MemoryAttention


@keras.saving.register_keras_serializable(package="txl_tf")
class AbsoluteAttention(MemoryAttention):
    """Multi-head attention of Vaswani et al. (2017), Section 3.2, with a memory.

    It knows nothing of positions: they have to be part of `inputs` and
    `memory`. Arguments and results are those of `MemoryAttention`.
    """

    def call(self, inputs, memory=None, attention_mask=None, dropout_seed=None, training=False):
        return super().call(inputs, memory, attention_mask, dropout_seed, training)
