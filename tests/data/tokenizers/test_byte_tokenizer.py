"""Tokenizer of bytes."""

import numpy as np

from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer


def test_every_byte_survives_the_round_trip():
    text = bytes(range(256)) * 3
    ids = ByteTokenizer().encode(text)
    assert (ids.dtype, ids.tolist()) == (np.uint8, list(text))
    assert ByteTokenizer().decode_bytes(ids.tolist()) == text
    assert ByteTokenizer().decode([*"aé".encode(), 0xC3, 98]) == "aé\ufffdb"
