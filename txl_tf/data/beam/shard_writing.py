"""Writes a shard from its parts, within a pipeline."""

import os
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from txl_tf.data.beam.shard_plan import ShardPlan
from txl_tf.data.record_format import token_dtype
from txl_tf.data.record_writer import RecordWriter
from txl_tf.data.split_manifest import shard_file_name
from txl_tf.file_storage import make_folder, remove_folder


class ShardWriting:
    """Writes shards, each into a folder of its own first.

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
