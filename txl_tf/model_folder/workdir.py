"""Working folder of a run: the paths of its files, and how its description is written."""

import contextlib
import os
import shlex
from collections.abc import Mapping
from typing import Any, Literal

from txl_tf.config.differences import describe_differences
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import MismatchError, OutputExistsError, storage_errors
from txl_tf.model_folder.descriptions import (
    CHECKPOINTS,
    CONFIG_FILE,
    RUN_FILE,
    VOCABULARY,
    ModelDescription,
    RunDescription,
    RunStart,
    deciding_settings,
    settings_file,
)
from txl_tf.model_folder.folder import checked_path
from txl_tf.storage.files import is_remote, list_folder, path_exists, read_file
from txl_tf.storage.locks import locked_folder
from txl_tf.storage.writable_folder import WritableFolder


class Workdir:
    """Folder of a run: the paths of its files, and its description.

    The folder may be remote (`gs://bucket/run`), because TPU machines lose their disks when they
    are preempted. A second writer is excluded only if the argument is the `WritableFolder` of a
    `locked_folder`.
    """

    def __init__(self, folder: str | os.PathLike[str] | WritableFolder) -> None:
        if not isinstance(folder, WritableFolder):
            folder = WritableFolder(checked_path(folder))
        self.files = folder
        self.folder = self.files.path
        # In a store a log is a folder of parts.
        ending = "" if is_remote(self.folder) else ".jsonl"
        self.checkpoints = os.path.join(self.folder, CHECKPOINTS)
        self.tensorboard = os.path.join(self.folder, "tensorboard")
        self.ledger = os.path.join(self.folder, f"ledger{ending}")
        self.metrics = os.path.join(self.folder, f"metrics{ending}")

    @property
    def tensorboard_line(self) -> str:
        """Line for the user with the command that starts TensorBoard, and its address."""
        command = f"tensorboard --logdir {shlex.quote(self.tensorboard)}"
        return f"TensorBoard: {command}  # http://localhost:6006/#custom_scalars"

    def has_run(self) -> bool:
        """True if the folder has the description of a run."""
        return path_exists(os.path.join(self.folder, RUN_FILE))

    def describe(self) -> RunDescription:
        """Reads the description of the run; InputMissingError if there is no run."""
        return RunDescription.read(self.folder)

    def check_usable(self) -> None:
        """Raises OutputExistsError if the folder has files, but no run."""
        with self._storage_errors("read"), contextlib.suppress(NotADirectoryError):
            # Hidden files are locks, or a process that was killed before its run began left them.
            if self.has_run() or all(name[0] == "." for name in list_folder(self.folder)):
                return
        raise OutputExistsError(
            "The folder has files, but is not the folder of a run.",
            where=self.folder,
            remedy="Choose another --workdir.",
        )

    def check_unlocked(self) -> None:
        """Raises OutputExistsError if a process on this machine trains here.

        Folders in a store, and runs on several machines, are not checked.
        """
        is_shared = is_remote(self.folder) or os.environ.get("TF_CONFIG")
        if self.has_run() and not is_shared:
            with locked_folder(self.folder):
                pass

    def check_same(
        self, experiment: ExperimentConfig, data: dict[str, Any]
    ) -> RunDescription | None:
        """Returns the description of the run that these settings continue or extend.

        Returns `None` if there is no run yet. Raises MismatchError if the folder has another run,
        if the run has more steps, or if it would be extended before it is finished.
        """
        if not self.has_run():
            return None
        before = self.describe()
        experiment = experiment.with_policy(before.experiment.training.dtype_policy)
        earlier = deciding_settings(before.experiment, before.data)
        current = deciding_settings(experiment, data)
        stored_steps, current_steps = (
            each["training"].pop("num_steps") for each in (earlier, current)
        )
        if current_steps > stored_steps:
            # An extension may have another learning rate.
            current["optimizer"]["learning_rate"] = earlier["optimizer"]["learning_rate"]
        remedy = (
            f"Give the settings of that run, or begin another with a new --workdir and --init-from "
            f"{self.folder}. A finished run takes another optimizer.learning_rate with more steps."
        )
        if differences := describe_differences(earlier, current):
            what = f"The folder has a run with other settings; {differences}"
            if before.data != data:
                place = f" ({before.data_folder})" if before.data_folder else ""
                what = f"The folder has a run on other data{place}; {differences}"
                remedy = "Leave --data out to read the data of the run, or choose a new --workdir."
        elif current_steps < stored_steps:
            what = f"The run has {stored_steps} steps, and cannot be shortened to {current_steps}."
            remedy = f"Leave training.num_steps out, or begin a run with --init-from {self.folder}."
        elif current_steps > stored_steps > max(before.checkpoints(self.folder).steps(), default=0):
            what = (
                f"The run must finish {stored_steps} steps before it is extended to "
                f"{current_steps}."
            )
            remedy = f"Finish the run first, with training.num_steps={stored_steps}."
        else:
            return before
        raise MismatchError(what, where=self.folder, remedy=remedy)

    def begin(
        self,
        experiment: ExperimentConfig,
        data: dict[str, Any],
        start: RunStart | None = None,
        data_folder: str | None = None,
        backend: Literal["tensorflow", "jax"] = "tensorflow",
    ) -> RunDescription:
        """Writes the description of a new run, or checks and updates the description that exists.

        Raises MismatchError as `check_same` does, and OutputExistsError if the lock is lost.
        """
        description = self.check_same(experiment, data)
        if description is None:
            description = RunDescription(experiment=experiment, data=data, start=start)
        before, extended_at = description.experiment, description.extended_at
        first_rate, rate = description.first_learning_rate, before.optimizer.learning_rate
        if experiment.training.num_steps > before.training.num_steps:
            extended_at = (*extended_at, before.training.num_steps)
        if experiment.optimizer.learning_rate != rate and first_rate is None:
            first_rate = rate
        description = description.replace(
            experiment=experiment,
            data=data,
            backend=backend,
            extended_at=extended_at,
            first_learning_rate=first_rate,
            data_folder=lasting_path(data_folder) if data_folder else description.data_folder,
        )
        self._write(description)
        return description

    def keep_vocabulary(self, files: Mapping[str, bytes]) -> None:
        """Writes the files of the tokenizer that are missing or differ.

        `files` has the contents by name. Raises OutputExistsError if the lock is lost.
        """
        vocabulary = self.files.subfolder(VOCABULARY)
        with self._storage_errors("written"):
            for name, content in files.items():
                path = os.path.join(vocabulary.path, name)
                if not path_exists(path) or read_file(path) != content:
                    vocabulary.write(name, content)

    def remove_leftovers(self) -> None:
        """Removes temporary files beside description and vocabulary that killed processes left."""
        with self._storage_errors("cleaned up"):
            self.files.remove_temporaries()
            self.files.subfolder(VOCABULARY).remove_temporaries()

    def _write(self, description: RunDescription) -> None:
        with self._storage_errors("written"):
            self.files.write(RUN_FILE, settings_file(description))
            # A copied checkpoint needs this file. The run itself is opened by `run.json`.
            self.files.write(CONFIG_FILE, settings_file(ModelDescription.of_run(description)))

    def _storage_errors(self, verb: str) -> contextlib.AbstractContextManager[None]:
        return storage_errors(
            f"The folder of the run cannot be {verb}",
            self.folder,
            "Check the storage and the permissions, or choose another --workdir.",
        )


def lasting_path(folder: str) -> str:
    """Returns a path to the folder that does not depend on the current directory."""
    return folder.rstrip("/") if is_remote(folder) else os.path.abspath(folder)
