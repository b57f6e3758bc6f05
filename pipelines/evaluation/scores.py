"""Scores of a user text by token, and of a split by document."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from txl_tf import metrics
from txl_tf.causal_lm.text import evaluation_text, pieces_of
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import DataDamagedError, InputMissingError, UsageError
from txl_tf.storage.files import write_file
from txl_tf.storage.untrusted_files import storage_errors

_READ_TOKENS = 1 << 22


class DocumentScores:
    """Sums of nats for every document of a split.

    A target counts for its own document, including the first token of a document. The first token
    of the split is no target, so the sums add up to the split's.
    """

    def __init__(self, dataset: PreparedDataset, split: str) -> None:
        self._num_tokens = dataset.num_tokens(split)
        self._starts = _document_starts(dataset, split, self._num_tokens)
        self._nats = np.zeros(len(self._starts))
        self._counts = np.zeros(len(self._starts), np.int64)

    def observe(self, places: np.ndarray, nats: np.ndarray) -> None:
        """Adds the scores of some tokens; see `Evaluator.evaluate`."""
        documents = np.searchsorted(self._starts, places, side="right") - 1
        np.add.at(self._nats, documents, nats)
        np.add.at(self._counts, documents, 1)

    def figures(self) -> list[dict[str, Any]]:
        """Returns the figures of every document."""
        rows = zip(self._starts.tolist(), self._counts.tolist(), self._nats.tolist(), strict=True)
        return [
            {
                "document": number,
                "first_token": start,
                "num_tokens": count,
                "total_nats": nats,
                "nats_per_token": nats / count if count else None,
                "perplexity": metrics.perplexity(nats / count) if count else None,
            }
            for number, (start, count, nats) in enumerate(rows)
        ]

    def write(self, path: str) -> None:
        """Writes a line of JSON for each document, replacing an existing file."""
        lines = "".join(json.dumps(each) + "\n" for each in self.figures())
        remedy = "Check the folder, the disk and the permissions."
        with storage_errors("The figures of the documents cannot be written", path, remedy):
            write_file(path, lines.encode())


def _document_starts(dataset: PreparedDataset, split: str, num_tokens: int) -> np.ndarray:
    """Returns the positions where documents begin, including the start of the split."""
    found = [np.zeros(1, np.int64)]
    for start in range(0, num_tokens, _READ_TOKENS):
        stop = min(start + _READ_TOKENS, num_tokens)
        starts = dataset.read_document_starts(split, start, stop)
        found.append(np.flatnonzero(starts) + start)
    return np.unique(np.concatenate(found))


STANDARD_INPUT = "-"


def check_text_file(path: str) -> None:
    """Raises InputMissingError for a missing file, and UsageError for a folder."""
    if path == STANDARD_INPUT:
        return
    if os.path.isdir(path):
        remedy = "Give a file; `txl prepare` takes folders."
        raise UsageError("A text is a file.", where=f"--text {path}", remedy=remedy)
    if not os.path.exists(path):
        raise InputMissingError("There is no such file.", where=f"--text {path}")


class TextScores:
    """User text with its tokens and, after an evaluation, their scores.

    `path` is a file, or `-` for the standard input. Text that the tokenizer cannot encode, or of
    fewer than two tokens, is a DataDamagedError.
    """

    def __init__(self, path: str, tokenizer: Tokenizer) -> None:
        self._where = "standard input" if path == STANDARD_INPUT else path
        self._tokenizer = tokenizer
        content = _read(path)
        self._token_ids = self._encoded(content)
        if len(self._token_ids) < 2:
            raise DataDamagedError(
                f"The text has {len(self._token_ids)} tokens: there is nothing to score.",
                where=self._where,
                remedy="Give at least two; nothing comes before the first.",
            )
        self.text = evaluation_text(content, self._token_ids, tokenizer)
        self._nats = np.full(len(self._token_ids), np.nan)

    def observe(self, places: np.ndarray, nats: np.ndarray) -> None:
        """Stores the scores of some tokens; see `Evaluator.evaluate`."""
        self._nats[places] = nats

    def scores(self) -> Iterator[dict[str, Any]]:
        """Yields `token` (its position), `id`, `text` and `nats` (None for the first) of each."""
        pieces = pieces_of(self._tokenizer, self._token_ids)
        for place, (token_id, piece, nats) in enumerate(
            zip(self._token_ids, pieces, self._nats, strict=True)
        ):
            yield {
                "token": place,
                "id": int(token_id),
                "text": piece,
                "nats": None if np.isnan(nats) else float(nats),
            }

    def print_scores(self, as_json: bool) -> None:
        """Prints a line for each token, a JSON object if `as_json`."""
        for score in self.scores():
            if as_json:
                print(json.dumps(score))
                continue
            nats = "-" if score["nats"] is None else f"{score['nats']:.6f}"
            print(f"{score['token']:>8} {nats:>12}  {score['text']!r}")

    def _encoded(self, content: bytes) -> np.ndarray:
        try:
            return self._tokenizer.encode(content).astype(np.int32)
        except InvalidTextError as error:
            remedy = "Correct the text, or take out what the tokenizer does not know."
            raise error.damaged(self._where, remedy) from error


def _read(path: str) -> bytes:
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    with storage_errors("The text cannot be read", path, "Check the file."):
        return Path(path).read_bytes()
