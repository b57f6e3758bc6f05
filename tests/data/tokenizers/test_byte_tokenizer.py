import numpy as np
import pytest

from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer


def test_every_byte_survives_the_round_trip():
    text = bytes(range(256)) * 3 + "h\u00e9 \u20ac".encode()
    ids = ByteTokenizer().encode(text)
    assert ids.dtype == np.uint8
    assert ids.tolist() == list(text)
    assert ByteTokenizer().decode(ids) == text
    assert ByteTokenizer().decode(ids.astype(np.int64).tolist()) == text
    assert ByteTokenizer().decode([]) == b""


def test_pieces_are_encoded_one_by_one():
    parts = ByteTokenizer().encode_pieces([b"ab", b"", b"\xff"])
    assert [part.tolist() for part in parts] == [[97, 98], [], [255]]


def test_the_fingerprint_never_changes():
    assert ByteTokenizer().fingerprint == (
        "4faef591ec8b2c8e28e42b17b1803e84f3155b3dcaf7f80dc72537c01e1f662b"
    )


@pytest.mark.parametrize("ids", [[256], [-1], [1.5]])
def test_ids_that_are_no_bytes_are_refused(ids):
    with pytest.raises(ValueError, match="Received: "):
        ByteTokenizer().decode(ids)
