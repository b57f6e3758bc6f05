"""A trained run that takes part in an analysis."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipelines.trained_model import build_model, read_weights
from pipelines.workdir import Workdir
from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.errors import UsageError

if TYPE_CHECKING:
    from txl_tf.models.lstm_language_model import LSTMLanguageModel
    from txl_tf.models.qrnn_language_model import QRNNLanguageModel
    from txl_tf.models.transformer_xl import TransformerXL

_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


@dataclasses.dataclass(frozen=True)
class AnalyzedRun:
    """What was trained in a folder.

    Args:
        name: str. How figures and tables call it.
        workdir: `Workdir`.
        experiment: `ExperimentConfig`.
        data: dict. Identity of the data it was trained on.
    """

    name: str
    workdir: Workdir
    experiment: ExperimentConfig
    data: dict[str, Any]

    @property
    def has_memory(self) -> bool:
        """Whether tokens are remembered, as many as one likes."""
        model = self.experiment.model
        return model.effective_memory_length > 0

    def load_model(self) -> "tuple[int, TransformerXL | LSTMLanguageModel | QRNNLanguageModel]":
        """Builds the model with the weights of the newest checkpoint.

        Segment and memory are as long as the run evaluates with; float32.

        Returns:
            Tuple of the step of the checkpoint and the model.
        """
        step, weights = read_weights(self.workdir, None)
        config = _as_evaluated(self.experiment.model, self.experiment.evaluation)
        return step, build_model(config, weights)


def _as_evaluated(
    model: ModelConfig | LSTMConfig | QRNNConfig, evaluation: EvaluationConfig
) -> ModelConfig | LSTMConfig | QRNNConfig:
    changes = {name: value for name in _LENGTHS if (value := getattr(evaluation, name)) is not None}
    return model.replace(**changes)


def read_runs(folders: Sequence[str]) -> list[AnalyzedRun]:
    """Reads what was trained in some folders; no weights yet.

    A run is called like its folder, or where several folders have one name,
    by the parts in which their paths differ.

    Args:
        folders: list of str.

    Returns:
        List of `AnalyzedRun`, in this order.

    Raises:
        UsageError: If a folder is there twice.
        InputMissingError: If there is no run in a folder.
    """
    paths = [os.path.normpath(folder) for folder in folders]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(
            "Each run of a group is named once.",
            where=f"--workdir {twice}",
            remedy="Leave one of the two out.",
        )
    workdirs = [Workdir(folder) for folder in folders]
    return [
        AnalyzedRun(name, workdir, *workdir.read())
        for name, workdir in zip(_names(paths), workdirs, strict=True)
    ]


def _names(paths: Sequence[str]) -> list[str]:
    """The last parts of the paths, or if some are alike, what not all paths begin or end with."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    parts = [path.split(os.sep) for path in paths]
    for end, kept in ((-1, slice(None, -1)), (0, slice(1, None))):
        while min(map(len, parts)) > 1 and len({each[end] for each in parts}) == 1:
            parts = [each[kept] for each in parts]
    return [os.sep.join(each) for each in parts]
