"""The layers of Transformer-XL, for Keras 3."""

from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.feed_forward import FeedForward
from txl_tf.layers.relative_attention import RelativeAttention
from txl_tf.layers.seeded_dropout import SeededDropout
from txl_tf.layers.tied_softmax import TiedSoftmax
from txl_tf.layers.token_embedding import TokenEmbedding

__all__ = [
    "DecoderBlock",
    "FeedForward",
    "RelativeAttention",
    "SeededDropout",
    "TiedSoftmax",
    "TokenEmbedding",
]
