"""Tags of the figures of a run, with their meanings and their pages in TensorBoard.

The same tags name the values in `metrics.jsonl`, see `MetricsLog`. They are stable, so that curves
of old and new runs share a chart.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txl_tf import metrics
from txl_tf.evaluation.result import EvaluationResult, TaskResult

if TYPE_CHECKING:
    from txl_tf.training.step_report import LoopReport


LOSSES = "loss/"
"""Prefix of the tags of losses, which training and evaluations share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tag:
    """Figure of a run."""

    name: str
    """Name in TensorBoard and in `metrics.jsonl`."""
    title: str
    """Title of its chart."""
    page: str | None
    """Page of its chart; `None` without a page."""
    description: str
    """Meaning and unit, and the time of writing."""
    has_parts: bool = False
    """True if each layer, see `layer_tag`, or each metric has its own tag below it."""


_PERPLEXITY, _OPTIMISATION, _THROUGHPUT, _MEMORY = PAGES = (
    "Perplexity",
    "Optimisation",
    "Throughput",
    "Memory",
)
"""Pages of the custom-scalars layout, in order."""

_TASK = "Task"
TASK_PAGES = (_TASK, _OPTIMISATION, _THROUGHPUT)
"""Pages of a fine-tuning run, which has no perplexity and carries no memory."""

_ALL = (
    Tag(
        name="loss/perplexity",
        title="Perplexity",
        page=_PERPLEXITY,
        description="Exponential of the mean loss per token. Training: mean of a loop, with "
        "dropout. Splits: every token of the split.",
    ),
    Tag(
        name="loss/bits_per_byte",
        title="Bits per byte",
        page=_PERPLEXITY,
        description="Bits per byte of text; does not depend on the tokenizer.",
    ),
    Tag(
        name="loss/nats_per_token",
        title="Loss, nats per token",
        page=_PERPLEXITY,
        description="Mean negative log-likelihood of a token, in nats.",
    ),
    Tag(
        name="loss/bits_per_character",
        title="Bits per character",
        page=None,
        description="Bits per UTF-8 code point of text.",
    ),
    Tag(
        name="loss/word_perplexity",
        title="Perplexity per word",
        page=None,
        description="Exponential of the nats per word between white space, where tokens are "
        "words or pieces of words.",
    ),
    Tag(
        name="task/loss",
        title="Loss of the task",
        page=_TASK,
        description="Mean loss of an example of a fine-tuning run, with dropout, mean of a loop.",
    ),
    Tag(
        name="task/metric",
        title="Metrics of the task",
        page=_TASK,
        description="Metrics of the validation examples of a fine-tuning run.",
        has_parts=True,
    ),
    Tag(
        name="optimizer/learning_rate",
        title="Learning rate",
        page=_OPTIMISATION,
        description="Learning rate of the next step.",
    ),
    Tag(
        name="optimizer/gradient_norm",
        title="Gradient norm",
        page=_OPTIMISATION,
        description="Global norm of the gradients before clipping, mean of a loop.",
    ),
    Tag(
        name="optimizer/update_ratio",
        title="Update to weight ratio",
        page=_OPTIMISATION,
        description="Norm of the change of all weights in the last step of a loop, over the norm "
        "of the weights. Of large variables, evenly spaced rows are measured.",
    ),
    Tag(
        name="optimizer/skipped_steps",
        title="Skipped steps",
        page=_OPTIMISATION,
        description="Steps of a loop that changed no weight: a loss or gradient that is not "
        "finite, or a spike.",
    ),
    Tag(
        name="performance/tokens_per_second",
        title="Tokens per second",
        page=_THROUGHPUT,
        description="Tokens that all replicas trained on per second of wall time of a loop. The "
        "first loop of a process includes compiling.",
    ),
    Tag(
        name="performance/step_seconds",
        title="Step time, seconds",
        page=_THROUGHPUT,
        description="Wall time of a step, mean of a loop.",
    ),
    Tag(
        name="performance/data_wait_seconds",
        title="Data wait, seconds",
        page=_THROUGHPUT,
        description="Time that the last step of a loop waited for its batch. Only where one "
        "device trains.",
    ),
    Tag(
        name="performance/checkpoint_seconds",
        title="Checkpoint time, seconds",
        page=_THROUGHPUT,
        description="Time that training stood still for a checkpoint; it is written to the "
        "storage in the background.",
    ),
    Tag(
        name="performance/peak_share",
        title="Share of the device's peak",
        page=_THROUGHPUT,
        description="Floating-point operations of the model per second over the peak of the "
        "devices: of TPUs the published one in bfloat16, elsewhere the rate of large matrix "
        "products in the precision of the run, measured once steps have taken a second.",
    ),
    Tag(
        name="performance/goodput",
        title="Goodput of the run",
        page=_THROUGHPUT,
        description="Time of steps whose result was kept over the wall time of all processes of "
        "the run so far.",
    ),
    Tag(
        name="performance/evaluation_seconds",
        title="Evaluation time, seconds",
        page=_THROUGHPUT,
        description="Wall time of an evaluation of the split, compiling included.",
    ),
    Tag(
        name="memory/valid_length",
        title="Valid length, tokens",
        page=_MEMORY,
        description="Positions of the training memory that are filled, mean of the rows, at an "
        "evaluation.",
    ),
    Tag(
        name="memory/norm",
        title="Norm by layer",
        page=_MEMORY,
        description="Norm of a filled position of the training memory of a layer, mean of "
        "positions and rows, at an evaluation.",
        has_parts=True,
    ),
    Tag(
        name="memory/attention_mass",
        title="Attention mass on memory by layer",
        page=_MEMORY,
        description="Share of a layer's attention that goes to the memory, mean of heads and "
        "queries of one batch of the split, with the lengths of evaluation.",
        has_parts=True,
    ),
    Tag(
        name="sample/perplexity",
        title="Perplexity of the text sample",
        page=_PERPLEXITY,
        description="Perplexity of the generated text of an evaluation under the model itself; "
        "a very low one is a text that repeats itself.",
    ),
)
TAGS: Mapping[str, Tag] = {tag.name: tag for tag in _ALL}
"""All tags by name; one with parts stands for all tags below it."""

TEXT_TAGS: Mapping[str, str] = {
    "configuration": "All settings of the experiment, and the identity of its data.",
    "model_size": "Trainable parameters, of all and by part of the model.",
    "sample": "Text that the model continues, from the beginning of the split, at an evaluation.",
}
"""Descriptions of the texts, by tag."""


def layer_tag(name: str, layer: int) -> str:
    """Returns the tag of a layer; `layer` counts from 0, and the tag from 1."""
    return f"{name}/layer_{layer + 1:02d}"


def describe_tag(name: str) -> Tag:
    """Returns the entry of `TAGS` that a tag belongs to."""
    return TAGS.get(name) or TAGS[name.rpartition("/")[0]]


def training_figures(
    report: "LoopReport",
    bytes_per_token: float | None,
    peak_tokens_per_second: float | None = None,
    goodput: float | None = None,
) -> dict[str, float]:
    """Returns the figures of a loop of steps, by tag.

    `bytes_per_token`, of the training split, is `None` for a task. `peak_tokens_per_second` is the
    rate at the peak of the devices, and `goodput` covers the run so far.
    """
    if bytes_per_token is None:
        figures = {"task/loss": report.nats_per_token}
    else:
        figures = {
            "loss/nats_per_token": report.nats_per_token,
            "loss/perplexity": report.perplexity,
            "loss/bits_per_byte": metrics.bits(report.nats_per_token) / bytes_per_token,
        }
    figures |= {
        "optimizer/learning_rate": report.learning_rate,
        "optimizer/gradient_norm": report.gradient_norm,
        "optimizer/skipped_steps": report.num_skipped_steps,
        "performance/tokens_per_second": report.tokens_per_second,
        "performance/step_seconds": report.seconds / report.num_steps,
    }
    measured = {
        "performance/goodput": goodput,
        "optimizer/update_ratio": report.update_ratio,
        "performance/data_wait_seconds": report.data_wait_seconds,
    }
    figures |= {tag: value for tag, value in measured.items() if value is not None}
    if peak_tokens_per_second is not None:
        figures["performance/peak_share"] = report.tokens_per_second / peak_tokens_per_second
    return figures


def evaluation_figures(result: EvaluationResult | TaskResult) -> dict[str, float]:
    """Returns the available figures of an evaluation, by tag."""
    if isinstance(result, TaskResult):
        of_task = {f"task/metric/{name}": value for name, value in result.figures.items()}
        return {**of_task, "performance/evaluation_seconds": result.seconds}
    figures = {
        "loss/nats_per_token": result.nats_per_token,
        "loss/perplexity": result.perplexity,
        "loss/bits_per_byte": result.bits_per_byte,
        "loss/bits_per_character": result.bits_per_character,
        "loss/word_perplexity": result.word_perplexity if result.has_words else None,
        "performance/evaluation_seconds": result.seconds,
    }
    return {tag: value for tag, value in figures.items() if value is not None}
