"""The folder of a run: what it is, its checkpoints, its TensorBoard files."""

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.data.manifest import Manifest
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    OutputExistsError,
    UsageError,
)

_RUN_FILE = "run.json"
_FORMAT_VERSION = 1
# What may change from one start of a run to the next: it does not change a step.
_FREE_FIELDS = (
    "steps_per_loop",
    "checkpoint_every_steps",
    "evaluate_every_steps",
    "num_kept_checkpoints",
)


def add_workdir_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--workdir`."""
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Names the files of a run and reads and writes its description."""

    folder: Path
    """The folder."""

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """Folder for `tensorboard --logdir`."""
        return self.folder / "tensorboard"

    def has_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.folder / _RUN_FILE).is_file()

    def check_usable(self) -> None:
        """Raises OutputExistsError where something else is in the folder."""
        if self.has_run() or not self.folder.exists():
            return
        if not self.folder.is_dir() or any(self.folder.iterdir()):
            raise OutputExistsError(
                "The folder exists and is not the folder of a run.",
                where=str(self.folder),
                remedy="Choose another --workdir.",
            )

    def begin(self, experiment: ExperimentConfig, data: dict[str, Any]) -> None:
        """Describes the run, or checks that it is the one that was begun.

        Args:
            experiment: `ExperimentConfig`.
            data: dict that `data_identity` returned.

        Raises:
            MismatchError: If another run was begun here.
        """
        if self.has_run():
            begun, begun_data = self.read()
            mine, theirs = identity(experiment, data), identity(begun, begun_data)
            if mine != theirs:
                raise MismatchError(
                    f"Another run was begun here; they differ in {_differences(mine, theirs)}.",
                    where=str(self.folder),
                    remedy="Give the settings it was begun with, or choose a new --workdir.",
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        description = {
            "format_version": _FORMAT_VERSION,
            "experiment": experiment.to_dict(),
            "data": data,
        }
        temporary = self.folder / f".{_RUN_FILE}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(description, indent=1) + "\n")
        temporary.replace(self.folder / _RUN_FILE)

    def read(self) -> tuple[ExperimentConfig, dict[str, Any]]:
        """Reads what was begun here.

        Returns:
            Tuple of the experiment and the identity of its data.

        Raises:
            InputMissingError: If no run was begun here.
            DataDamagedError: If its description cannot be read.
        """
        path = self.folder / _RUN_FILE
        if not path.is_file():
            raise InputMissingError(
                "There is no run in this folder.",
                where=f"--workdir {self.folder}",
                remedy="`txl train --workdir` begins one.",
            )
        try:
            description = json.loads(path.read_text())
            return ExperimentConfig.from_dict(description["experiment"]), description["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataDamagedError(
                "The description of the run cannot be read.",
                where=str(path),
                remedy="Restore it from a copy.",
            ) from error


def data_identity(manifest: Manifest) -> dict[str, Any]:
    """What decides the tokens of a data set.

    Args:
        manifest: `Manifest`.

    Returns:
        Dict of JSON values.
    """
    return {
        "fingerprint": manifest.fingerprint,
        "corpus": manifest.corpus_name,
        "tokenizer": manifest.tokenizer_kind,
        "tokenizer_sha256": manifest.tokenizer_sha256,
        "vocabulary_size": manifest.vocabulary_size,
    }


def identity(experiment: ExperimentConfig, data: dict[str, Any]) -> dict[str, Any]:
    """What decides every step of a run; its checkpoints are bound to it.

    Args:
        experiment: `ExperimentConfig`.
        data: dict that `data_identity` returned.

    Returns:
        Dict of JSON values.
    """
    values = experiment.to_dict()
    training = {
        name: value for name, value in values["training"].items() if name not in _FREE_FIELDS
    }
    return {
        "model": values["model"],
        "optimizer": values["optimizer"],
        "training": training,
        "data": data,
    }


def check_vocabulary(experiment: ExperimentConfig, manifest: Manifest, where: str) -> None:
    """Raises MismatchError where ids of the data would be outside the model.

    Args:
        experiment: `ExperimentConfig`.
        manifest: `Manifest` of the data.
        where: str. Where the data set is.
    """
    if manifest.vocabulary_size != experiment.model.vocabulary_size:
        raise MismatchError(
            f"The data set has {manifest.vocabulary_size} token ids, "
            f"the model {experiment.model.vocabulary_size}.",
            where=where,
            remedy=f"--set model.vocabulary_size={manifest.vocabulary_size}",
        )


def check_tokenizer(data: dict[str, Any], manifest: Manifest, where: str) -> None:
    """Raises MismatchError where a data set has another tokenizer than the run.

    Args:
        data: dict. Identity of the run's data.
        manifest: `Manifest` of the data set at hand.
        where: str. Where the data set is.
    """
    if data["tokenizer_sha256"] != manifest.tokenizer_sha256:
        raise MismatchError(
            f"The data set was made with another tokenizer ({manifest.tokenizer_kind}) "
            f"than the run's ({data['tokenizer']}).",
            where=where,
            remedy="Prepare the text with the tokenizer of the run.",
        )


def require_step(steps: list[int], step: int | None, where: Path) -> int:
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
            "There is no checkpoint yet.", where=str(where), remedy="`txl train` makes them."
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


def _differences(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    names = [
        f"{section}.{name} ({theirs[section].get(name)!r}, now {value!r})"
        for section in mine
        for name, value in mine[section].items()
        if theirs[section].get(name) != value
    ]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
