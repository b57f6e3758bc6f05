"""Descriptions of runs (`run.json`) and models (`config.json`), and checks that data fit them."""

import dataclasses
import itertools
import os
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from txl_tf.config.base import FrozenConfig, not_negative
from txl_tf.config.experiment import EvaluatedModel, ExperimentConfig
from txl_tf.data.prepared_dataset import Manifest, PreparedDataset
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    UsageError,
    errors_as,
    storage_errors,
)
from txl_tf.storage.files import RESTORE_REMEDY
from txl_tf.storage.strict_json import json_file, read_json_object
from txl_tf.training.checkpoints.checkpoint_store import CheckpointStore

if TYPE_CHECKING:
    import keras

RUN_FILE = "run.json"
CONFIG_FILE = "config.json"
VOCABULARY = "vocabulary"
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints of a run."""

_FORMAT_VERSION = 1
# Settings of training that may change when a run is started again. They do not change a finite
# step except in the order of its sums, which the number of replicas changes too.
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


def settings_file(config: FrozenConfig) -> bytes:
    """Returns the content of a JSON file that `read_settings_file` reads."""
    return json_file({"format_version": _FORMAT_VERSION, **config.to_dict()}, indent=1)


_Config = TypeVar("_Config", bound=FrozenConfig)


def read_settings_file(path: str, config: type[_Config]) -> _Config | None:
    """Reads a configuration from a JSON file; `None` if there is no file.

    Raises DataDamagedError for invalid settings, MismatchError for another format, and
    StorageError.
    """
    with storage_errors("The settings cannot be read", path):
        try:
            values = read_json_object(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    version = values.pop("format_version", None)
    if version != _FORMAT_VERSION:
        raise MismatchError(
            f"The file has format {ascii(version)[:40]}; this txl-tf reads {_FORMAT_VERSION}.",
            where=path,
            remedy="Use the version of txl-tf that wrote the file.",
        )
    with errors_as(
        DataDamagedError, ValueError, "The settings in the file are invalid", path, RESTORE_REMEDY
    ):
        return config.from_dict(values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStart(FrozenConfig):
    """Origin of the weights that a run began with."""

    source: str
    """Path of the folder with the weights."""
    kind: str
    """Kind of that folder, see `FolderKind`."""
    step: Annotated[int, not_negative()]
    """Number of steps that the weights were trained for; 0 if it is unknown."""
    vocabulary: Literal["same", "shared"]
    """With "shared", only the rows of tokens that both vocabularies have were copied."""

    def __str__(self) -> str:
        rows = ", only tokens that both vocabularies have" if self.vocabulary == "shared" else ""
        return f"{self.kind} {self.source}, step {self.step:,}{rows}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription(FrozenConfig):
    """Description of a run: the content of `run.json`."""

    experiment: ExperimentConfig
    """All settings."""
    data: dict[str, Any]
    """Values that determine the tokens, see `data_identity`."""
    extended_at: tuple[int, ...] = ()
    """Each number of steps that the run had finished when it was extended, in order."""
    first_learning_rate: float | None = None
    """Learning rate before the first extension with another rate; `None` if there was none."""
    start: RunStart | None = None
    """Origin of the initial weights; `None` if they were drawn at random."""
    data_folder: str | None = None
    """Folder that the last start of the run read its data from."""
    backend: Literal["tensorflow", "jax"] = "tensorflow"
    """Backend of Keras in the last start of the run. The next start may have another backend."""

    def validate(self) -> None:
        training, model = self.experiment.training, self.experiment.model
        lengths = (0, *self.extended_at, training.num_steps)
        if not all(before < after for before, after in itertools.pairwise(lengths)):
            self.refuse("`extended_at` must rise, and stay below `num_steps`.", "extended_at")
        size = self.data.get("vocabulary_size")
        if size != model.vocabulary_size:
            raise ValueError(
                f"`data.vocabulary_size` must be {model.vocabulary_size}, as in the model. "
                f"Received: {size}"
            )

    def identity(self) -> dict[str, Any]:
        """Returns the identity that every checkpoint of the run stores.

        It has the settings that determine every step, as they were before extensions, so that an
        extended run still reads its earlier checkpoints.
        """
        values = deciding_settings(self.experiment, self.data, self.start)
        values["training"]["num_steps"] = (*self.extended_at, values["training"]["num_steps"])[0]
        if self.first_learning_rate is not None:
            values["optimizer"]["learning_rate"] = self.first_learning_rate
        return values

    def checkpoints(self, folder: str) -> CheckpointStore:
        """Returns a reader of the checkpoints in the folder of this run."""
        return CheckpointStore(os.path.join(folder, CHECKPOINTS), self.identity())

    @classmethod
    def read(cls, folder: str) -> Self:
        """Reads the description of the run in a folder; InputMissingError if there is no run."""
        description = read_settings_file(os.path.join(folder, RUN_FILE), cls)
        if description is None:
            what, remedy = "There is no run in this folder.", "Name the folder of a run."
            raise InputMissingError(what, where=folder, remedy=remedy)
        return description


def deciding_settings(
    experiment: ExperimentConfig, data: dict[str, Any], start: RunStart | None = None
) -> dict[str, Any]:
    """Returns the settings, data and origin that determine every step of a run."""
    values = experiment.to_dict()
    training = {
        name: value for name, value in values["training"].items() if name not in _FREE_FIELDS
    }
    deciding = {
        "model": values["model"],
        "optimizer": values["optimizer"],
        "training": training,
        "data": data,
    }
    if experiment.task is not None:
        deciding["task"] = values["task"]
    if start is not None:
        deciding["start"] = start.to_dict()
    return deciding


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelDescription(EvaluatedModel):
    """Description of a model: the content of `config.json`."""

    tokenizer: str | None = None
    """Kind of the tokenizer. None means that there is no vocabulary."""
    tokenizer_sha256: str | None = None
    """Fingerprint of the tokenizer."""
    document_boundaries: Literal["ignore", "mask"] = "ignore"
    """Whether attention and memory cross into earlier documents ("ignore") or not ("mask")."""
    jit_compile: bool | None = None
    """Setting of the run. False means that XLA compiles nothing."""
    stored_as: Literal["float32", "bfloat16", "int8"] = "float32"
    """Type of the stored weights."""
    step: Annotated[int, not_negative()] = 0
    """Number of training steps, only for an export. Checkpoints store the number themselves."""

    @property
    def masks_documents(self) -> bool:
        return self.document_boundaries == "mask"

    @property
    def may_compile(self) -> bool:
        return self.jit_compile is not False

    @classmethod
    def of_run(cls, run: RunDescription) -> Self:
        """Returns the description of the model of a run."""
        experiment, training = run.experiment, run.experiment.training
        has_kernel = training.attention_kernel == "auto"
        return cls(
            model=experiment.model,
            tokenizer=run.data.get("tokenizer"),
            tokenizer_sha256=run.data.get("tokenizer_sha256"),
            evaluation=experiment.evaluation if has_kernel else experiment.resolved_evaluation,
            task=experiment.task,
            document_boundaries=training.document_boundaries,
            jit_compile=training.jit_compile,
        )

    @classmethod
    def of_model(cls, model: "keras.Model", tokenizer: Tokenizer | None, **others: Any) -> Self:
        """Returns the description of a model; ValueError if the tokenizer has another size."""
        check_vocabulary_size(model, tokenizer)
        if tokenizer is not None:
            others |= {"tokenizer": tokenizer.kind, "tokenizer_sha256": tokenizer.fingerprint}
        return cls(model=model.config, **others)

    def files(self, tokenizer: Tokenizer | None) -> dict[str, bytes]:
        """Returns `config.json` and the vocabulary files: their contents by path in a folder."""
        vocabulary = {} if tokenizer is None else tokenizer.vocabulary_files
        files = {f"{VOCABULARY}/{name}": content for name, content in vocabulary.items()}
        return {**files, CONFIG_FILE: settings_file(self)}


def check_vocabulary_size(model: "keras.Model", tokenizer: Tokenizer | None) -> None:
    """Raises ValueError if the tokenizer has another vocabulary size than the model."""
    size = model.config.vocabulary_size
    if tokenizer is not None and tokenizer.vocabulary_size != size:
        raise ValueError(
            f"`tokenizer` must have {size} tokens, as the model has. "
            f"Received: a tokenizer of {tokenizer.vocabulary_size} tokens"
        )


def data_identity(manifest: Manifest) -> dict[str, Any]:
    """Returns the values that determine the tokens of a data set."""
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
    config: EvaluatedModel | None = None,
    split: str | None = None,
) -> None:
    """Checks that a data set has a split, and the tokenizer and vocabulary size of a model.

    Raises UsageError for a missing split, MismatchError for another tokenizer or size.
    """
    if split is not None and split not in manifest.split_names:
        raise UsageError(
            f"There is no split {split} in this data set.",
            where=where,
            remedy=f"Choose one of: {', '.join(manifest.split_names)}.",
        )
    description = config if isinstance(config, ModelDescription) else None
    if description and description.tokenizer_sha256 not in (None, manifest.tokenizer_sha256):
        raise MismatchError(
            f"The data set has another vocabulary ({manifest.tokenizer_kind}) "
            f"than the model ({description.tokenizer}).",
            where=where,
            remedy="Prepare the text with the model's tokenizer: --vocabulary MODEL_FOLDER.",
        )
    if config and manifest.vocabulary_size != config.model.vocabulary_size:
        raise MismatchError(
            f"The data set has {manifest.vocabulary_size} token ids, "
            f"the model {config.model.vocabulary_size}.",
            where=where,
            remedy=f"Set the size with --set model.vocabulary_size={manifest.vocabulary_size}",
        )


def open_dataset(
    folder: str, description: ModelDescription, split: str | None, verify: bool = True
) -> PreparedDataset:
    """Opens a prepared data set, and checks that it fits a model."""
    dataset = PreparedDataset.open(folder, verify=verify)
    check_dataset(dataset.manifest, folder, description, split)
    return dataset
