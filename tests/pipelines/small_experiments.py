"""The small model that the tests of jobs train, and the identity of data that is nowhere.

Every process traces it again for every replica: more layers would only take longer.
"""

from tests.small_models import VOCABULARY_SIZE

MODEL = {
    "vocabulary_size": 256,
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "intermediate_dim": 32,
    "segment_length": 16,
    "memory_length": 16,
    "dropout": 0.1,
}
TOY_DATA = {
    "fingerprint": "0",
    "corpus": "toy",
    "tokenizer": "bytes",
    "tokenizer_sha256": "0",
    "vocabulary_size": VOCABULARY_SIZE,
}
