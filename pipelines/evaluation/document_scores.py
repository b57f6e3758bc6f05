"""The figures of an evaluation, document by document."""

import json
import math
from typing import Any

import numpy as np

from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import StorageError
from txl_tf.file_storage import first_line, write_file

_READ_TOKENS = 1 << 22


class DocumentScores:
    """Adds up the nats of every document of a split.

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
        """The figures of every document.

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
                    "perplexity": None if mean is None else math.exp(min(mean, 700.0)),
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
    """Places of the first tokens; the split begins a document, or goes on with one."""
    found = [np.zeros(1, np.int64)]
    for start in range(0, num_tokens, _READ_TOKENS):
        stop = min(start + _READ_TOKENS, num_tokens)
        starts = dataset.read_document_starts(split, start, stop)
        found.append(np.flatnonzero(starts) + start)
    return np.unique(np.concatenate(found))
