"""Layers of Transformer-XL and of its baselines, for Keras 3."""

from txl_tf.layers.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from txl_tf.layers.attention.memory_attention import MemoryAttention
from txl_tf.layers.attention.relative_attention import RelativeAttention
from txl_tf.layers.attention.shaw_attention import ShawAttention
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.feed_forward import FeedForward, GRUGate
from txl_tf.layers.pooled_head import PooledHead
from txl_tf.layers.seeded_dropout import SeededDropout

__all__ = [
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "DecoderBlock",
    "FeedForward",
    "GRUGate",
    "MemoryAttention",
    "PooledHead",
    "RelativeAttention",
    "SeededDropout",
    "ShawAttention",
]
