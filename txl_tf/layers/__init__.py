"""The layers of Transformer-XL and of the models it is compared with, for Keras 3."""

from txl_tf.layers.absolute_attention import AbsoluteAttention
from txl_tf.layers.adaptive_embedding import AdaptiveEmbedding
from txl_tf.layers.adaptive_softmax import AdaptiveSoftmax
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.layers.relative_attention import RelativeAttention
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.layers.shaw_attention import ShawAttention
from txl_tf.layers.tied_softmax import TiedSoftmax
from txl_tf.layers.token_embedding import TokenEmbedding

__all__ = [
    "AbsoluteAttention",
    "AdaptiveEmbedding",
    "AdaptiveSoftmax",
    "DecoderBlock",
    "FeedForward",
    "RelativeAttention",
    "SeededDropout",
    "ShawAttention",
    "TiedSoftmax",
    "TokenEmbedding",
]
