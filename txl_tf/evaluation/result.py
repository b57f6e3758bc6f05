"""Results of an evaluation: summed nats, counts, and the figures derived from them."""

import dataclasses
import math
from typing import Any

from txl_tf.config.experiment import LOWER_IS_BETTER

# exp(710) overflows float64.
_MAX_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Totals of a split and figures derived from them.

    A split of `n` tokens has `n - 1` targets: the first token is not predicted. Its text is
    counted as the average: bytes, characters and words are the totals of the split times
    `(n - 1) / n`. If bytes or characters are the tokens, this is exactly the number of targets,
    and bits per byte or per character are the published figures of enwik8 and text8. For words
    and sub-words the error is at most the share of one token in the split.

    Published perplexities of words are `perplexity`, with a word-level tokenizer and a token for
    the end of a line. `word_perplexity` of sub-words compares to them if both count the same
    words: `num_words` counts text between white space, without line ends.
    """

    split: str
    """Name of the split."""
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
    """Words of that text."""
    segment_length: int
    """Tokens per row and step."""
    memory_length: int
    """Tokens remembered."""
    clamp_length: int | None
    """Largest distance with its own encoding."""
    same_length: bool
    """True if every query saw the same number of positions."""
    same_length_keys: str | None
    """This number; None without `same_length`."""
    dtype_policy: str
    """Keras dtype policy of the computation."""
    batch_size: int
    """Rows read side by side."""
    warm_up_tokens: int
    """Tokens that a row read before its first target, limited by the start of the text."""
    window_stride_tokens: int | None = None
    """Stride of windows of `segment_length`; None for consecutive segments."""
    masks_documents: bool
    """True if no token saw earlier documents."""
    dynamic_learning_rate: float | None
    """Learning rate of dynamic evaluation; None for fixed weights."""
    dynamic_decay: float | None
    """Decay towards the trained weights."""
    dynamic_statistics_segments: int | None
    """Segments of training text that scaled the gradients."""
    tokenizer_kind: str | None = None
    """Kind of the tokenizer; None if unknown."""
    num_unknown: int | None = None
    """Targets for text outside the vocabulary; None if the tokenizer has no such token."""
    seconds: float
    """Wall time, compiling included."""

    @property
    def nats_per_token(self) -> float:
        """Mean negative log-likelihood of a token."""
        return self.total_nats / self.num_tokens

    @property
    def perplexity(self) -> float:
        """Exponential of the mean: never a mean of perplexities."""
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
        """True if tokens are words or pieces of words, so that a word has few tokens."""
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
            **{
                each.name: getattr(self, each.name) for each in dataclasses.fields(EvaluationResult)
            },
            "nats_per_token": self.nats_per_token,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "bits_per_character": self.bits_per_character,
            "word_perplexity": self.word_perplexity,
            "unknown_share": self.unknown_share,
        }

    def describe(self) -> str:
        """Returns the figures, their denominators and the conditions in one line."""
        figures = []
        if self.bits_per_byte is not None:
            figures.append(f"{self.bits_per_byte:.6f} bits/byte ({self.num_bytes:,.0f} bytes)")
        if self.bits_per_character is not None:
            figures.append(
                f"{self.bits_per_character:.6f} bits/character "
                f"({self.num_characters:,.0f} characters)"
            )
        figures.append(
            f"{self.nats_per_token:.6f} nats/token, perplexity {self.perplexity:.4f} "
            f"({self.num_tokens:,} tokens)"
        )
        # For other tokens the figure is huge and meaningless.
        if self.has_words:
            figures.append(f"{self.word_perplexity:.4g} per word ({self.num_words:,.0f} words)")
        if self.unknown_share is not None:
            figures.append(f"{self.unknown_share:.2%} unknown tokens")
        return f"{self.split}: {', '.join(figures)}; {self.conditions}"

    @property
    def conditions(self) -> str:
        """Lengths, rows and other conditions of the evaluation, in one line."""
        clamp = "none" if self.clamp_length is None else self.clamp_length
        conditions = [
            f"segment {self.segment_length}",
            f"memory {self.memory_length}",
            f"clamp {clamp}",
            f"{self.batch_size} rows",
            self.dtype_policy,
        ]
        if self.window_stride_tokens is not None:
            conditions[0] = f"windows of {self.segment_length}, stride {self.window_stride_tokens}"
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
    """Figures of the examples of a split."""

    split: str
    """Name of the split."""
    step: int
    """Training steps of the weights."""
    figures: dict[str, float]
    """Metrics by name; the first one decides which step is best."""
    num_examples: int
    """Examples that were answered."""
    num_tokens: int
    """Tokens that were read."""
    seconds: float
    """Wall time, compiling included."""

    @property
    def criterion(self) -> float:
        """Number to minimize when weights are compared."""
        name, value = next(iter(self.figures.items()))
        return value if name in LOWER_IS_BETTER else -value

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as plain JSON types."""
        return dataclasses.asdict(self)

    def describe(self) -> str:
        """Returns the figures in one line."""
        figures = ", ".join(f"{name} {value:.4f}" for name, value in self.figures.items())
        return f"{self.split} at step {self.step:,}: {figures} ({self.num_examples:,} examples)"


def perplexity(nats: float) -> float:
    """Returns the exponential of a mean loss in nats, capped at 700 nats."""
    return math.exp(min(nats, _MAX_EXPONENT))


def bits(nats: float) -> float:
    """Converts a negative log-likelihood from nats to bits."""
    return nats / math.log(2.0)
