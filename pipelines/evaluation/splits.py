"""Evaluates a split of a prepared data set with the settings of an experiment."""

import dataclasses
from collections.abc import Mapping

import keras
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.manifest import Manifest
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import DataDamagedError, UsageError
from txl_tf.evaluation.evaluator import Evaluator, Observe, Track
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.evaluation.text_rows import EvaluationText


def create_evaluator(
    experiment: ExperimentConfig,
    strategy: tf.distribute.Strategy | None = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> Evaluator:
    """Builds the evaluator of an experiment, without weights or with those of a run.

    A run that was trained with its documents apart is evaluated so.

    Args:
        experiment: `ExperimentConfig`.
        strategy: optional `tf.distribute.Strategy`, whose replicas share the
            rows. It is not used where there is only one row, because the
            weights follow the text.
        variables: optional mapping of path to variable, see `Evaluator`. They
            are not used where the weights follow the text.
    """
    if experiment.evaluation.dynamic_learning_rate is not None:
        strategy, variables = None, None
    tf.config.experimental.enable_tensor_float_32_execution(experiment.training.tensor_float_32)
    return Evaluator(
        experiment.model,
        experiment.evaluation,
        dtype_policy=experiment.training.dtype_policy,
        # Where XLA is not ruled out, the device's plan decides.
        jit_compile=None if experiment.training.jit_compile else False,
        masks_documents=experiment.training.document_boundaries == "mask",
        strategy=strategy,
        variables=variables,
    )


def evaluate_split(
    evaluator: Evaluator,
    dataset: PreparedDataset,
    split: str,
    step: int,
    track: Track | None = None,
    observe: Observe | None = None,
    num_words: int | None = None,
) -> EvaluationResult:
    """Evaluates a split of a prepared data set.

    Args:
        evaluator: `Evaluator` with weights.
        dataset: `PreparedDataset`.
        split: str. Name of the split.
        step: int. Training steps of the weights.
        track: optional function, see `Evaluator.evaluate`.
        observe: optional function, see `Evaluator.evaluate`.
        num_words: optional int. Words of the split, if not as white space
            divides it.

    Raises:
        DataDamagedError: If there is nothing to score.
        UsageError: If gradients are to be scaled and there is no split
            `train`.
    """
    text = split_text(dataset, split)
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


def split_text(dataset: PreparedDataset, split: str) -> EvaluationText:
    """Returns the text of a split, read from the disk as it is needed.

    Args:
        dataset: `PreparedDataset`.
        split: str. Name of the split.
    """
    entry = dataset.manifest.split(split)
    return EvaluationText(
        name=split,
        num_tokens=entry.tokens,
        read_tokens=lambda start, stop: dataset.read_tokens(split, start, stop),
        read_document_starts=lambda start, stop: dataset.read_document_starts(split, start, stop),
        num_bytes=entry.bytes,
        num_characters=entry.characters,
        num_words=entry.words,
    )


def bytes_per_token(manifest: Manifest, split: str) -> float:
    """Bytes of text that a token of a split stands for, on average.

    Args:
        manifest: `Manifest`.
        split: str. Name of the split.
    """
    entry = manifest.split(split)
    return entry.bytes / entry.tokens


def statistics_text(evaluator: Evaluator, dataset: PreparedDataset | None) -> EvaluationText | None:
    """Returns the training text whose gradients scale dynamic evaluation.

    Returns:
        The split `train`; None where no gradient is scaled.

    Raises:
        UsageError: If there is no such split.
    """
    if not evaluator.needs_statistics:
        return None
    if dataset is None or "train" not in dataset.manifest.split_names:
        raise UsageError(
            "Gradients are scaled by those of the split `train`, which is not there.",
            where="--data" if dataset is None else dataset.folder,
            remedy="Name the training data, or no evaluation.dynamic_statistics_segments.",
        )
    return split_text(dataset, "train")
