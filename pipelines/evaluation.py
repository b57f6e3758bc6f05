"""Evaluation of a split of a prepared data set, and its results as a table."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import DataDamagedError, UsageError
from txl_tf.evaluation.result import EvaluationResult, bits, perplexity
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.models.sizes import reading_flops_per_token

from .progress import plain_table

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from txl_tf.evaluation.evaluator import Evaluator, Observe, Track

# Share of training's tokens that evaluations before the last step may read. Reading takes a third
# of training's operations: the rest allows for a slower precision and fewer rows.
_SHARE = 0.1
# The loss of fewer tokens is too noisy to compare steps.
_LEAST = 4096


def create_evaluator(
    experiment: ExperimentConfig,
    strategy: "tf.distribute.Strategy | None" = None,
    variables: "Mapping[str, keras.Variable] | None" = None,
) -> "Evaluator":
    """Builds the evaluator of an experiment, without weights or with the variables of a run."""
    from txl_tf.evaluation.evaluator import Evaluator

    if experiment.evaluation.dynamic_learning_rate is not None:
        strategy, variables = None, None
    return Evaluator(
        experiment.model,
        experiment.resolved_evaluation,
        # If XLA is allowed, the device's execution plan decides.
        jit_compile=None if experiment.training.may_compile else False,
        masks_documents=experiment.training.document_boundaries == "mask",
        strategy=strategy,
        variables=variables,
    )


def evaluate_split(
    evaluator: "Evaluator",
    dataset: PreparedDataset,
    split: str,
    step: int,
    track: "Track | None" = None,
    observe: "Observe | None" = None,
    num_words: int | None = None,
    max_tokens: int | None = None,
) -> EvaluationResult:
    """Evaluates a split of a prepared data set, or its first `max_tokens` targets."""
    text = split_text(dataset, split)
    if max_tokens is not None and max_tokens + 1 < text.num_tokens:
        text = _beginning(text, max_tokens + 1)
    if num_words is not None:
        text = dataclasses.replace(text, num_words=num_words)
    if text.num_tokens < 2:
        raise DataDamagedError(
            f"The split {split} has less than two tokens: there is nothing to score.",
            where=dataset.folder,
            remedy="Prepare a longer text.",
        )
    return evaluator.evaluate(
        text,
        step=step,
        track=track,
        observe=observe,
        statistics_text=statistics_text(evaluator, dataset),
    )


def tokens_before_the_end(experiment: ExperimentConfig, num_steps: int) -> int | None:
    """Returns the token limit of evaluations before the last step; `None` for no limit.

    By default a tenth of the tokens trained on since the evaluation before, or fewer if evaluation
    lengths cost more than training's. No measured time counts, and `num_steps` is the number the
    run was begun with, so that resumed and extended runs read the same text.
    """
    training, evaluation = experiment.training, experiment.evaluation
    if isinstance(training.evaluate_tokens, int):
        return training.evaluate_tokens
    decides = experiment.is_led_by_evaluations or training.stop_after_evaluations is not None
    if decides or training.evaluate_tokens == "all" or experiment.task is not None:
        return None
    period = training.replace(num_steps=num_steps).evaluation_period
    num_trained = period * training.global_batch_size * experiment.model.segment_length
    return max(int(num_trained * _SHARE / _relative_cost(experiment.model, evaluation)), _LEAST)


def _relative_cost(model: ModelConfig | RecurrentConfig, evaluation: EvaluationConfig) -> float:
    """Returns the operations to score a token relative to training's lengths; at least 1."""
    segment_length = evaluation.segment_length or model.segment_length
    cost = 1.0
    if isinstance(model, ModelConfig):
        memory_length = evaluation.memory_length
        memory_length = model.memory_length if memory_length is None else memory_length
        changed = model.replace(segment_length=segment_length, memory_length=memory_length)
        cost = reading_flops_per_token(changed) / reading_flops_per_token(model)
    if evaluation.window_stride_tokens is not None:
        cost *= segment_length / evaluation.window_stride_tokens
    if evaluation.dynamic_learning_rate is not None:
        cost *= 3.0  # a backward pass
    return max(cost, 1.0)


def _beginning(text: EvaluationText, num_tokens: int) -> EvaluationText:
    """Returns the first tokens of a text, with a proportional share of its bytes and words."""
    names = ("num_bytes", "num_characters", "num_words")
    shares = {name: getattr(text, name) * num_tokens / text.num_tokens for name in names}
    # A separate curve: figures of a part and of the whole are not comparable.
    name = f"{text.name}_beginning"
    return dataclasses.replace(text, name=name, num_tokens=num_tokens, **shares)


def split_text(dataset: PreparedDataset, split: str) -> EvaluationText:
    """Returns the text of a split, read from disk on demand."""
    entry = dataset.manifest.split(split)
    return EvaluationText(
        name=split,
        num_tokens=entry.tokens,
        read_tokens=lambda start, stop: dataset.read_tokens(split, start, stop),
        read_document_starts=lambda start, stop: dataset.read_document_starts(split, start, stop),
        num_bytes=entry.bytes,
        num_characters=entry.characters,
        num_words=entry.words,
        tokenizer_kind=dataset.manifest.tokenizer_kind,
        unknown_id=dataset.unknown_id,
    )


def statistics_text(
    evaluator: "Evaluator", dataset: PreparedDataset | None
) -> EvaluationText | None:
    """Returns the split `train`, whose gradients scale dynamic evaluation; `None` if unscaled."""
    if not evaluator.needs_statistics:
        return None
    if dataset is None or "train" not in dataset.manifest.split_names:
        raise UsageError(
            "Gradients are scaled by those of the split `train`, which is not there.",
            where="--data" if dataset is None else dataset.folder,
            remedy="Name the training data, or no evaluation.dynamic_statistics_segments.",
        )
    return split_text(dataset, "train")


def loss_figure(nats_per_token: float, bytes_per_token: float, has_words: bool) -> str:
    """Formats the perplexity of words and of ids, or bits per byte of other tokens."""
    if has_words or not bytes_per_token:
        value = perplexity(nats_per_token)
        return f"perplexity {value:,.{0 if value >= 1000 else 2}f}"
    return f"{bits(nats_per_token) / bytes_per_token:.4f} bits/byte"


def result_line(result: EvaluationResult) -> str:
    """Formats an evaluation during training in one line."""
    in_bytes = "" if result.bits_per_byte is None else f"{result.bits_per_byte:.4f} bits/byte, "
    return f"{result.split} at step {result.step:,}: {in_bytes}perplexity {result.perplexity:,.2f}"


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
