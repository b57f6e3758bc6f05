"""Model of a training run or converted folder, with its weights."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txl_tf.config.experiment import ExperimentConfig, OptimizerConfig, TrainingConfig
from txl_tf.errors import UsageError
from txl_tf.run_folder import (
    build_model,
    converted_config,
    kind,
    read_weights,
    require_no_step,
)

from .workdir import Workdir, check_split, check_tokenizer, check_vocabulary

if TYPE_CHECKING:
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel
    from txl_tf.models.transformer_xl import TransformerXL


_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


def open_dataset(
    folder: str,
    experiment: ExperimentConfig,
    data: dict[str, Any] | None,
    split: str | None,
    *,
    verify: bool = True,
) -> "PreparedDataset":
    """Opens a prepared data set, and checks that it is one for a model.

    Args:
        folder: str. The data set.
        experiment: `ExperimentConfig`, whose model must have the vocabulary.
        data: optional dict. Identity of the data of a run, whose tokenizer it
            must have; `None` for a converted model.
        split: optional str. A split that it must have.
        verify: bool. Whether the files are read and compared with the manifest.
    """
    from txl_tf.data.prepared_dataset import PreparedDataset

    dataset = PreparedDataset.open(folder, verify=verify)
    if split is not None:
        check_split(dataset.manifest, split, folder)
    if data is not None:
        check_tokenizer(data, dataset.manifest, folder)
    check_vocabulary(experiment, dataset.manifest, folder)
    return dataset


@dataclasses.dataclass(frozen=True)
class AnalyzedRun:
    """Trained run that takes part in an analysis."""

    name: str
    """Name in figures and tables."""
    workdir: Workdir
    experiment: ExperimentConfig
    data: dict[str, Any]
    """Identity of the data it was trained on."""

    @property
    def has_memory(self) -> bool:
        """Whether the model has a memory whose length can be chosen at evaluation."""
        return self.experiment.model.effective_memory_length > 0

    def load_model(self) -> "tuple[int, TransformerXL | LSTMLanguageModel | QRNNLanguageModel]":
        """Builds the model of the newest checkpoint in float32; returns its step with it.

        Segment and memory have the lengths of the run's evaluations.
        """
        step, weights = read_weights(self.workdir.folder)
        values = {name: getattr(self.experiment.evaluation, name) for name in _LENGTHS}
        changes = {name: value for name, value in values.items() if value is not None}
        return step, build_model(self.experiment.model.replace(**changes), weights)


def read_runs(folders: Sequence[str]) -> list[AnalyzedRun]:
    """Reads the descriptions of trained runs, without their weights.

    A run is called like its folder, or where several folders have one name,
    by the parts in which their paths differ. A folder that is named twice is a
    UsageError.
    """
    paths = [os.path.normpath(folder) for folder in folders]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        what, where = "Each run of a group is named once.", f"--workdir {twice}"
        raise UsageError(what, where=where, remedy="Leave one of the two out.")
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
    """Reads the experiment of a run or converted model, and the identity of its data.

    Of the data and training of a converted model nothing is known: the identity
    is `None`, the evaluation as by default, and a `step` is a UsageError.
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
