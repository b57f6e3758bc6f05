"""Results of evaluations of texts and of tasks, and the table that shows them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from txl_tf.config.task import LOWER_IS_BETTER

# exp(710) overflows float64.
_MAX_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Totals of a split and figures derived from them.

    A split of `n` tokens has `n - 1` targets, because the first token is not predicted. Bytes,
    characters and words are the totals of the split times `(n - 1) / n`, so the first token counts
    as an average one. If the tokens are bytes or characters, the product is exactly the number of
    targets, and bits per byte or per character are the published figures of enwik8 and text8. For
    words and sub-words the error is at most the share of one token in the split.

    Published perplexities of words are the `perplexity` of a word-level tokenizer with a token for
    the end of a line. The `word_perplexity` of sub-words compares to them if both count the same
    words: `num_words` counts pieces of text between white space, without line ends.

    Fields from `segment_length` to `dynamic_decay` are conditions of the evaluation. A new setting
    of this kind is also added to `evaluation_conditions`, which fills all of them that the
    configuration knows. The evaluator fills the others: rows, warm-up and masks.
    """

    split: str
    step: int
    """Training steps of the weights."""
    total_nats: float
    """Sum of the negative log-likelihoods of all targets."""
    num_tokens: int
    """Targets scored."""
    num_bytes: float
    """Bytes of text that these tokens represent; 0 where the data are token ids."""
    num_characters: float
    """UTF-8 code points of that text."""
    num_words: float
    segment_length: int
    memory_length: int
    clamp_length: int | None
    """Largest distance with its own encoding."""
    same_length: bool
    """True if every query saw the same number of positions."""
    same_length_keys: str | None
    """Rule for these positions, see `ModelConfig`; None without `same_length`."""
    dtype_policy: str
    batch_size: int
    """Rows read side by side."""
    warm_up_tokens: int
    """Tokens that a row read before its first target, or fewer at the start of the text."""
    masks_documents: bool
    """True if no token saw earlier documents."""
    dynamic_learning_rate: float | None
    """Learning rate of dynamic evaluation; None for fixed weights."""
    dynamic_decay: float | None
    tokenizer_kind: str | None = None
    num_unknown: int | None = None
    """Targets for text outside the vocabulary; None if the tokenizer has no such token."""
    seconds: float
    """Wall time, including compilation."""

    @property
    def nats_per_token(self) -> float:
        """Mean negative log-likelihood of a token."""
        return self.total_nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """Exponential of the mean loss, which differs from a mean of perplexities."""
        return perplexity(self.nats_per_token)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of text, which do not depend on the tokenizer; None without bytes."""
        return bits(self.total_nats) / self.num_bytes if self.num_bytes else None

    @property
    def criterion(self) -> float:
        """Number to minimize when weights are compared."""
        return self.nats_per_token

    @property
    def unknown_share(self) -> float | None:
        """Share of unknown tokens in the targets; None if the tokenizer knows all text."""
        return None if self.num_unknown is None else self.num_unknown / self.num_tokens

    @property
    def has_words(self) -> bool:
        """True if tokens are words or parts of words, so that a word has few tokens."""
        return bool(self.num_words) and self.tokenizer_kind not in ("bytes", "characters")

    @property
    def bits_per_character(self) -> float | None:
        """Bits per UTF-8 code point of text; None without characters."""
        return bits(self.total_nats) / self.num_characters if self.num_characters else None

    @property
    def word_perplexity(self) -> float | None:
        """Exponential of the nats per word; None without words."""
        return perplexity(self.total_nats / self.num_words) if self.num_words else None

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields and all figures as plain JSON types."""
        return {
            name: getattr(self, name)
            for name in (
                *(field.name for field in dataclasses.fields(EvaluationResult)),
                "nats_per_token",
                "perplexity",
                "bits_per_byte",
                "bits_per_character",
                "word_perplexity",
                "unknown_share",
            )
        }

    def __str__(self) -> str:
        return result_table([self])

    @property
    def conditions(self) -> str:
        """Lengths, rows and other conditions of the evaluation, in one line."""
        clamp = "none" if self.clamp_length is None else self.clamp_length
        conditions = [
            f"segment {self.segment_length}",
            f"memory {self.memory_length}",
            f"clamp {clamp}",
            f"{self.batch_size} row{'s' if self.batch_size > 1 else ''}",
            self.dtype_policy,
        ]
        if self.same_length:
            conditions.append(f"same length ({self.same_length_keys})")
        if self.warm_up_tokens:
            conditions.append(f"warm-up {self.warm_up_tokens:,}")
        if self.masks_documents:
            conditions.append("documents apart")
        if self.dynamic_learning_rate is not None:
            conditions.append(f"dynamic {self.dynamic_learning_rate:g}")
        return ", ".join(conditions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Metrics of a task on the examples of a split."""

    split: str
    step: int
    figures: dict[str, float]
    """Metrics by name; the first one decides which step is best."""
    num_examples: int
    num_tokens: int
    seconds: float

    @property
    def criterion(self) -> float:
        """Number to minimize when weights are compared."""
        name, value = next(iter(self.figures.items()))
        return value if name in LOWER_IS_BETTER else -value

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as plain JSON types."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in self.figures.items())
        return f"{self.split} at step {self.step:,}: {figures} ({self.num_examples:,} examples)"


def perplexity(nats: float) -> float:
    """Returns the exponential of a mean loss in nats, capped at 700 nats."""
    return math.exp(min(nats, _MAX_EXPONENT))


def bits(nats: float) -> float:
    """Converts a negative log-likelihood from nats to bits."""
    return nats / math.log(2.0)


def result_table(results: Sequence[EvaluationResult]) -> str:
    """Formats evaluations of one model as a table of figures and counts, with their conditions."""
    figures = [
        ("bits/byte", "bits_per_byte", ",.6f"),
        ("bits/character", "bits_per_character", ",.6f"),
        ("nats/token", "nats_per_token", ",.6f"),
        ("perplexity", "perplexity", ",.4f"),
        ("word perplexity", "word_perplexity", ",.4f"),
        ("tokens", "num_tokens", ",.0f"),
        ("bytes", "num_bytes", ",.0f"),
        ("characters", "num_characters", ",.0f"),
        ("words", "num_words", ",.0f"),
        ("unknown tokens", "unknown_share", ".2%"),
    ]
    # The perplexity of words is a huge number if a word has many tokens. If words are the tokens,
    # it repeats the perplexity.
    if not all(each.has_words and each.tokenizer_kind != "words" for each in results):
        figures = [figure for figure in figures if "word" not in figure[0]]
    rows = [["", *(result.split for result in results)]]
    for name, field, form in figures:
        values = [getattr(result, field) for result in results]
        if any(value is not None and (value or field == "unknown_share") for value in values):
            rows.append([name, *("-" if each is None else f"{each:{form}}" for each in values)])
    names, *columns = ([*column] for column in zip(*rows, strict=True))
    columns = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    names = [name.ljust(max(map(len, names))) for name in names]
    lines = map("  ".join, zip(names, *columns, strict=True))
    conditions = {f"step {result.step:,}, {result.conditions}": None for result in results}
    return "\n".join([*lines, *conditions])
