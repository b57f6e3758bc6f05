"""Text of one's own as an evaluation reads it, and its score token by token."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from txl_tf.data.parallel.text_piece import TextPiece
from txl_tf.data.text_counts import TextCounts
from txl_tf.data.tokenizer import Tokenizer
from txl_tf.data.tokenizers.invalid_text_error import InvalidTextError
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError, UsageError
from txl_tf.evaluation.evaluation_text import EvaluationText

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
    """A text, its tokens, and after an evaluation what each of them was worth.

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
        """The score of every token, in the order of the text.

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
    whole = TextPiece(
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
