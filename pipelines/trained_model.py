"""Reads the weights of a run, for the jobs that use them."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.workdir import Workdir, identity, require_step
from txl_tf.config.model_config import ModelConfig
from txl_tf.errors import MismatchError

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
    from txl_tf.models.transformer_xl import TransformerXL


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
    from txl_tf.training.checkpoint_store import CheckpointStore

    experiment, data = workdir.read()
    store = CheckpointStore(workdir.checkpoints, identity(experiment, data))
    step = require_step(store.steps(), step, workdir.checkpoints)
    arrays = store.load(step)
    weights, averages = _with_prefix(arrays, "model/"), _with_prefix(arrays, "average/")
    # Among the averages is also how many steps they are of.
    return step, {path: averages.get(path, weight) for path, weight in weights.items()}


def _with_prefix(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def build_model(config: ModelConfig, weights: dict[str, np.ndarray]) -> "TransformerXL":
    """Builds a model with these weights, in float32.

    Args:
        config: `ModelConfig`.
        weights: dict of variable path to array.

    Returns:
        The model.
    """
    from txl_tf.models.transformer_xl import TransformerXL

    model = TransformerXL(config, dtype="float32")
    for variable in model.weights:
        variable.assign(weights[variable.path])
    return model


def tokenizer_of(data: dict[str, Any], where: str) -> "ByteTokenizer":
    """The tokenizer that a run was trained with.

    Args:
        data: dict. Identity of the run's data.
        where: str. The folder of the run.

    Returns:
        The tokenizer.

    Raises:
        MismatchError: If this version has another tokenizer of that name.
    """
    from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer

    tokenizer = ByteTokenizer()
    if data["tokenizer_sha256"] != tokenizer.fingerprint:
        raise MismatchError(
            f"The run was trained with a tokenizer that is not known: {data['tokenizer']}.",
            where=where,
            remedy="Use the version of txl-tf that trained it.",
        )
    return tokenizer
