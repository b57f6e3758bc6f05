"""Apache Beam transforms that count, place and write the tokens of a data set."""

import dataclasses
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from txl_tf.data.encoding import BatchEncoder
from txl_tf.data.manifest import shard_file_name
from txl_tf.data.records import RecordWriter, frame_bytes, token_dtype
from txl_tf.data.text import Document, DocumentPiece, work_batches
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.storage.files import make_folder, remove_folder


class BatchReading:
    """Reading of splits in numbered batches, for a Beam pipeline.

    Args:
        splits: mapping of split name to documents, which can be sent to other
            machines and are the same there.
    """

    def __init__(self, splits: Mapping[str, Iterable[Document]]) -> None:
        self._splits = dict(splits)

    def __call__(self, split: str) -> Iterator[tuple[str, int, list[DocumentPiece]]]:
        """Reads a split.

        Args:
            split: str. Name of the split.

        Yields:
            Name of the split, number of the batch, and its pieces.
        """
        for number, pieces in enumerate(work_batches(split, self._splits[split])):
            yield split, number, pieces


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """The place of every token, as `RecordWriter` would give it.

    Args:
        batch_tokens: tuple of int. Tokens of every batch, in order.
        tokens_per_record: int.
        token_bytes: int. Width of a stored token.
        shard_bytes: int. Size at which a shard ends.
    """

    batch_tokens: tuple[int, ...]
    tokens_per_record: int
    token_bytes: int
    shard_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return sum(self.batch_tokens)

    @property
    def tokens_per_shard(self) -> int:
        """Tokens of every shard but the last."""
        frame = frame_bytes(self.tokens_per_record, self.token_bytes)
        return max(1, self.shard_bytes // frame) * self.tokens_per_record

    @property
    def num_shards(self) -> int:
        """Shards of the split."""
        return -(-self.num_tokens // self.tokens_per_shard)

    def batch_starts(self) -> np.ndarray:
        """Returns the first token of every batch, as int64 vector."""
        return np.cumsum([0, *self.batch_tokens[:-1]], dtype=np.int64)


class ShardWriting:
    """Writing of shards, each into its own folder first, for a Beam pipeline.

    A pipeline may do work twice, and at the same time; the bytes are the same,
    and the last rename counts.

    Args:
        folder: str. The folder of the data set.
        plans: mapping of split name to `ShardPlan`.
        vocabulary_size: int. Number of ids.
    """

    def __init__(self, folder: str, plans: Mapping[str, ShardPlan], vocabulary_size: int) -> None:
        self._folder = folder
        self._plans = dict(plans)
        self._vocabulary_size = vocabulary_size

    def __call__(self, item: tuple[tuple[str, int], Iterable[Any]]) -> dict[str, Any]:
        """Writes a shard.

        Args:
            item: pair of the shard, which is split and number, and its parts in
                any order, as `TokenPlacing` gives them.

        Returns:
            Dict of JSON values: split, number, manifest of the shard, and which
            ids occur, as bits in hexadecimal.

        Raises:
            ValueError: If tokens are missing or an id is not in the vocabulary.
        """
        (split, number), parts = item
        plan = self._plans[split]
        tokens, starts = _gathered(parts, token_dtype(plan.token_bytes))
        expected = min(plan.tokens_per_shard, plan.num_tokens - number * plan.tokens_per_shard)
        if len(tokens) != expected or not 0 <= tokens.min() <= tokens.max() < self._vocabulary_size:
            raise ValueError(
                f"A shard must have {expected} tokens with ids below {self._vocabulary_size}. "
                f"Received: {len(tokens)} tokens, ids from {tokens.min()} to {tokens.max()}"
            )
        used = np.zeros(self._vocabulary_size, bool)
        used[tokens] = True
        return {
            "split": split,
            "number": number,
            "shard": self._write(split, number, tokens, starts),
            "used": np.packbits(used).tobytes().hex(),
        }

    def _write(
        self, split: str, number: int, tokens: np.ndarray, starts: list[int]
    ) -> dict[str, Any]:
        import tensorflow as tf

        plan = self._plans[split]
        own = os.path.join(self._folder, f"shard-{uuid.uuid4().hex}")
        make_folder(own)
        try:
            with RecordWriter(
                own,
                split,
                token_bytes=plan.token_bytes,
                tokens_per_record=plan.tokens_per_record,
                shard_bytes=plan.shard_bytes,
            ) as writer:
                writer.write(tokens, document_starts=starts)
                (shard,) = writer.finish()
            name = shard_file_name(split, number, plan.num_shards)
            target = os.path.join(self._folder, name)
            tf.io.gfile.rename(os.path.join(own, shard.file), target, overwrite=True)
        finally:
            remove_folder(own)
        return {**shard.to_dict(), "file": name}


def _gathered(parts: Iterable[Any], dtype: np.dtype) -> tuple[np.ndarray, list[int]]:
    ordered = sorted(parts, key=lambda part: part[0])
    starts = sorted({place for part in ordered for place in part[2]})
    return np.frombuffer(b"".join(part[1] for part in ordered), dtype), starts


class TokenCounting:
    """Counts of tokens and text per batch, for a Beam pipeline.

    Args:
        tokenizer: `Tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoding = BatchEncoder(tokenizer)

    def __call__(self, batch: tuple[str, int, list[DocumentPiece]]) -> dict[str, Any]:
        """Counts a batch.

        Args:
            batch: tuple, as `BatchReading` gives it.

        Returns:
            Dict of JSON values.
        """
        split, number, pieces = batch
        tokens = self._encoding(pieces)
        return {
            "split": split,
            "batch": number,
            "tokens": len(tokens.token_ids),
            "counts": list(tokens.counts),
        }


class _Part(NamedTuple):
    """Consecutive tokens of a shard, and the documents that begin within it."""

    first_token: int
    tokens: bytes
    document_starts: list[int]


class TokenPlacing:
    """Division of the tokens of batches at shard ends, for a Beam pipeline.

    Args:
        tokenizer: `Tokenizer`.
        plans: mapping of split name to `ShardPlan`.
    """

    def __init__(self, tokenizer: Tokenizer, plans: Mapping[str, ShardPlan]) -> None:
        self._encoding = BatchEncoder(tokenizer)
        self._plans = dict(plans)
        self._starts = {name: plan.batch_starts() for name, plan in plans.items()}

    def __call__(
        self, batch: tuple[str, int, list[DocumentPiece]]
    ) -> Iterator[tuple[tuple[str, int], _Part]]:
        """Places a batch.

        Args:
            batch: tuple, as `BatchReading` gives it.

        Yields:
            Pairs of the shard, which is split and number, and what belongs
            there.

        Raises:
            ValueError: If the text is not the one that was counted.
        """
        split, number, pieces = batch
        plan = self._plans[split]
        tokens = self._encoding(pieces)
        if len(tokens.token_ids) != plan.batch_tokens[number]:
            raise ValueError(
                "The text must be the same in both passes. Received: "
                f"{len(tokens.token_ids)} tokens in batch {number} of `{split}`, "
                f"{plan.batch_tokens[number]} before"
            )
        first = int(self._starts[split][number])
        places = first + tokens.document_starts
        # A document that begins after the last token of a batch begins with a later one.
        places = places[places < plan.num_tokens]
        size = plan.tokens_per_shard
        stop = first + len(tokens.token_ids)
        last_place = int(places[-1]) if places.size else first
        after_last = min(max(stop - 1, last_place) // size + 1, plan.num_shards)
        for shard in range(first // size, after_last):
            start, end = shard * size, (shard + 1) * size
            part = tokens.token_ids[max(0, start - first) : max(0, end - first)]
            here = places[(places >= start) & (places < end)] - start
            yield (
                (split, shard),
                _Part(max(first, start) - start, part.tobytes(), np.unique(here).tolist()),
            )
