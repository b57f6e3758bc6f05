"""Results of evaluations as a small table, a column for each."""

from collections.abc import Sequence

from txl_tf import metrics
from txl_tf.evaluation.result import EvaluationResult

from ..progress import plain_table


def loss_figure(nats_per_token: float, bytes_per_token: float, has_words: bool) -> str:
    """Formats the perplexity of word tokens, or bits per byte of other tokens."""
    if has_words:
        perplexity = metrics.perplexity(nats_per_token)
        return f"perplexity {perplexity:,.{0 if perplexity >= 1000 else 2}f}"
    return f"{metrics.bits(nats_per_token) / bytes_per_token:.4f} bits/byte"


def result_line(result: EvaluationResult) -> str:
    """Formats an evaluation during training in one line."""
    return (
        f"{result.split} at step {result.step:,}: {result.bits_per_byte:.4f} bits/byte, "
        f"perplexity {result.perplexity:,.2f}"
    )


def result_table(results: Sequence[EvaluationResult]) -> str:
    """Formats figures, denominators and conditions of evaluations of one model."""
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
    # With word tokens, perplexity and word perplexity are equal.
    if not all(each.has_words and each.tokenizer_kind != "words" for each in results):
        figures = [figure for figure in figures if "word" not in figure[0]]
    rows = [["", *(result.split for result in results)]]
    for name, field, form in figures:
        values = [getattr(result, field) for result in results]
        if any(value is not None and (value or field == "unknown_share") for value in values):
            rows.append([name, *("-" if each is None else f"{each:{form}}" for each in values)])
    table = plain_table(rows, right=range(1, len(results) + 1))
    conditions = {f"step {result.step:,}, {result.conditions}": None for result in results}
    return "\n".join([table, *conditions])
