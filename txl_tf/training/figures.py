"""Figures of a run and their tags.

The tags are stable, so that curves of old and new runs share a chart.
"""

from collections.abc import Mapping
from typing import NamedTuple

from txl_tf.evaluation.result import EvaluationResult, TaskResult, bits, perplexity
from txl_tf.training.ledger import LoopReport

PAGES = ("Perplexity", "Optimisation", "Throughput", "Memory")
"""Pages of the custom-scalars layout, in order."""
TASK_PAGES = ("Task", "Optimisation", "Throughput")
"""Pages of a fine-tuning run, which has no perplexity and carries no memory."""

_DESCRIPTIONS: dict[str | None, dict[str, str]] = {
    "Perplexity": {
        "loss/perplexity": "Exponential of the mean loss per token; in training, with dropout.",
        "loss/bits_per_byte": "Bits per byte of text; does not depend on the tokenizer.",
        "loss/nats_per_token": "Mean negative log-likelihood of a token, in nats.",
        "sample/perplexity": "Perplexity of generated text under the model; low if repetitive.",
    },
    None: {
        "loss/bits_per_character": "Bits per UTF-8 code point of text.",
        "loss/word_perplexity": "Exponential of the nats per word between white space.",
    },
    "Task": {
        "task/loss": "Mean loss of an example in a loop, with dropout.",
        "task/metric": "Metrics of the validation examples.",
    },
    "Optimisation": {
        "optimizer/learning_rate": "Learning rate that was applied in this step.",
        "optimizer/gradient_norm": "Global norm of the gradients before clipping, loop mean.",
        "optimizer/skipped_steps": "Steps of a loop that were skipped: not finite.",
    },
    "Throughput": {
        "performance/tokens_per_second": "Tokens of all replicas per second, compiling included.",
        "performance/step_seconds": "Wall time of a step, mean of a loop.",
        "performance/peak_share": "Share of the published peak operations per second of TPUs.",
        "performance/evaluation_seconds": "Wall time of an evaluation, compiling included.",
    },
    "Memory": {
        "memory/valid_length": "Filled positions of the training memory, mean of rows.",
        "memory/norm": "Mean norm of a filled position of the training memory, by layer.",
    },
}


class Tag(NamedTuple):
    """Tag of a figure of a run, in TensorBoard and in `metrics.jsonl`.

    `page` is the page of TensorBoard with its chart, or `None`. A tag that `has_parts` stands for
    the tags below it: one for each layer, see `layer_tag`, or one for each metric.
    """

    name: str
    page: str | None
    description: str
    has_parts: bool


_WITH_PARTS = ("task/metric", "memory/norm")
TAGS: Mapping[str, Tag] = {
    name: Tag(name, page, description, name in _WITH_PARTS)
    for page, descriptions in _DESCRIPTIONS.items()
    for name, description in descriptions.items()
}
"""All tags by name."""

TEXT_TAGS: Mapping[str, str] = {
    "configuration": "All settings of the experiment, and the identity of its data.",
    "conditions": "Lengths, rows and warm-up of an evaluation.",
    "sample": "Text that the model continues, from the beginning of the split, at an evaluation.",
}
"""Descriptions of the texts, by tag."""


def layer_tag(name: str, layer: int) -> str:
    """Returns the tag of a layer; `layer` counts from 0, and the tag from 1."""
    return f"{name}/layer_{layer + 1:02d}"


def describe_tag(name: str) -> Tag:
    """Returns the entry of `TAGS` for a tag, or for the tag above it."""
    return TAGS.get(name) or TAGS[name.rpartition("/")[0]]


def training_figures(
    report: LoopReport, bytes_per_token: float | None, peak_tokens_per_second: float | None = None
) -> dict[str, float]:
    """Returns the figures of a loop of steps, by tag.

    `bytes_per_token` is `None` for a task, and 0 for a data set of token ids without text.
    `peak_tokens_per_second` is the rate at the published peak of the chips, if it is known.
    """
    nats, rate = report.nats_per_token, report.tokens_per_second
    losses = {"loss/nats_per_token": nats, "loss/perplexity": perplexity(nats)}
    if bytes_per_token is None:
        losses = {"task/loss": nats}
    elif bytes_per_token:
        losses["loss/bits_per_byte"] = bits(nats) / bytes_per_token
    figures = {
        **losses,
        "optimizer/learning_rate": report.learning_rate,
        "optimizer/gradient_norm": report.gradient_norm,
        "optimizer/skipped_steps": report.num_skipped_steps,
        "performance/tokens_per_second": rate,
        "performance/step_seconds": report.seconds / report.num_steps,
    }
    if peak_tokens_per_second is not None:
        figures["performance/peak_share"] = rate / peak_tokens_per_second
    return figures


def evaluation_figures(result: EvaluationResult | TaskResult) -> dict[str, float]:
    """Returns the available figures of an evaluation, by tag."""
    if isinstance(result, TaskResult):
        figures: dict[str, float | None] = {
            f"task/metric/{name}": value for name, value in result.figures.items()
        }
    else:
        figures = {
            "loss/nats_per_token": result.nats_per_token,
            "loss/perplexity": result.perplexity,
            "loss/bits_per_byte": result.bits_per_byte,
            "loss/bits_per_character": result.bits_per_character,
            "loss/word_perplexity": result.word_perplexity if result.has_words else None,
        }
    figures["performance/evaluation_seconds"] = result.seconds
    return {tag: value for tag, value in figures.items() if value is not None}
