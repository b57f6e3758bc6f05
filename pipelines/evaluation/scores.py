"""Scores of a user text by token, and of a split by document."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from txl_tf import metrics
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.text import DocumentPiece, TextCounts
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError, UsageError
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.storage.files import first_line, write_file

_READ_TOKENS = 1 << 22


class DocumentScores:
    """Sums of nats for every document of a split.

    A target counts for the document it is in: the first token of a document
    too, whatever it was predicted from. The first token of the split is no
    target, so the sums over all documents are those of the split.

    Args:
        dataset: `PreparedDataset`.
        split: str. Name of the split.
    """

    def __init__(self, dataset: PreparedDataset, split: str) -> None:
        self._num_tokens = dataset.num_tokens(split)
        self._starts = _document_starts(dataset, split, self._num_tokens)
        self._nats = np.zeros(len(self._starts))
        self._counts = np.zeros(len(self._starts), np.int64)

    def observe(self, places: np.ndarray, nats: np.ndarray) -> None:
        """Takes in the scores of some tokens; see `Evaluator.evaluate`."""
        documents = np.searchsorted(self._starts, places, side="right") - 1
        np.add.at(self._nats, documents, nats)
        np.add.at(self._counts, documents, 1)

    def figures(self) -> list[dict[str, Any]]:
        """Returns the figures of every document.

        Returns:
            List of dicts with `document`, its number from 0; `first_token`, its
            place in the split; `num_tokens`, the targets in it; `total_nats`;
            `nats_per_token` and `perplexity`, None where there is no target.
        """
        figures = []
        rows = zip(self._starts.tolist(), self._counts.tolist(), self._nats.tolist(), strict=True)
        for number, (start, count, nats) in enumerate(rows):
            mean = nats / count if count else None
            figures.append(
                {
                    "document": number,
                    "first_token": start,
                    "num_tokens": count,
                    "total_nats": nats,
                    "nats_per_token": mean,
                    "perplexity": None if mean is None else metrics.perplexity(mean),
                }
            )
        return figures

    def write(self, path: str) -> None:
        """Writes a line of JSON for each document.

        Args:
            path: str. The file; one that is there is replaced.

        Raises:
            StorageError: If it cannot be written.
        """
        lines = "".join(json.dumps(each) + "\n" for each in self.figures())
        try:
            write_file(path, lines.encode())
        except OSError as error:
            raise StorageError(
                f"The figures of the documents cannot be written: {first_line(error)}",
                where=path,
                remedy="Check the folder, the disk and the permissions.",
            ) from error


def _document_starts(dataset: PreparedDataset, split: str, num_tokens: int) -> np.ndarray:
    """Returns the positions where documents begin; the start of the split counts as one."""
    found = [np.zeros(1, np.int64)]
    for start in range(0, num_tokens, _READ_TOKENS):
        stop = min(start + _READ_TOKENS, num_tokens)
        starts = dataset.read_document_starts(split, start, stop)
        found.append(np.flatnonzero(starts) + start)
    return np.unique(np.concatenate(found))


STANDARD_INPUT = "-"


def check_text_file(path: str) -> None:
    """Raises where there is no such file.

    Args:
        path: str. The file, or `-`.

    Raises:
        InputMissingError: If it does not exist.
        UsageError: If it is a folder.
    """
    if path == STANDARD_INPUT:
        return
    if os.path.isdir(path):
        remedy = "Give a file; `txl prepare` takes folders."
        raise UsageError("A text is a file.", where=f"--text {path}", remedy=remedy)
    if not os.path.exists(path):
        raise InputMissingError("There is no such file.", where=f"--text {path}")


class OwnText:
    """User text with its tokens and, after an evaluation, their scores.

    Args:
        path: str. A file, or `-` for the standard input.
        tokenizer: `Tokenizer` of the model.

    Raises:
        DataDamagedError: If the tokenizer cannot take the text, or there are
            less than two tokens.
        StorageError: If the file cannot be read.
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
        counts = _counts(content)
        self.text = EvaluationText.of_tokens(
            "text",
            self._token_ids,
            num_bytes=counts.bytes,
            num_characters=counts.characters,
            num_words=counts.words,
        )
        self._nats = np.full(len(self._token_ids), np.nan)

    def observe(self, places: np.ndarray, nats: np.ndarray) -> None:
        """Takes in the scores of some tokens; see `Evaluator.evaluate`."""
        self._nats[places] = nats

    def scores(self) -> Iterator[dict[str, Any]]:
        """Returns the score of every token, in the order of the text.

        Yields:
            Dict with `token`, its place; `id`; `text`, what it decodes to by
            itself; and `nats`, None for the first.
        """
        for place, (token_id, nats) in enumerate(zip(self._token_ids, self._nats, strict=True)):
            decoded = self._tokenizer.decode(np.array([token_id]))
            yield {
                "token": place,
                "id": int(token_id),
                "text": decoded.decode("utf-8", errors="backslashreplace"),
                "nats": None if np.isnan(nats) else float(nats),
            }

    def print_scores(self, as_json: bool) -> None:
        """Prints a line for each token.

        Args:
            as_json: bool. Whether lines are JSON objects.
        """
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
            raise DataDamagedError(
                error.reason,
                where=f"{self._where}, line {error.line}, byte {error.offset_bytes}",
                remedy="Correct the text, or take out what the tokenizer does not know.",
            ) from error


def _read(path: str) -> bytes:
    if path == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise StorageError(
            f"The text cannot be read: {error.strerror}", where=path, remedy="Check the file."
        ) from error


def _counts(content: bytes) -> TextCounts:
    whole = DocumentPiece(
        text=content,
        split="text",
        document=0,
        offset_bytes=0,
        offset_lines=0,
        begins_document=True,
        ends_document=True,
        begins_line=True,
        splits_line_end=False,
        continues_word=False,
    )
    return TextCounts.of([whole])
