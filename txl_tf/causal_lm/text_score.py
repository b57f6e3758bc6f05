"""Score of a text: the nats of each token, and figures of the whole."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from txl_tf.data.text import TextCounts, work_batches
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.evaluation.text_rows import EvaluationText

if TYPE_CHECKING:
    from txl_tf.evaluation.evaluator import Evaluator


@dataclasses.dataclass(frozen=True, eq=False)
class TextScore:
    """Negative log-likelihood of a text by token; a lower one is a better prediction.

    The first token is predicted from nothing and has no score.
    """

    pieces: list[str]
    """Text of each token alone; bytes that are not UTF-8 are escaped."""
    token_ids: np.ndarray
    """int32 vector of the tokens."""
    nats: np.ndarray
    """float64 vector of the nats of each token; NaN for the first."""
    result: EvaluationResult
    """All figures with their denominators."""

    @property
    def total_nats(self) -> float:
        """Sum of the nats of all tokens but the first."""
        return self.result.total_nats

    @property
    def nats_per_token(self) -> float:
        """Mean of the nats of all tokens but the first."""
        return self.result.nats_per_token

    @property
    def perplexity(self) -> float:
        """Exponential of the nats per token."""
        return self.result.perplexity

    @property
    def unknown_share(self) -> float | None:
        """Share of unknown tokens in the scored ones; None where the tokenizer knows all text."""
        return self.result.unknown_share

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the text."""
        return self.result.bits_per_byte

    def __str__(self) -> str:
        return self.result.describe()


def evaluation_text(content: bytes, token_ids: np.ndarray, tokenizer: Tokenizer) -> EvaluationText:
    """Returns a text of one document, with its counts, for an `Evaluator`."""
    pieces = [piece for batch in work_batches("text", [content]) for piece in batch]
    counts = TextCounts.of(pieces)
    return EvaluationText.of_tokens(
        "text",
        token_ids,
        num_bytes=counts.bytes,
        num_characters=counts.characters,
        num_words=counts.words,
        tokenizer_kind=tokenizer.kind,
        unknown_id=tokenizer.unknown_id,
    )


def pieces_of(tokenizer: Tokenizer, token_ids: np.ndarray) -> list[str]:
    """Decodes each token alone; bytes that are not UTF-8 are escaped."""
    return [
        tokenizer.decode_bytes(token_ids[place : place + 1]).decode(
            "utf-8", errors="backslashreplace"
        )
        for place in range(len(token_ids))
    ]


def score_text(
    evaluator: "Evaluator", tokenizer: Tokenizer, text: str, *, step: int = 0
) -> TextScore:
    """Scores a text of at least two tokens.

    Raises InvalidTextError if the tokenizer cannot encode the text, and ValueError for fewer than
    two tokens.
    """
    content = text.encode()
    token_ids = tokenizer.encode(content).astype(np.int32)
    if len(token_ids) < 2:
        raise ValueError(
            "A text must have at least 2 tokens, for the first has no score. "
            f"Received: {len(token_ids)} tokens of {text[:80]!r}"
        )
    nats = np.full(len(token_ids), np.nan)

    def observe(places: np.ndarray, values: np.ndarray) -> None:
        nats[places] = values

    read = evaluation_text(content, token_ids, tokenizer)
    result = evaluator.evaluate(read, step=step, observe=observe)
    return TextScore(pieces_of(tokenizer, token_ids), token_ids, nats, result)
