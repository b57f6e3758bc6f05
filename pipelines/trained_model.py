"""Reads the weights and the tokenizer of a run, for the jobs that use them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.workdir import Workdir, identity
from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    StorageError,
    UsageError,
)
from txl_tf.file_storage import first_line

if TYPE_CHECKING:
    from txl_tf.data.tokenizer import Tokenizer
    from txl_tf.models.lstm_language_model import LSTMLanguageModel
    from txl_tf.models.qrnn_language_model import QRNNLanguageModel
    from txl_tf.models.transformer_xl import TransformerXL
    from txl_tf.training.checkpoint_store import CheckpointStore


def read_weights(workdir: Workdir, step: int | None) -> tuple[int, dict[str, np.ndarray]]:
    """Reads the weights of a checkpoint after verifying it.

    Where the run averages its weights, these are the averages.

    Args:
        workdir: `Workdir`.
        step: optional int; the newest checkpoint by default.

    Returns:
        Tuple of the step and a dict of variable path to array.

    Raises:
        InputMissingError: If there is no checkpoint.
        UsageError: If there is none of this step.
        DataDamagedError: If it is damaged.
    """
    store = checkpoint_store(workdir)
    step = require_step(store.steps(), step, workdir.checkpoints)
    arrays = store.load(step)
    weights, averages = _with_prefix(arrays, "model/"), _with_prefix(arrays, "average/")
    # Among the averages is also how many steps they are of.
    return step, {path: averages.get(path, weight) for path, weight in weights.items()}


def checkpoint_store(workdir: Workdir) -> "CheckpointStore":
    """The checkpoints of a run, for reading.

    Args:
        workdir: `Workdir`.

    Returns:
        The `CheckpointStore`.

    Raises:
        InputMissingError: If there is no run.
    """
    from txl_tf.training.checkpoint_store import CheckpointStore

    return CheckpointStore(workdir.checkpoints, identity(*workdir.read()))


def _with_prefix(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def build_model(
    config: ModelConfig | LSTMConfig | QRNNConfig, weights: dict[str, np.ndarray]
) -> "TransformerXL | LSTMLanguageModel | QRNNLanguageModel":
    """Builds a model with these weights, in float32.

    Args:
        config: `ModelConfig`, `LSTMConfig` or `QRNNConfig`.
        weights: dict of variable path to array.

    Returns:
        The model.

    Raises:
        MismatchError: If they are not those of such a model.
    """
    from txl_tf.models.create_model import create_model
    from txl_tf.models.weight_assignment import assign_weights

    model = create_model(config, dtype="float32")
    assign_weights({variable.path: variable for variable in model.weights}, weights)
    return model


def tokenizer_of(workdir: Workdir, data: dict[str, Any]) -> "Tokenizer":
    """The tokenizer that a run was trained with, from the run's own folder.

    Args:
        workdir: `Workdir`.
        data: dict. Identity of the run's data.

    Returns:
        The tokenizer.

    Raises:
        InputMissingError: If the run has no vocabulary.
        MismatchError: If this version has another tokenizer of that name.
        DataDamagedError: If the vocabulary is not the one of the run.
        StorageError: If it cannot be read.
    """
    from txl_tf.data.tokenizers.load_tokenizer import load_tokenizer

    files = _vocabulary_files(workdir)
    kind = data["tokenizer"]
    if not files and kind != "bytes":
        raise InputMissingError(
            f"The run has no vocabulary of its tokenizer ({kind}).",
            where=workdir.vocabulary,
            remedy="The command that trained it puts one there, and goes on.",
        )
    tokenizer = load_tokenizer(kind, files, where=workdir.vocabulary)
    if data["tokenizer_sha256"] == tokenizer.fingerprint:
        return tokenizer
    if not files:
        raise MismatchError(
            f"The run was trained with a tokenizer that is not known: {kind}.",
            where=workdir.folder,
            remedy="Use the version of txl-tf that trained it.",
        )
    raise DataDamagedError(
        f"The vocabulary has SHA-256 {tokenizer.fingerprint}; the run says "
        f"{data['tokenizer_sha256']}.",
        where=workdir.vocabulary,
        remedy="Restore it from a copy, or from the data set the run was trained on.",
    )


def _vocabulary_files(workdir: Workdir) -> dict[str, bytes]:
    from txl_tf.data.vocabularies.vocabulary_files import read_vocabulary_files

    folder = workdir.vocabulary
    try:
        return read_vocabulary_files(folder)
    except OSError as error:
        what = f"The vocabulary cannot be read: {first_line(error)}"
        raise StorageError(what, where=folder, remedy="Check the storage.") from error


def require_step(steps: list[int], step: int | None, where: str) -> int:
    """The checkpoint that was asked for, or the newest.

    Args:
        steps: list of int. Steps that have a checkpoint.
        step: optional int. The one asked for.
        where: path of the checkpoints.

    Returns:
        The step.

    Raises:
        InputMissingError: If there is no checkpoint yet.
        UsageError: If there is none of this step.
    """
    if not steps:
        raise InputMissingError(
            "There is no checkpoint yet.", where=where, remedy="`txl train` makes them."
        )
    if step is None:
        return steps[-1]
    if step not in steps:
        raise UsageError(
            f"There is no checkpoint of step {step}.",
            where=f"--step {step}",
            remedy=f"There are: {', '.join(map(str, steps))}.",
        )
    return step
