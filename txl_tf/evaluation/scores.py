"""Scores of the splits of a data set, and of single texts."""

import dataclasses
import functools
from typing import Any

import numpy as np

from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.errors import DataDamagedError
from txl_tf.evaluation.evaluation_text import EvaluationText
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.result import EvaluationResult


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TextScore(EvaluationResult):
    """Result for a text, with the negative log-likelihood of each token.

    The first token has no score, because no token before it predicts it.
    """

    token_ids: np.ndarray
    """int32 vector of the tokens."""
    nats: np.ndarray
    """float64 vector of the nats of each token; NaN for the first."""
    tokenizer: Tokenizer
    """Tokenizer of the text."""

    @functools.cached_property
    def pieces(self) -> list[str]:
        """Text of each token; bytes that are not UTF-8 are escaped."""
        return self.tokenizer.decode_each(self.token_ids)


def evaluate_split(
    evaluator: Evaluator, dataset: PreparedDataset, split: str, *, step: int, **options: Any
) -> EvaluationResult:
    """Evaluates a split of a prepared data set; `options` are passed to `Evaluator.evaluate`."""
    text = EvaluationText.of_split(dataset, split)
    if text.num_tokens < 2:
        raise DataDamagedError(
            f"The split {split} has less than two tokens: there is nothing to score.",
            where=dataset.folder,
            remedy="Prepare a longer text.",
        )
    return evaluator.evaluate(text, step=step, **options)


def score_text(
    evaluator: Evaluator,
    tokenizer: Tokenizer,
    text: str | bytes | np.ndarray,
    *,
    step: int = 0,
    **options: Any,
) -> TextScore:
    """Scores a text, or token ids; `options` are passed to `Evaluator.evaluate`.

    Raises InvalidTextError if the text has no encoding or fewer than 2 tokens.
    """
    if isinstance(text, np.ndarray):
        content, token_ids = tokenizer.decode_bytes(text), text.astype(np.int32)
    else:
        content = text.encode() if isinstance(text, str) else text
        token_ids = tokenizer.encode(content).astype(np.int32)
    if len(token_ids) < 2:
        raise InvalidTextError(
            "A text must have at least 2 tokens, because the first token has no score.",
            content,
            len(content),
        )
    if tokenizer.kind == "ids":
        content = b""  # the text of an id is a number, which is no data
    evaluation_text = EvaluationText.of_tokens(
        "text",
        token_ids,
        num_bytes=len(content),
        # Bytes 0x80 to 0xBF, which are -128 to -65 as signed numbers, continue a code point.
        num_characters=int(np.count_nonzero(np.frombuffer(content, np.int8) >= -64)),
        num_words=len(content.split()),
        tokenizer_kind=tokenizer.kind,
        unknown_id=tokenizer.unknown_id,
    )
    nats = np.full(len(token_ids), np.nan)
    result = evaluator.evaluate(evaluation_text, step=step, observe=nats.__setitem__, **options)
    return TextScore(**vars(result), token_ids=token_ids, nats=nats, tokenizer=tokenizer)
