"""A small corpus whose every window is different, written as the test wants it."""

import numpy as np
import pytest

from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.records import frame_bytes
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer


class WideTokenizer(ByteTokenizer):
    """Pairs of bytes: tokens of two bytes, to see widths other than one."""

    kind = "pairs"
    vocabulary_size = 65536
    token_dtype = np.dtype("<u2")

    def encode_piece(self, text, begins_line, ends_document):
        return np.frombuffer(text[: len(text) // 2 * 2], dtype="<u2")


def random_text(num_bytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8).tobytes()


@pytest.fixture
def make_dataset(tmp_path):
    """Prepares `num_tokens` random tokens; returns the data set and its tokens."""

    def make(
        num_tokens,
        *,
        tokens_per_record=64,
        records_per_shard=5,
        tokenizer=None,
        name="data",
        verify=True,
    ):
        tokenizer = tokenizer or ByteTokenizer()
        width = tokenizer.token_dtype.itemsize
        text = random_text(num_tokens * width, seed=num_tokens)
        folder = str(tmp_path / name)
        prepare_dataset(
            {"train": [text]},
            tokenizer,
            folder,
            "random",
            tokens_per_record=tokens_per_record,
            shard_bytes=records_per_shard * frame_bytes(tokens_per_record, width),
        )
        tokens = np.frombuffer(text, tokenizer.token_dtype).astype(np.int32)
        return PreparedDataset.open(folder, verify=verify), tokens

    return make


@pytest.fixture
def wide_tokenizer():
    return WideTokenizer()


@pytest.fixture
def read_documents():
    """Joins the pieces of every document, in order."""

    def read(documents):
        return [
            document if isinstance(document, bytes) else b"".join(document)
            for document in documents
        ]

    return read
