"""Recount of the text of a data set, for tokenizers whose tokens determine the text."""

import os

import numpy as np

from txl_tf.data.manifest import MANIFEST_FILE
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.text import TextCounts, TextPiece
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import DataDamagedError

_BLOCK_TOKENS = 1 << 22


def verify_counts(dataset: PreparedDataset, tokenizer: Tokenizer) -> bool:
    """Compares bytes, characters and words of every split with its tokens.

    Documents without text leave no token, so of documents there may be more
    than the tokens tell.

    Args:
        dataset: `PreparedDataset`, verified.
        tokenizer: `Tokenizer` of the data set.

    Returns:
        Whether the tokens tell the text: they do where they are bytes, or
        characters none of which is unknown.

    Raises:
        DataDamagedError: If a count is wrong.
        StorageError: If a file cannot be read.
    """
    tells = {"bytes": True, "characters": getattr(tokenizer, "unknown_token", None) is None}
    if not tells.get(tokenizer.kind, False):
        return False
    for split in dataset.manifest.splits:
        found = _counts(dataset, tokenizer, split.name)
        for name in ("bytes", "characters", "words"):
            if getattr(split, name) != getattr(found, name):
                raise _wrong(dataset, f"`{name}` of `{split.name}`", split, found, name)
        if split.documents < found.documents:
            raise _wrong(dataset, f"`documents` of `{split.name}`", split, found, "documents")
    return True


def _wrong(
    dataset: PreparedDataset, what: str, split: object, found: TextCounts, name: str
) -> DataDamagedError:
    return DataDamagedError(
        f"{what} is {getattr(split, name)}; the tokens have {getattr(found, name)}.",
        where=os.path.join(dataset.folder, MANIFEST_FILE),
        remedy="Restore the manifest, or prepare the data set again.",
    )


def _counts(dataset: PreparedDataset, tokenizer: Tokenizer, split: str) -> TextCounts:
    counts = TextCounts()
    ends_in_word = False
    num_tokens = dataset.num_tokens(split)
    for start in range(0, num_tokens, _BLOCK_TOKENS):
        stop = min(start + _BLOCK_TOKENS, num_tokens)
        begins = np.flatnonzero(dataset.read_document_starts(split, start, stop))
        token_ids = dataset.read_tokens(split, start, stop)
        pieces = []
        ends = zip([0, *begins], [*begins, stop - start], strict=True)
        for index, (first, last) in enumerate(ends):
            if first == last:
                continue  # the block begins with a document
            text = tokenizer.decode(token_ids[first:last])
            pieces.append(_piece(text, split, index > 0, ends_in_word))
            ends_in_word = bool(text[-1:].strip(b" \t\n\r\x0b\x0c"))
        counts = counts.plus(TextCounts.of(pieces))
    return counts


def _piece(text: bytes, split: str, begins_document: bool, ends_in_word: bool) -> TextPiece:
    return TextPiece(
        text=text,
        split=split,
        document=0,
        offset_bytes=0,
        offset_lines=0,
        begins_document=begins_document,
        ends_document=False,
        begins_line=False,
        splits_line_end=False,
        continues_word=ends_in_word and not begins_document,
    )
