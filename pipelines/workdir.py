"""Folder of a run: its description, checkpoints and TensorBoard files."""

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txl_tf.config.base import describe_differences
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.prepared_dataset import Manifest
from txl_tf.errors import InputMissingError, MismatchError, OutputExistsError, UsageError
from txl_tf.model_folder import (
    CHECKPOINTS,
    CONFIG_FILE,
    RUN_FILE,
    VOCABULARY,
    ModelDescription,
    ModelFolder,
    RunDescription,
    RunStart,
    checked_path,
    checkpoint_store,
    identity,
    settings_file,
)
from txl_tf.storage.files import (
    is_remote,
    list_folder,
    path_exists,
    read_file,
)
from txl_tf.storage.locks import WritableFolder
from txl_tf.storage.untrusted_files import storage_errors

from .progress import say

if TYPE_CHECKING:
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.data.tokenizers.tokenizer import Tokenizer


def add_workdir_argument(parser: Any) -> None:
    """Adds `--workdir`."""
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")


class Workdir:
    """Folder of a run: the paths of its files, and its description.

    The folder may be remote (`gs://bucket/run`): TPU machines lose their disks when preempted.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = checked_path(folder)
        # A log in a store is a folder of objects.
        ending = "" if is_remote(self.folder) else ".jsonl"
        self.checkpoints = os.path.join(self.folder, CHECKPOINTS)
        self.evaluations = os.path.join(self.folder, "evaluations")
        self.tensorboard = os.path.join(self.folder, "tensorboard")
        self.ledger = os.path.join(self.folder, f"ledger{ending}")
        self.metrics = os.path.join(self.folder, f"metrics{ending}")
        self.time = os.path.join(self.folder, f"time{ending}")

    @property
    def tensorboard_line(self) -> str:
        """Line with the command and the address of TensorBoard's pages."""
        command = f"tensorboard --logdir {shlex.quote(self.tensorboard)}"
        return f"TensorBoard: {command}  # http://localhost:6006/#custom_scalars"

    def has_run(self) -> bool:
        """True if a run was begun here."""
        return path_exists(os.path.join(self.folder, RUN_FILE))

    def describe(self) -> RunDescription:
        """Reads the description of the run; InputMissingError without one."""
        return RunDescription.read(self.folder)

    def with_own_policy(self, experiment: ExperimentConfig) -> ExperimentConfig:
        """Replaces the precision "auto" by the precision of the begun run, if there is one."""
        if not self.has_run():
            return experiment
        return experiment.with_policy(self.describe().experiment.training.dtype_policy)

    def check_usable(self) -> None:
        """Raises OutputExistsError if the folder is in use by something else."""
        with self._storage_errors("read"), contextlib.suppress(NotADirectoryError):
            # Hidden files are locks, and leftovers of a run that was killed before it began.
            if self.has_run() or all(name[0] == "." for name in list_folder(self.folder)):
                return
        raise OutputExistsError(
            "The folder exists and is not the folder of a run.",
            where=self.folder,
            remedy="Choose another --workdir.",
        )

    def check_same(
        self, experiment: ExperimentConfig, data: dict[str, Any]
    ) -> RunDescription | None:
        """Returns the run's description or `None`; MismatchError for another run or fewer steps."""
        if not self.has_run():
            return None
        before = self.describe()
        experiment = self.with_own_policy(experiment)
        begun, asked = identity(before.experiment, before.data), identity(experiment, data)
        differences = describe_differences(begun, asked)
        what = f"Another run was begun here; {differences}"
        remedy = "Give the settings it was begun with, or choose a new --workdir."
        num_steps, num_asked = (each["training"]["num_steps"] for each in (begun, asked))
        asked["training"]["num_steps"] = num_steps
        if before.data != data:
            place = f", those of {before.data_folder}" if before.data_folder else ""
            what = f"The run was begun on other data{place}; {differences}"
            remedy = "Leave --data out to read the data of the run, or choose a new --workdir."
        elif num_asked != num_steps and not describe_differences(begun, asked):
            if num_asked < num_steps:
                what = f"A run is never shortened: this one has {num_steps} steps, not {num_asked}."
                remedy = (
                    f"Begin another run from its weights with --init-from {self.folder}, or leave "
                    "training.num_steps out."
                )
            elif max(checkpoint_store(self.folder).steps(), default=0) >= num_steps:
                return before
            else:
                remedy = "Finish it with the steps that are stored; then it can be extended."
        if differences:
            raise MismatchError(what, where=self.folder, remedy=remedy)
        return before

    def begin(
        self,
        experiment: ExperimentConfig,
        data: dict[str, Any],
        folder: WritableFolder | None = None,
        start: RunStart | None = None,
        data_folder: str | None = None,
    ) -> RunDescription:
        """Writes the description of a new run, or checks and extends the existing one.

        Another run in the folder is a MismatchError, a lost lock an OutputExistsError.
        """
        before = self.check_same(experiment, data)
        if before is not None:
            num_steps = before.experiment.training.num_steps
            is_longer = experiment.training.num_steps > num_steps
            extended_at = (*before.extended_at, num_steps) if is_longer else before.extended_at
            description = before.replace(experiment=experiment, data=data, extended_at=extended_at)
        else:
            description = RunDescription(experiment=experiment, data=data, start=start)
        if data_folder is not None:
            description = description.replace(data_folder=lasting_path(data_folder))
        self._write(description, folder)
        return description

    def note_checkpoint(self, step: int, folder: WritableFolder | None = None) -> None:
        """Records the step of the run's first checkpoint, once; errors as in `begin`."""
        description = self.describe()
        if description.first_checkpoint_step is None:
            self._write(description.replace(first_checkpoint_step=step), folder)

    def keep_vocabulary(
        self, files: Mapping[str, bytes], folder: WritableFolder | None = None
    ) -> None:
        """Writes missing or changed files of the tokenizer, by name; errors as in `begin`."""
        vocabulary = (folder or WritableFolder.at(self.folder)).subfolder(VOCABULARY)
        with self._storage_errors("written"):
            for name, content in files.items():
                path = os.path.join(vocabulary.path, name)
                if not path_exists(path) or read_file(path) != content:
                    vocabulary.write(name, content)

    def remove_leftovers(self, folder: WritableFolder) -> None:
        """Removes unfinished files of description and vocabulary that killed processes left."""
        with self._storage_errors("cleaned up"):
            folder.remove_temporaries()
            folder.subfolder(VOCABULARY).remove_temporaries()

    def _write(self, description: RunDescription, folder: WritableFolder | None) -> None:
        files = {
            RUN_FILE: settings_file(description),
            # For copies of checkpoints: the run itself is opened by `run.json`.
            CONFIG_FILE: settings_file(ModelDescription.of_run(description)),
        }
        with self._storage_errors("written"):
            for name, content in files.items():
                (folder or WritableFolder.at(self.folder)).write(name, content)

    def _storage_errors(self, done: str) -> contextlib.AbstractContextManager[None]:
        remedy = "Check the storage and the permissions, or choose another --workdir."
        return storage_errors(f"The folder of the run cannot be {done}", self.folder, remedy)


def required_tokenizer(source: ModelFolder, where: str) -> "Tokenizer":
    """Returns the tokenizer of a model folder; InputMissingError if it has none."""
    tokenizer = source.tokenizer()
    if tokenizer is None:
        raise InputMissingError(
            "The model has no tokenizer, which turns text into tokens.",
            where=where,
            remedy="Convert or export it again with --data, which keeps the tokenizer.",
        )
    return tokenizer


def lasting_path(folder: str) -> str:
    """Returns a path of the folder that does not depend on the current directory."""
    return folder.rstrip("/") if is_remote(folder) else os.path.abspath(folder)


def data_identity(manifest: Manifest) -> dict[str, Any]:
    """Returns the values that decide the tokens of a data set."""
    return {
        "fingerprint": manifest.fingerprint,
        "corpus": manifest.corpus_name,
        "tokenizer": manifest.tokenizer_kind,
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "vocabulary_size": manifest.vocabulary_size,
    }


def check_dataset(
    manifest: Manifest,
    where: str,
    experiment: ExperimentConfig | None = None,
    described: ModelDescription | None = None,
    split: str | None = None,
) -> None:
    """Checks that a data set fits split, tokenizer and model; UsageError or MismatchError."""
    if split is not None and split not in manifest.split_names:
        raise UsageError(
            f"There is no split {split} in this data set.",
            where=where,
            remedy=f"There are: {', '.join(manifest.split_names)}.",
        )
    if described and described.tokenizer_sha256 not in (None, manifest.tokenizer_sha256):
        raise MismatchError(
            f"The data set was made with another tokenizer ({manifest.tokenizer_kind}) "
            f"than the run's ({described.tokenizer}).",
            where=where,
            remedy="Prepare the text with the tokenizer of the run.",
        )
    if experiment and manifest.vocabulary_size != experiment.model.vocabulary_size:
        raise MismatchError(
            f"The data set has {manifest.vocabulary_size} token ids, "
            f"the model {experiment.model.vocabulary_size}.",
            where=where,
            remedy=f"--set model.vocabulary_size={manifest.vocabulary_size}",
        )


def open_dataset(
    folder: str,
    experiment: ExperimentConfig,
    described: ModelDescription,
    split: str | None,
    verify: bool = True,
) -> "PreparedDataset":
    """Opens a prepared data set, and checks that it fits a model."""
    from txl_tf.data.prepared_dataset import PreparedDataset

    dataset = PreparedDataset.open(folder, verify=verify)
    check_dataset(dataset.manifest, folder, experiment, described, split)
    return dataset


def with_chosen_step(source: ModelFolder) -> ModelFolder:
    """Chooses the checkpoint of a run, and prints its step."""
    if source.run is None:
        return source
    step, is_best = source.chosen_step()
    say(f"step {step}{', the best of the split valid' if is_best else ''}")
    return dataclasses.replace(source, step=step)
