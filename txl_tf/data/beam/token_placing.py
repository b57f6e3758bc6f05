"""The second pass: tokens, and the shard they belong into."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from txl_tf.data.beam.shard_plan import ShardPlan
from txl_tf.data.parallel.chunk_encoding import ChunkEncoding
from txl_tf.data.parallel.text_piece import TextPiece
from txl_tf.data.tokenizer import Tokenizer


class _Part(NamedTuple):
    """Consecutive tokens of a shard, and the documents that begin within it."""

    first_token: int
    tokens: bytes
    document_starts: list[int]


class TokenPlacing:
    """Cuts the tokens of chunks where a shard ends.

    Args:
        tokenizer: `Tokenizer`.
        plans: mapping of split name to `ShardPlan`.
    """

    def __init__(self, tokenizer: Tokenizer, plans: Mapping[str, ShardPlan]) -> None:
        self._encoding = ChunkEncoding(tokenizer)
        self._plans = dict(plans)
        self._starts = {name: plan.chunk_starts() for name, plan in plans.items()}

    def __call__(
        self, chunk: tuple[str, int, list[TextPiece]]
    ) -> Iterator[tuple[tuple[str, int], _Part]]:
        """Places a chunk.

        Args:
            chunk: tuple, as `ChunkReading` gives it.

        Yields:
            Pairs of the shard, which is split and number, and what belongs
            there.

        Raises:
            ValueError: If the text is not the one that was counted.
        """
        split, number, pieces = chunk
        plan = self._plans[split]
        tokens = self._encoding(pieces)
        if len(tokens.token_ids) != plan.chunk_tokens[number]:
            raise ValueError(
                "The text must be the same in both passes. Received: "
                f"{len(tokens.token_ids)} tokens in chunk {number} of `{split}`, "
                f"{plan.chunk_tokens[number]} before"
            )
        first = int(self._starts[split][number])
        places = first + tokens.document_starts
        # A document that begins after the last token of a chunk begins with a later one.
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
