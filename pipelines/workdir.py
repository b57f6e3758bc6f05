"""Folder of a run: its description, checkpoints and TensorBoard files."""

import dataclasses
import os
import shlex
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from txl_tf.config.base import describe_differences
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.manifest import Manifest
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import (
    MismatchError,
    OutputExistsError,
    UsageError,
)
from txl_tf.model_folder import (
    CONFIG_FILE,
    VOCABULARY,
    ModelDescription,
    ModelFolder,
    checked_path,
    checkpoint_store,
)
from txl_tf.run import CHECKPOINTS, RUN_FILE, RunDescription, RunStart, folder_error, identity
from txl_tf.storage.files import (
    is_remote,
    list_folder,
    path_exists,
    read_file,
    temporary_path,
)
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.writable_folder import WritableFolder

from .progress import say

if TYPE_CHECKING:
    from txl_tf.data.prepared_dataset import PreparedDataset


def add_workdir_argument(parser: Any) -> None:
    """Adds `--workdir`."""
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Folder of a run: the paths of its files, and its description.

    The folder may be remote (`gs://bucket/run`): TPU machines lose their disks when preempted.
    """

    folder: str
    """Path of the folder; a remote path that has lost a slash is a UsageError."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", checked_path(self.folder))

    @property
    def checkpoints(self) -> str:
        """Folder of the checkpoints."""
        return os.path.join(self.folder, CHECKPOINTS)

    @property
    def tensorboard(self) -> str:
        """Folder for `tensorboard --logdir`."""
        return os.path.join(self.folder, "tensorboard")

    @property
    def tensorboard_line(self) -> str:
        """Line with the command and the address of TensorBoard's pages."""
        command = f"tensorboard --logdir {shlex.quote(self.tensorboard)}"
        return f"TensorBoard: {command}  # http://localhost:6006/#custom_scalars"

    @property
    def ledger(self) -> str:
        """Path of the ledger of all steps, see `StepLedger`."""
        return os.path.join(self.folder, "ledger" if is_remote(self.folder) else "ledger.jsonl")

    @property
    def metrics(self) -> str:
        """Path of the log of all figures, see `MetricsLog`."""
        return os.path.join(self.folder, "metrics" if is_remote(self.folder) else "metrics.jsonl")

    @property
    def time(self) -> str:
        """Path of the log of the run's use of time, see `RunClock`."""
        return os.path.join(self.folder, "time" if is_remote(self.folder) else "time.jsonl")

    @property
    def vocabulary(self) -> str:
        """Folder of the vocabulary of the run's tokenizer; missing for bytes."""
        return os.path.join(self.folder, VOCABULARY)

    @property
    def evaluations(self) -> str:
        """Folder of the results of `txl evaluate --watch`."""
        return os.path.join(self.folder, "evaluations")

    def guarded_tensorboard(self, check: Callable[[], None] | None = None) -> WritableFolder:
        """Returns the folder of TensorBoard's files, which accepts only figures of this run.

        If the run is removed or replaced during an evaluation, a change raises OutputExistsError.
        """
        begun = self.describe().run_id

        def check_run() -> None:
            if check is not None:
                check()
            if not self.has_run() or self.describe().run_id != begun:
                raise OutputExistsError(
                    "The run was removed or replaced meanwhile; its figures are not written.",
                    where=self.folder,
                    remedy="Run the same command again for the run that is there now.",
                )

        return WritableFolder.at(self.tensorboard, check_run)

    def lock(self) -> DirectoryLock:
        """Returns the lock for writing into the folder."""
        return DirectoryLock(self.folder)

    def has_run(self) -> bool:
        """Returns true if a run was begun here."""
        return path_exists(self._run_file)

    def check_usable(self) -> None:
        """Raises OutputExistsError if the folder is in use by something else."""
        # A run killed before it began leaves such a file.
        temporary = os.path.basename(temporary_path(self._run_file)).removesuffix(".tmp")
        try:
            if self.has_run() or all(
                DirectoryLock.is_lock(name) or name.startswith(temporary)
                for name in list_folder(self.folder)
            ):
                return
        except NotADirectoryError:
            pass
        except OSError as error:
            raise folder_error(self.folder, "read", error) from error
        raise OutputExistsError(
            "The folder exists and is not the folder of a run.",
            where=self.folder,
            remedy="Choose another --workdir.",
        )

    def check_same(self, experiment: ExperimentConfig, data: dict[str, Any]) -> None:
        """Raises MismatchError if another run was begun here; more steps are allowed."""
        if not self.has_run():
            return
        self.check_data(data)
        before = self.describe()
        begun, asked = identity(before.experiment, before.data), identity(experiment, data)
        differences = describe_differences(begun, asked)
        what = f"Another run was begun here; {differences}"
        remedy = "Give the settings it was begun with, or choose a new --workdir."
        num_steps, num_asked = (each["training"]["num_steps"] for each in (begun, asked))
        asked["training"]["num_steps"] = num_steps
        if num_asked != num_steps and not describe_differences(begun, asked):
            if num_asked < num_steps:
                what = f"A run is never shortened: this one has {num_steps} steps, not {num_asked}."
                remedy = (
                    f"Begin another run from its weights with --init-from {self.folder}, or leave "
                    "training.num_steps out."
                )
            elif max(checkpoint_store(self.folder).steps(), default=0) >= num_steps:
                return
            else:
                remedy = "Finish it with the steps that are stored; then it can be extended."
        if differences:
            raise MismatchError(what, where=self.folder, remedy=remedy)

    def check_data(self, data: dict[str, Any]) -> None:
        """Raises MismatchError if a run was begun here on other data."""
        described = self.describe() if self.has_run() else None
        if described is None or described.data == data:
            return
        place = f", those of {described.data_folder}" if described.data_folder else ""
        differences = describe_differences({"data": described.data}, {"data": data})
        raise MismatchError(
            f"The run was begun on other data{place}; {differences}",
            where=self.folder,
            remedy="Leave --data out to read the data of the run, or choose a new --workdir.",
        )

    def begin(
        self,
        experiment: ExperimentConfig,
        data: dict[str, Any],
        folder: WritableFolder | None = None,
        run_id: str | None = None,
        start: RunStart | None = None,
        data_folder: str | None = None,
    ) -> RunDescription:
        """Writes the description of a new run, or checks and extends the existing one.

        Another run in the folder is a MismatchError, a lost lock an OutputExistsError.
        """
        self.check_same(experiment, data)
        if self.has_run():
            before = self.describe()
            num_steps = before.experiment.training.num_steps
            is_longer = experiment.training.num_steps > num_steps
            extended_at = (*before.extended_at, num_steps) if is_longer else before.extended_at
            description = before.replace(experiment=experiment, data=data, extended_at=extended_at)
        else:
            description = RunDescription(experiment=experiment, data=data, start=start)
        if data_folder is not None:
            description = description.replace(data_folder=lasting_path(data_folder))
        if description.run_id is None:
            description = description.replace(run_id=run_id or uuid.uuid4().hex)
        self._write(description, folder)
        return description

    def take_up(
        self,
        experiment: ExperimentConfig,
        data: dict[str, Any],
        folder: WritableFolder | None,
        start: RunStart | None = None,
        data_folder: str | None = None,
    ) -> RunDescription:
        """Returns the description of the run in the folder, or begins a new run.

        Without a `folder`, nothing is written. Another run in the folder is a MismatchError.
        """
        if self.has_run():
            self.check_same(experiment, data)
            return self.describe()
        if folder is None:
            return RunDescription(experiment=experiment, data=data, start=start)
        return self.begin(experiment, data, folder, start=start, data_folder=data_folder)

    def note_checkpoint(self, step: int, folder: WritableFolder | None = None) -> None:
        """Records the step of the run's first checkpoint, once; errors as in `begin`."""
        description = self.describe()
        if description.first_checkpoint_step is None:
            self._write(description.replace(first_checkpoint_step=step), folder)

    def keep_vocabulary(
        self, files: Mapping[str, bytes], folder: WritableFolder | None = None
    ) -> None:
        """Writes missing or changed files of the tokenizer, by name; errors as in `begin`."""
        folder = folder or WritableFolder.at(self.folder)
        try:
            for name, content in files.items():
                path = os.path.join(self.vocabulary, name)
                if not path_exists(path) or read_file(path) != content:
                    folder.subfolder(VOCABULARY).write(name, content)
        except OSError as error:
            raise folder_error(self.folder, "written", error) from error

    def remove_leftovers(self, folder: WritableFolder) -> None:
        """Removes unfinished files of description and vocabulary that killed processes left."""
        try:
            folder.remove_temporaries()
            folder.subfolder(VOCABULARY).remove_temporaries()
        except OSError as error:
            raise folder_error(self.folder, "cleaned up", error) from error

    def describe(self) -> RunDescription:
        """Reads the description of the run; InputMissingError if there is none."""
        return RunDescription.read(self.folder)

    def _write(self, description: RunDescription, folder: WritableFolder | None) -> None:
        try:
            folder = folder or WritableFolder.at(self.folder)
            folder.write(RUN_FILE, description.to_json())
            # For copies of checkpoints: the run itself is opened by `run.json`.
            folder.write(CONFIG_FILE, ModelDescription.of_run(description).files(None)[CONFIG_FILE])
        except OSError as error:
            raise folder_error(self.folder, "written", error) from error

    @property
    def _run_file(self) -> str:
        return os.path.join(self.folder, RUN_FILE)


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


def check_vocabulary(
    experiment: ExperimentConfig,
    source: Manifest | Tokenizer,
    where: str,
    what: str = "data set",
) -> None:
    """Raises MismatchError if `source`, named `what` in the error, has other ids than the model."""
    if source.vocabulary_size != experiment.model.vocabulary_size:
        raise MismatchError(
            f"The {what} has {source.vocabulary_size} token ids, "
            f"the model {experiment.model.vocabulary_size}.",
            where=where,
            remedy=f"--set model.vocabulary_size={source.vocabulary_size}",
        )


def check_split(manifest: Manifest, split: str, where: str) -> None:
    """Raises UsageError if the data set in `where` has no such split."""
    if split not in manifest.split_names:
        raise UsageError(
            f"There is no split {split} in this data set.",
            where=where,
            remedy=f"There are: {', '.join(manifest.split_names)}.",
        )


def check_tokenizer(described: ModelDescription, manifest: Manifest, where: str) -> None:
    """Raises MismatchError if the data set in `where` has another tokenizer than the model."""
    if described.tokenizer_sha256 not in (None, manifest.tokenizer_sha256):
        raise MismatchError(
            f"The data set was made with another tokenizer ({manifest.tokenizer_kind}) "
            f"than the run's ({described.tokenizer}).",
            where=where,
            remedy="Prepare the text with the tokenizer of the run.",
        )


def open_dataset(
    folder: str,
    experiment: ExperimentConfig,
    described: ModelDescription,
    split: str | None,
    *,
    verify: bool = True,
) -> "PreparedDataset":
    """Opens a prepared data set, and checks that it fits an experiment and a tokenizer."""
    from txl_tf.data.prepared_dataset import PreparedDataset

    dataset = PreparedDataset.open(folder, verify=verify)
    if split is not None:
        check_split(dataset.manifest, split, folder)
    check_tokenizer(described, dataset.manifest, folder)
    check_vocabulary(experiment, dataset.manifest, folder)
    return dataset


def with_chosen_step(source: ModelFolder) -> ModelFolder:
    """Chooses the checkpoint of a run, and prints its step."""
    if source.run is None:
        return source
    step, is_best = source.chosen_step()
    say(f"step {step}{', the best of the split valid' if is_best else ''}")
    return dataclasses.replace(source, step=step)
