"""Evaluates a split of a prepared data set with the settings of an experiment."""

from collections.abc import Callable, Iterable

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.data.manifest import Manifest
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.evaluation.evaluation_result import EvaluationResult
from txl_tf.evaluation.evaluator import Evaluator


def create_evaluator(experiment: ExperimentConfig) -> Evaluator:
    """Builds the evaluator of an experiment, without weights.

    Args:
        experiment: `ExperimentConfig`.

    Returns:
        An `Evaluator`.
    """
    return Evaluator(
        experiment.model,
        experiment.evaluation,
        dtype_policy=experiment.training.dtype_policy,
        jit_compile=experiment.training.jit_compile,
    )


def evaluate_split(
    evaluator: Evaluator,
    dataset: PreparedDataset,
    split: str,
    step: int,
    track: Callable[[Iterable, int], Iterable] | None = None,
) -> EvaluationResult:
    """Evaluates a split of a prepared data set.

    Args:
        evaluator: `Evaluator` with weights.
        dataset: `PreparedDataset`.
        split: str. Name of the split.
        step: int. Training steps of the weights.
        track: optional function, see `Evaluator.evaluate`.

    Returns:
        An `EvaluationResult`.
    """
    return evaluator.evaluate(
        split,
        dataset.num_tokens(split),
        lambda start, stop: dataset.read_tokens(split, start, stop),
        bytes_per_token=bytes_per_token(dataset.manifest, split),
        step=step,
        track=track,
    )


def bytes_per_token(manifest: Manifest, split: str) -> float:
    """Bytes of text that a token of a split stands for, on average.

    Args:
        manifest: `Manifest`.
        split: str. Name of the split.

    Returns:
        The number of bytes.
    """
    entry = manifest.split(split)
    return entry.bytes / entry.tokens
