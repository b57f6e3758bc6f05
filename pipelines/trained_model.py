"""Models that jobs read, their data sets, and the models of an analysis."""

import argparse
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txl_tf.causal_lm.model_source import ModelSource, open_model
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import UsageError
from txl_tf.run_folder import build_model, chosen_step

from .progress import say
from .workdir import Workdir, check_split, check_tokenizer, check_vocabulary

if TYPE_CHECKING:
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.models.language_model import LanguageModel


_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


def open_source(arguments: argparse.Namespace) -> ModelSource:
    """Opens the model of `--workdir` and `--step`, and puts its settings into the arguments."""
    folder = Workdir(arguments.workdir).folder
    arguments.source = source = open_model(folder, arguments.step)
    arguments.experiment, arguments.data_identity = source.experiment, source.data
    return source


def with_chosen_step(source: ModelSource) -> ModelSource:
    """Chooses the checkpoint of a run, and prints its step."""
    if not source.is_run:
        return source
    step, is_best = chosen_step(source.folder, source.step)
    say(f"step {step}{', the best of the split valid' if is_best else ''}")
    return dataclasses.replace(source, step=step)


def open_dataset(
    folder: str,
    experiment: ExperimentConfig,
    data: dict[str, Any] | None,
    split: str | None,
    *,
    verify: bool = True,
) -> "PreparedDataset":
    """Opens a prepared data set, and checks that it fits a model."""
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
    """Trained model of an analysis."""

    name: str
    """Name in figures and tables."""
    source: ModelSource

    @property
    def experiment(self) -> ExperimentConfig:
        """Settings of the run; defaults for a model without a run."""
        return self.source.experiment

    @property
    def has_memory(self) -> bool:
        """True if the model has a memory whose length can be chosen at evaluation."""
        return self.experiment.model.effective_memory_length > 0

    def load_model(self, memory_length: int | None = None) -> "tuple[int | None, LanguageModel]":
        """Builds the model in float32 with the run's evaluation lengths; returns its step too."""
        step, weights = self.source.read_weights()
        values = {name: getattr(self.experiment.evaluation, name) for name in _LENGTHS}
        changes = {name: value for name, value in values.items() if value is not None}
        if memory_length is not None and self.has_memory:
            changes["memory_length"] = memory_length
        return step, build_model(self.experiment.model.replace(**changes), weights)


def read_runs(folders: Sequence[str]) -> list[AnalyzedRun]:
    """Reads the settings of trained models, without their weights.

    A model is named after its folder or, where names are equal, after the parts in which their
    paths differ. A repeated folder is a UsageError.
    """
    paths = [os.path.normpath(folder) for folder in folders]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        what, where = "Each run of a group is named once.", f"--workdir {twice}"
        raise UsageError(what, where=where, remedy="Leave one of the two out.")
    return [
        AnalyzedRun(name, open_model(Workdir(folder).folder))
        for name, folder in zip(_names(paths), folders, strict=True)
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
