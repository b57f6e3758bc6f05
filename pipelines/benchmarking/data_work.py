"""Preparation of a text and reading of segments in turns, and random text for them.

Shape letters used in this module: B rows, T segment length, V vocabulary.
"""

import os
import tempfile
from typing import Any

import numpy as np

from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.tokenizer import narrowest_token_dtype

from .. import prepare as preparation
from ..job_parser import JobParser
from .turn_server import Turn

_WORDS = 50_000
_WORDS_PER_LINE = 12
_TEXT_BYTES = 16_000_000
_READ_BATCHES = 256
_MOST_PIECE_TOKENS = 1 << 22


def prepare(request: dict[str, Any]) -> Turn:
    """Creates the work of `txl prepare`: a text is encoded and its data set written each time.

    Args:
        request: dict with the `tokenizer`, a `folder` to write into, and as
            `text` the path of a file; `None` for generated words.
    """
    folder, path = request["folder"], request["text"]
    if path is None:
        path = os.path.join(folder, "words.txt")
        with open(path, "wb") as file:
            file.write(random_words(_TEXT_BYTES))
    parser = JobParser(prog="txl prepare")
    preparation.add_arguments(parser)
    words = ["--text", path, "--tokenizer", request["tokenizer"], "--out"]

    def turn(count: int) -> dict[str, Any]:
        tokens = 0
        for _ in range(count):
            with tempfile.TemporaryDirectory(dir=folder) as parent:
                out = os.path.join(parent, "data")
                arguments = parser.parse_args([*words, out])
                preparation.check_arguments(arguments)
                preparation.run(arguments)
                manifest = PreparedDataset.open(out, verify=False).manifest
                tokens += sum(split.tokens for split in manifest.splits)
        return {"tokens": tokens}

    return turn


def read(request: dict[str, Any]) -> Turn:
    """Creates the work of reading batches of a data set's split `train`, one each time.

    Args:
        request: dict with `num_rows`, `segment_length` and
            `with_document_starts`, a `folder` to write into, and as `data` the
            folder of a data set; `None` for one of random bytes.
    """
    from txl_tf.data.segment_plan import SegmentPlan
    from txl_tf.data.segment_reader import SegmentReader

    num_rows, segment_length = request["num_rows"], request["segment_length"]
    path = request["data"]
    if path is None:
        num_tokens = _READ_BATCHES * num_rows * segment_length + 1
        path = write_random_dataset(request["folder"], num_tokens, 256)
    dataset = PreparedDataset.open(path, verify=False)
    plan = SegmentPlan(
        num_tokens=dataset.num_tokens("train"),
        num_rows=num_rows,
        segment_length=segment_length,
        fingerprint=dataset.fingerprint,
    )
    reader = SegmentReader(dataset, "train", plan, request["with_document_starts"])
    batches = iter(reader.dataset_fn(0, range(num_rows), num_rows))

    def turn(count: int) -> dict[str, Any]:
        for _ in range(count):
            next(batches)
        return {"tokens": count * num_rows * segment_length}

    return turn


def random_words(num_bytes: int) -> bytes:
    """Makes a text of words, a few of which are most of it, as in a language."""
    generator = np.random.default_rng(0)
    letters = generator.integers(ord("a"), ord("z") + 1, (_WORDS, 12), dtype=np.uint8)
    lengths = generator.integers(2, 12, _WORDS)
    words = [row[:length].tobytes() for row, length in zip(letters, lengths, strict=True)]
    lines: list[bytes] = []
    left = num_bytes
    while left > 0:
        drawn = np.minimum(generator.zipf(1.2, _WORDS_PER_LINE), _WORDS) - 1
        lines.append(b" ".join(words[index] for index in drawn) + b"\n")
        left -= len(lines[-1])
    return b"".join(lines)


def write_random_dataset(folder: str, num_tokens: int, vocabulary_size: int) -> str:
    """Writes a prepared data set of random token ids with the split `train`.

    Args:
        folder: str. Where its folder goes.
        num_tokens: int.
        vocabulary_size: int. `V`.

    Returns:
        The path of the data set.
    """
    from txl_tf.data.preparation import prepare_dataset

    class NumberTokenizer(ByteTokenizer):
        """Tokenizer of a text whose bytes are those of the token ids."""

        kind = "numbers"

    NumberTokenizer.vocabulary_size = vocabulary_size
    NumberTokenizer.token_dtype = dtype = narrowest_token_dtype(vocabulary_size)
    generator = np.random.default_rng(0)
    pieces = []
    for first in range(0, num_tokens, _MOST_PIECE_TOKENS):
        size = min(_MOST_PIECE_TOKENS, num_tokens - first)
        pieces.append(generator.integers(0, vocabulary_size, size).astype(dtype).tobytes())
    path = os.path.join(folder, "data")
    prepare_dataset({"train": [pieces]}, NumberTokenizer(), path, "random")
    return path
