"""Model of a training run or converted folder, with its weights and tokenizer."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipelines.workdir import Workdir
from txl_tf.config.experiment import (
    EvaluationConfig,
    ExperimentConfig,
    OptimizerConfig,
    TrainingConfig,
)
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    StorageError,
    UsageError,
)
from txl_tf.run_folder import (
    build_model,
    converted_config,
    kind,
    read_weights,
    require_no_step,
)
from txl_tf.storage.files import first_line

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel
    from txl_tf.models.transformer_xl import TransformerXL


def tokenizer_of(workdir: Workdir, data: dict[str, Any]) -> "Tokenizer":
    """Returns the tokenizer that a run was trained with, from the run's own folder.

    Args:
        workdir: `Workdir`.
        data: dict. Identity of the run's data.

    Raises:
        InputMissingError: If the run has no vocabulary.
        MismatchError: If this version has another tokenizer of that name.
        DataDamagedError: If the vocabulary is not the one of the run.
        StorageError: If it cannot be read.
    """
    from txl_tf.data.tokenizers import load_tokenizer

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
    from txl_tf.data.prepared_dataset import read_vocabulary_files

    folder = workdir.vocabulary
    try:
        return read_vocabulary_files(folder)
    except OSError as error:
        what = f"The vocabulary cannot be read: {first_line(error)}"
        raise StorageError(what, where=folder, remedy="Check the storage.") from error


_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


@dataclasses.dataclass(frozen=True)
class AnalyzedRun:
    """Trained run that takes part in an analysis.

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
        """Whether the model has a memory whose length can be chosen at evaluation."""
        model = self.experiment.model
        return model.effective_memory_length > 0

    def load_model(self) -> "tuple[int, TransformerXL | LSTMLanguageModel | QRNNLanguageModel]":
        """Builds the model with the weights of the newest checkpoint.

        Segment and memory are as long as the run evaluates with; float32.

        Returns:
            Tuple of the step of the checkpoint and the model.
        """
        step, weights = read_weights(self.workdir.folder)
        config = _as_evaluated(self.experiment.model, self.experiment.evaluation)
        return step, build_model(config, weights)


def _as_evaluated(
    model: ModelConfig | LSTMConfig | QRNNConfig, evaluation: EvaluationConfig
) -> ModelConfig | LSTMConfig | QRNNConfig:
    changes = {name: value for name in _LENGTHS if (value := getattr(evaluation, name)) is not None}
    return model.replace(**changes)


def read_runs(folders: Sequence[str]) -> list[AnalyzedRun]:
    """Reads the descriptions of trained runs, without their weights.

    A run is called like its folder, or where several folders have one name,
    by the parts in which their paths differ.

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
    """Returns short unique names of the paths."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    parts = [path.split(os.sep) for path in paths]
    for end, kept in ((-1, slice(None, -1)), (0, slice(1, None))):
        while min(map(len, parts)) > 1 and len({each[end] for each in parts}) == 1:
            parts = [each[kept] for each in parts]
    return [os.sep.join(each) for each in parts]


def read_experiment(
    folder: str, step: int | None
) -> tuple[ExperimentConfig, dict[str, Any] | None]:
    """Configuration of a run, or of a converted model with evaluation as by default.

    Args:
        folder: str. The folder.
        step: optional int. The checkpoint that was asked for.

    Returns:
        Tuple of the experiment and the identity of its data; `None` for a
        converted model, of whose data and training nothing is known.

    Raises:
        UsageError: If a step of a converted model is asked for.
        JobError: As `describe_run` and `converted_config` do.
    """
    if kind(folder) != "converted":
        return Workdir(folder).read()
    require_no_step(step)
    experiment = ExperimentConfig(
        model=converted_config(folder),
        training=TrainingConfig(global_batch_size=1, num_steps=1),
        optimizer=OptimizerConfig(warmup_steps=0),
    )
    return experiment, None
