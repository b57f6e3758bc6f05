"""Description of a run, `run.json`: its settings, its data and its history."""

import dataclasses
import itertools
import json
import os
from typing import Annotated, Any, Literal, Self, TypeVar

from txl_tf.config.base import FrozenConfig, not_negative, positive
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.storage.files import first_line
from txl_tf.storage.untrusted_files import read_json_object, storage_errors

RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints of a run."""
StepChoice = int | Literal["best", "newest"] | None
"""Checkpoint of a run; `None` selects the best on the split `valid`, or else the newest."""

_FORMAT_VERSION = 1
# Settings that may change between starts of a run. They change no finite step except for the order
# of its sums, which the number of replicas changes too.
_FREE_FIELDS = (
    "steps_per_loop",
    "checkpoint_every_steps",
    "evaluate_every_steps",
    "evaluate_tokens",
    "num_kept_checkpoints",
    "tensor_float_32",
    "gradient_accumulation_steps",
    "rematerialize",
    "attention_kernel",
    "jit_compile",
    "on_non_finite",
    "stop_after_evaluations",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStart(FrozenConfig):
    """Origin of the weights that a run began from."""

    source: str
    """Folder of the model."""
    kind: str
    """Kind of the folder, see `FolderKind`."""
    step: Annotated[int, not_negative()]
    """Training steps of the weights; 0 if unknown."""
    vocabulary: Literal["same", "shared"]
    """With "shared", only the rows of tokens in both vocabularies were taken."""
    sha256: str
    """Checksum of the weights, see `weights_sha256`."""

    def __str__(self) -> str:
        rows = ", rows of shared tokens" if self.vocabulary == "shared" else ""
        return f"{self.kind} {self.source}, step {self.step:,}{rows}, SHA-256 {self.sha256[:12]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Data(FrozenConfig):
    fingerprint: str
    corpus: str
    tokenizer: str
    tokenizer_sha256: str
    vocabulary_size: Annotated[int, positive()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription(FrozenConfig):
    """Contents of `run.json`."""

    experiment: ExperimentConfig
    """All settings."""
    data: dict[str, Any]
    """Values that decide the tokens: the fields of `_Data`."""
    first_checkpoint_step: Annotated[int | None, not_negative()] = None
    """Steps done at the first checkpoint on disk; `None` before it."""
    longest_checkpoint_period: Annotated[int, not_negative()] = 0
    """Largest `checkpoint_every_steps` of all starts."""
    extended_at: tuple[int, ...] = ()
    """Numbers of steps, in order, at which the finished run was extended."""
    start: RunStart | None = None
    """Origin of the initial weights; `None` for random weights."""
    data_folder: str | None = None
    """Folder that the data was last read from."""

    def validate(self) -> None:
        training, model = self.experiment.training, self.experiment.model
        period = max(self.longest_checkpoint_period, training.checkpoint_every_steps)
        object.__setattr__(self, "longest_checkpoint_period", period)
        lengths = (0, *self.extended_at, training.num_steps)
        if not all(before < after for before, after in itertools.pairwise(lengths)):
            self.refuse("`extended_at` must rise to `num_steps`.", "extended_at")
        size = _Data.from_dict(self.data).vocabulary_size
        if size != model.vocabulary_size:
            raise ValueError(
                f"`data.vocabulary_size` must be {model.vocabulary_size}, as in the model. "
                f"Received: {size}"
            )

    def identity(self) -> dict[str, Any]:
        """Returns the settings that every checkpoint of the run is bound to, see `identity`.

        The number of steps is the original one, before any extension.
        """
        values = identity(self.experiment, self.data, self.start)
        values["training"]["num_steps"] = (*self.extended_at, values["training"]["num_steps"])[0]
        return values

    @classmethod
    def read(cls, folder: str) -> Self:
        """Reads the description of the run in a folder; InputMissingError without one."""
        found = read_settings_file(os.path.join(folder, RUN_FILE), cls)
        if found is None:
            what, remedy = "There is no run in this folder.", "`txl train --workdir` begins one."
            raise InputMissingError(what, where=folder, remedy=remedy)
        return found


def identity(
    experiment: ExperimentConfig, data: dict[str, Any], start: RunStart | None = None
) -> dict[str, Any]:
    """Returns the settings that decide every step; checkpoints are bound to them."""
    values = experiment.to_dict()
    training = {
        name: value for name, value in values["training"].items() if name not in _FREE_FIELDS
    }
    deciding = {"model": values["model"], "optimizer": values["optimizer"]}
    deciding |= {"training": training, "data": data}
    if experiment.task is not None:
        deciding["task"] = values["task"]
    if start is not None:
        deciding["start"] = start.to_dict()
    if experiment.is_led_by_evaluations:
        for name in ("evaluate_every_steps", "evaluate_tokens"):
            training[name] = values["training"][name]
        deciding["evaluation"] = values["evaluation"]
    return deciding


def settings_file(config: FrozenConfig) -> bytes:
    """Returns the contents of a JSON file that `read_settings_file` reads."""
    values = {"format_version": _FORMAT_VERSION, **config.to_dict()}
    return (json.dumps(values, indent=1) + "\n").encode()


_Config = TypeVar("_Config", bound=FrozenConfig)


def read_settings_file(path: str, config: type[_Config]) -> _Config | None:
    """Reads settings from a JSON file; `None` without a file.

    Raises DataDamagedError for invalid settings, MismatchError for another format version, and
    StorageError if the file cannot be read.
    """
    with storage_errors("The settings cannot be read", path):
        try:
            values = read_json_object(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    version = values.pop("format_version", None)
    if version != _FORMAT_VERSION:
        raise MismatchError(
            f"The file is of format {ascii(version)[:40]}; this version reads {_FORMAT_VERSION}.",
            where=path,
            remedy="Use the version of txl-tf that wrote it, or a newer one.",
        )
    try:
        return config.from_dict(values)
    except ValueError as error:
        what = f"The settings in the file are invalid: {first_line(error)}"
        raise DataDamagedError(what, where=path, remedy="Restore it from a copy.") from error
