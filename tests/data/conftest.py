"""A small corpus whose every window is different, written as the test wants it."""

import numpy as np
import pytest

from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.records import frame_bytes
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer


@pytest.fixture
def make_dataset(tmp_path):
    """Prepares `num_tokens` random tokens; returns the data set and its tokens."""

    def make(
        num_tokens,
        *,
        tokens_per_record=64,
        records_per_shard=5,
        is_wide=False,
        name="data",
        verify=True,
    ):
        tokenizer = IdTokenizer(1 << 16) if is_wide else ByteTokenizer()
        width = tokenizer.token_dtype.itemsize
        generator = np.random.default_rng(num_tokens)
        tokens = generator.integers(0, tokenizer.vocabulary_size, num_tokens, dtype=np.int32)
        text = b"%d " * num_tokens % tuple(tokens) if is_wide else bytes(tokens.tolist())
        folder = str(tmp_path / name)
        prepare_dataset(
            {"train": [text]},
            tokenizer,
            folder,
            "random",
            tokens_per_record=tokens_per_record,
            shard_bytes=records_per_shard * frame_bytes(tokens_per_record, width),
        )
        return PreparedDataset.open(folder, verify=verify), tokens

    return make


@pytest.fixture
def read_documents():
    """Joins the pieces of every document, in order."""

    def read(documents):
        return [
            document if isinstance(document, bytes) else b"".join(document)
            for document in documents
        ]

    return read
