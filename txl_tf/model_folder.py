"""Folder of a model: its kind, settings, weights and tokenizer, and `load_model`.

| kind | files |
|---|---|
| "run" | `run.json`, `config.json`, `vocabulary/`, `checkpoints/step-NNNNNNNN/`, perhaps `base/` |
| "checkpoint" | `manifest.json` and `state.data`, in a run or alone |
| "model" | `config.json`, `vocabulary/`, and the files of a checkpoint |
| "export" | a SavedModel, with `config.json` and `vocabulary/` in `assets.extra/` |
| "data set" | `manifest.json`, and the files that it lists |

`txl convert` and `save_to_preset` write a "model". A checkpoint that was copied out of its run is
one too, once the run's `config.json` and `vocabulary/` are beside its files. TensorFlow is imported
only when weights are read or written.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np

from txl_tf.config.base import FrozenConfig, describe_differences, not_negative
from txl_tf.config.experiment import (
    EvaluationConfig,
    ExperimentConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.data.prepared_dataset import (
    Manifest,
    PreparedDataset,
    dataset_tokenizer,
    read_tokenizer,
)
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    OutputExistsError,
    UsageError,
)
from txl_tf.imports import tensorflow as tf
from txl_tf.storage.files import first_line, is_remote, list_folder, path_exists, read_file
from txl_tf.storage.locks import WritableFolder
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.untrusted_files import read_json_object, storage_errors, verify_checksums

if TYPE_CHECKING:
    import keras

    from txl_tf.models.language_model import LanguageModel
    from txl_tf.training.checkpoints import CheckpointStore

RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints of a run."""
StepChoice = int | Literal["best", "newest"] | None
"""Checkpoint of a run; `None` selects the best on the split `valid`, or else the newest."""
CONFIG_FILE = "config.json"
VOCABULARY = "vocabulary"
BASE = "base"
"""Folder in a run with adapters: the frozen weights, which its checkpoints leave out."""
GRAPH_FILE = "saved_model.pb"
EXTRA = "assets.extra"
"""Folder of an export for files that a server does not read."""
FolderKind = Literal["run", "checkpoint", "model", "export", "data set"]

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
_MANIFEST_FILE, _DATA_FILE = "manifest.json", "state.data"
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})")
# TensorFlow writes `.S` for a slash in the name of a variable.
_EXPORTED_WEIGHT = re.compile(r"weights/_numbers/(.+)/\.ATTRIBUTES/VARIABLE_VALUE")
_EXPORTED_SCALE = "weights/_scales/{}/.ATTRIBUTES/VARIABLE_VALUE"


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

    def __str__(self) -> str:
        rows = ", only tokens that both vocabularies have" if self.vocabulary == "shared" else ""
        return f"{self.kind} {self.source}, step {self.step:,}{rows}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription(FrozenConfig):
    """Contents of `run.json`."""

    experiment: ExperimentConfig
    """All settings."""
    data: dict[str, Any]
    """Values that decide the tokens, see `data_identity`."""
    extended_at: tuple[int, ...] = ()
    """Numbers of steps, in order, at which the finished run was extended."""
    start: RunStart | None = None
    """Origin of the initial weights; `None` for random weights."""
    data_folder: str | None = None
    """Folder that the data was last read from."""

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
        """Returns the settings that checkpoints are bound to, with the original number of steps."""
        values = identity(self.experiment, self.data, self.start)
        values["training"]["num_steps"] = (*self.extended_at, values["training"]["num_steps"])[0]
        return values

    @classmethod
    def read(cls, folder: str) -> Self:
        """Reads the description of the run in a folder; InputMissingError without one."""
        found = read_settings_file(os.path.join(folder, RUN_FILE), cls)
        if found is None:
            what, remedy = "There is no run in this folder.", "Name the folder of a run."
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
    """Reads settings from a JSON file; `None` without one; DataDamagedError or MismatchError."""
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
            remedy="Use the version of txl-tf that wrote the file, or a newer version.",
        )
    try:
        return config.from_dict(values)
    except ValueError as error:
        what = f"The settings in the file are invalid: {first_line(error)}"
        raise DataDamagedError(what, where=path, remedy="Restore the file from a copy.") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelDescription(FrozenConfig):
    """Contents of `config.json`."""

    model: ModelConfig | LSTMConfig | QRNNConfig
    """Settings of the model."""
    tokenizer: str | None = None
    """Kind of the tokenizer; None: there is no vocabulary."""
    tokenizer_sha256: str | None = None
    """Fingerprint of the tokenizer."""
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    """Evaluation of the run; defaults if it is unknown."""
    task: TaskConfig | None = None
    """Task that the model was fine-tuned for."""
    document_boundaries: Literal["ignore", "mask"] = "ignore"
    """With "mask", a document does not see the one before it."""
    stored_as: Literal["float32", "bfloat16", "int8"] = "float32"
    """Type of the stored weights."""
    step: Annotated[int, not_negative()] = 0
    """Training steps of an export; other weights store their own."""

    @classmethod
    def of_run(cls, run: RunDescription) -> Self:
        """Returns the description of the model of a run."""
        experiment = run.experiment
        return cls(
            model=experiment.model,
            tokenizer=run.data.get("tokenizer"),
            tokenizer_sha256=run.data.get("tokenizer_sha256"),
            evaluation=experiment.evaluation,
            task=experiment.task,
            document_boundaries=experiment.training.document_boundaries,
        )

    @classmethod
    def of_model(cls, model: "keras.Model", tokenizer: Tokenizer | None, **others: Any) -> Self:
        """Returns the description of a model; ValueError for a tokenizer of another size."""
        check_vocabulary_size(model, tokenizer)
        if tokenizer is not None:
            others |= {"tokenizer": tokenizer.kind, "tokenizer_sha256": tokenizer.fingerprint}
        return cls(model=model.config, **others)

    def files(self, tokenizer: Tokenizer | None) -> dict[str, bytes]:
        """Returns `config.json` and the vocabulary: content by path in a folder."""
        vocabulary = {} if tokenizer is None else tokenizer.vocabulary_files
        files = {f"{VOCABULARY}/{name}": content for name, content in vocabulary.items()}
        return {**files, CONFIG_FILE: settings_file(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """Folder of a model with its settings; `run` is `None` unless it is the folder of a run.

    `step` is the chosen checkpoint of a run, and `folder` the version of an export.
    """

    kind: FolderKind
    folder: str
    step: StepChoice
    description: ModelDescription
    run: RunDescription | None = None

    @property
    def experiment(self) -> ExperimentConfig:
        """Settings of the run; without a run, training and optimizer are placeholders."""
        if self.run is not None:
            return self.run.experiment
        boundaries = self.description.document_boundaries
        return ExperimentConfig(
            model=self.description.model,
            training=TrainingConfig(
                global_batch_size=1, num_steps=1, document_boundaries=boundaries
            ),
            optimizer=OptimizerConfig(warmup_steps=0),
            evaluation=self.description.evaluation,
            task=self.description.task,
        )

    def chosen_step(self) -> tuple[int, bool]:
        """Returns the step of the chosen checkpoint of a run, and True if it is the best."""
        store, step = checkpoint_store(self.folder), self.step
        steps, best = store.steps(), store.best_step()
        if not steps or (step == "best" and best is None):
            what = "The run has no best checkpoint: no evaluation has chosen one yet."
            remedy = "Wait for an evaluation, or choose another --step."
            if not steps:
                what, remedy = "The run has no checkpoint yet.", "Wait until `txl train` saves one."
            raise InputMissingError(what, where=self.folder, remedy=remedy)
        if step == "newest" or (step is None and best is None):
            step = steps[-1]
        elif step in ("best", None):
            step = best
        if step not in steps:
            raise UsageError(
                f"There is no checkpoint of step {step}.",
                where=f"--step {step}",
                remedy=f"Choose one of: {', '.join(map(str, steps))}.",
            )
        return int(step), step == best

    def read_weights(self, *, with_head: bool = False) -> tuple[int, dict[str, np.ndarray]]:
        """Reads the step of the weights, 0 if unknown, and the verified weights by path.

        Averages replace weights, adapters are merged, and numbers in fewer bits become float32.
        """
        if self.kind == "export":
            return self.description.step, _exported_weights(self.folder)
        if self.run is None:
            step, arrays = _read_checkpoint(self.folder, self.description.model)
        else:
            step, _ = self.chosen_step()
            arrays = checkpoint_store(self.folder).load(step)
        weights = _inference_weights(arrays, with_head)
        if not any(name.startswith("adapter/") for name in arrays):
            return step, weights
        if self.run is None:
            raise InputMissingError(
                "The checkpoint has adapters only; their base weights are in the run's folder.",
                where=self.folder,
                remedy="Name the folder of the run.",
            )
        from txl_tf.models.adapters import merged_weights

        alpha = self.run.experiment.training.adapter_alpha
        return step, merged_weights({**read_base(self.folder), **weights}, alpha)

    def load_model(self) -> "LanguageModel":
        """Builds the model in float32 with its weights; errors of `load_model`."""
        return build_model(self.description.model, self.read_weights()[1])

    def tokenizer(self) -> Tokenizer | None:
        """Reads the tokenizer, see `read_tokenizer`; `None` without a vocabulary."""
        kind, sha256 = self.description.tokenizer, self.description.tokenizer_sha256
        if kind is None or sha256 is None:
            return None
        extra = EXTRA if self.kind == "export" else ""
        return read_tokenizer(os.path.join(self.folder, extra, VOCABULARY), kind, sha256)


def load_model(folder: str | os.PathLike[str], step: StepChoice = None) -> "LanguageModel":
    """Loads the model of a folder, or of a file that Keras saved.

    Every file of the weights is compared with its checksum before a weight is used. If the run
    averages its weights, the averages are loaded.

    Args:
        folder: path of a run, a checkpoint, a converted model or an export, also a remote
            one (`gs://`), or of a `.keras` file.
        step: optional int, `"best"` or `"newest"`. The checkpoint of a run: of this
            step, the best on the split `valid`, or the newest. Defaults to `None`: the
            best if one is known, or else the newest. Other models have one step only.

    Returns:
        The model in float32: `TransformerXL`, `LSTMLanguageModel` or
        `QRNNLanguageModel`. For a `.keras` file, the model that was saved.

    Raises:
        InputMissingError: If there is no such folder, or no such checkpoint yet.
        UsageError: If there is no checkpoint of this step.
        DataDamagedError: If a file is missing or altered.
        MismatchError: If configuration and weights belong to different models.
        StorageError: If a file cannot be read.

    Example:
    ```python
    model = txl_tf.load_model("runs/enwik8")
    log_probs, memory = model.log_probs(token_ids, model.initial_memory(1))
    ```
    """
    if is_keras_file(folder) and step is None:
        import keras

        return keras.saving.load_model(folder)
    return open_model(folder, step).load_model()


def is_keras_file(path: str | os.PathLike[str]) -> bool:
    """True if the path is an existing `.keras` file."""
    return os.fspath(path).endswith(".keras") and os.path.isfile(path)


def open_model(folder: str | os.PathLike[str], step: StepChoice = None) -> ModelFolder:
    """Finds the model of a folder of any kind and reads its settings, without TensorFlow.

    A checkpoint inside a run is the run at its step. Raises InputMissingError if there is no model,
    UsageError for a step where there is no choice, and DataDamagedError for invalid settings.
    """
    kind, place = identify_folder(folder)
    if step is not None and kind != "run":
        what = "The folder holds one set of weights, so no step can be chosen."
        raise UsageError(what, where=f"--step {step}", remedy="Leave the step out.")
    inside = _run_of_checkpoint(place) if kind == "checkpoint" else None
    run: RunDescription | None = None
    described: ModelDescription | None = None
    if kind == "run" or inside is not None:
        place, step = inside or (place, step)
        run = RunDescription.read(place)
        described = ModelDescription.of_run(run)
    elif kind in ("model", "export"):
        path = os.path.join(place, EXTRA if kind == "export" else "", CONFIG_FILE)
        described = read_settings_file(path, ModelDescription)
    if kind is None or described is None:
        has_weights = kind in ("checkpoint", "export")
        raise InputMissingError(
            "The folder has weights, but their config.json is missing."
            if has_weights
            else "There is no model in this folder.",
            where=place,
            remedy="Name the folder of a run, a checkpoint with the config.json of its run, "
            "a converted model or an export.",
        )
    return ModelFolder(kind=kind, folder=place, step=step, description=described, run=run)


def identify_folder(folder: str | os.PathLike[str]) -> tuple[FolderKind | None, str]:
    """Returns the kind of a folder, or `None`, and its path, or an export's newest version."""
    place = checked_path(folder)
    with storage_errors("The folder cannot be read", place):
        if _has(place, RUN_FILE) or _has(place, CHECKPOINTS):
            return "run", place
        if _run_of_checkpoint(place) is not None:
            return "checkpoint", place
        if _has(place, CONFIG_FILE):
            return "model", place
        if _has(place, _MANIFEST_FILE):
            return "checkpoint" if _has(place, _DATA_FILE) else "data set", place
        numbers: list[str] = []
        with contextlib.suppress(NotADirectoryError):
            numbers = [name for name in list_folder(place) if name.isdecimal()]
        newest_first = sorted(numbers, key=int, reverse=True)
        for path in (place, *(os.path.join(place, number) for number in newest_first)):
            if _has(path, GRAPH_FILE):  # written last
                return "export", path
    return None, place


def _run_of_checkpoint(folder: str) -> tuple[str, int] | None:
    """Returns the run that a checkpoint is inside of, and its step; `None` for other folders."""
    parent, name = os.path.split(folder.rstrip("/"))
    named, owner = _CHECKPOINT_NAME.fullmatch(name), os.path.dirname(parent) or "."
    if named is None or os.path.basename(parent) != CHECKPOINTS or not _has(owner, RUN_FILE):
        return None
    return owner, int(named[1])


def _has(folder: str, name: str) -> bool:
    return path_exists(os.path.join(folder, name))


def checked_path(folder: str | os.PathLike[str]) -> str:
    """Returns the path as text; UsageError for a remote one that has lost a slash."""
    path = os.fspath(folder)
    if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", path):
        raise UsageError(
            "The remote path lost a slash: `pathlib.Path` keeps one of the two in `://`.",
            where=path,
            remedy="Give the path as a string, such as gs://BUCKET/FOLDER.",
        )
    return path


def checkpoint_store(folder: str) -> "CheckpointStore":
    """Returns the checkpoints of a run, for reading."""
    from txl_tf.training.checkpoints import CheckpointStore

    identity = RunDescription.read(folder).identity()
    return CheckpointStore(os.path.join(folder, CHECKPOINTS), identity)


def _read_checkpoint(
    folder: str, model: ModelConfig | LSTMConfig | QRNNConfig
) -> tuple[int, dict[str, np.ndarray]]:
    from txl_tf.training.checkpoints import read_checkpoint

    manifest, arrays = read_checkpoint(folder)
    stored, described = ({"model": m} for m in (manifest["identity"].get("model"), model.to_dict()))
    differences = describe_differences(stored, described)
    if differences:
        raise MismatchError(
            f"The weights are not of the model in config.json; {differences}",
            where=folder,
            remedy="Put the config.json of these weights into the folder.",
        )
    return manifest["step"], arrays


def _inference_weights(arrays: Mapping[str, np.ndarray], with_head: bool) -> dict[str, np.ndarray]:
    # By the paths of the weights, because the averages also contain a count of steps.
    prefixes = ("model/", "adapter/", *(["task/"] if with_head else []))
    paths = {name.partition("/")[2]: name for name in arrays if name.startswith(prefixes)}
    return {path: arrays.get(f"average/{path}", arrays[paths[path]]) for path in paths}


def _exported_weights(version: str) -> dict[str, np.ndarray]:
    verify_checksums(version)
    reader = tf.train.load_checkpoint(os.path.join(version, "variables", "variables"))
    stored = reader.get_variable_to_shape_map()
    weights = {}
    for match in filter(None, map(_EXPORTED_WEIGHT.fullmatch, stored)):
        # NumPy has no bfloat16 of its own.
        array = tf.cast(reader.get_tensor(match[0]), tf.float32).numpy()
        scale = _EXPORTED_SCALE.format(match[1])
        path = match[1].replace(".S", "/")
        weights[path] = array * reader.get_tensor(scale) if scale in stored else array
    return weights


def build_model(
    config: ModelConfig | LSTMConfig | QRNNConfig, weights: Mapping[str, np.ndarray]
) -> "LanguageModel":
    """Builds a model in float32 with weights by path; MismatchError if they are of another one."""
    from txl_tf.models import create_model
    from txl_tf.models.language_model import assign_weights

    model = create_model(config, dtype="float32")
    assign_weights({variable.path: variable for variable in model.weights}, weights)
    return model


def write_model_folder(
    model: "keras.Model", folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None
) -> None:
    """Writes a model with its tokenizer as a folder, completely or not at all.

    OutputExistsError if the folder exists, ValueError for another model or tokenizer.
    """
    if not isinstance(model.config, ModelConfig):
        raise ValueError(
            "Only a `TransformerXL` can be saved as a model folder. "
            f"Received: {type(model).__name__}"
        )
    described = ModelDescription.of_model(model, tokenizer)
    weights = {variable.path: variable.numpy() for variable in model.weights}
    with StagingFolder(checked_path(folder), last_file=CONFIG_FILE) as staging:
        _write_model(WritableFolder.at(staging.path), described, weights, tokenizer)
        staging.publish()


def write_base(run: WritableFolder, model: ModelConfig, weights: Mapping[str, np.ndarray]) -> None:
    """Writes the frozen weights of a run with adapters in place of unfinished ones."""
    with storage_errors("The folder of the run cannot be written", run.path):
        run.remove_folder(BASE)
        _write_model(run.subfolder(BASE), ModelDescription(model=model), weights)
        run.flush_tree(BASE)


def _write_model(
    folder: WritableFolder,
    described: ModelDescription,
    weights: Mapping[str, np.ndarray],
    tokenizer: Tokenizer | None = None,
) -> None:
    from txl_tf.training.checkpoints import MANIFEST_FILE, require_finite, write_checkpoint

    arrays = {f"model/{path}": array for path, array in weights.items()}
    require_finite(0, arrays)
    folder.make()
    manifest = write_checkpoint(folder.path, 0, arrays, {"model": described.model.to_dict()})
    folder.write(MANIFEST_FILE, manifest)
    for name, content in described.files(tokenizer).items():
        *folders, file = name.split("/")
        folder.subfolder(*folders).write(file, content)


def read_base(folder: str) -> dict[str, np.ndarray]:
    """Reads the frozen weights of a run with adapters, by path, or raises DataDamagedError."""
    place = os.path.join(folder, BASE)
    try:
        return open_model(place).read_weights()[1]
    except InputMissingError as error:
        what = "The base weights of the adapters are missing."
        raise DataDamagedError(what, where=place, remedy="Restore base/ from a copy.") from error


def check_vocabulary_size(model: "keras.Model", tokenizer: Tokenizer | None) -> None:
    """Raises ValueError for a tokenizer with another vocabulary size than the model."""
    size = model.config.vocabulary_size
    if tokenizer is not None and tokenizer.vocabulary_size != size:
        raise ValueError(
            f"`tokenizer` must have {size} tokens, as the model has. "
            f"Received: a tokenizer of {tokenizer.vocabulary_size} tokens"
        )


def tokenizer_from(source: Tokenizer | str | os.PathLike[str]) -> Tokenizer:
    """Returns the tokenizer itself, or the one in the folder of a data set or a model."""
    if isinstance(source, Tokenizer):
        return source
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "`tokenizer` must be a `Tokenizer`, or the folder of a prepared data set or a model. "
            f"Received: {type(source).__name__}"
        )
    kind, folder = identify_folder(source)
    if kind == "data set":
        return dataset_tokenizer(folder, Manifest.read(folder))
    return required_tokenizer(open_model(folder), folder)


def required_tokenizer(source: ModelFolder, where: str) -> Tokenizer:
    """Returns the tokenizer of a model folder; InputMissingError if it has none."""
    tokenizer = source.tokenizer()
    if tokenizer is None:
        raise InputMissingError(
            "The model has no tokenizer, which turns text into tokens.",
            where=where,
            remedy="Convert or export the model again with --data, to keep the tokenizer.",
        )
    return tokenizer


class Workdir:
    """Folder of a run: the paths of its files, and its description.

    The folder may be remote (`gs://bucket/run`): TPU machines lose their disks when preempted. Only
    a `locked_folder` keeps a second writer away.
    """

    def __init__(self, folder: str | os.PathLike[str] | WritableFolder) -> None:
        if not isinstance(folder, WritableFolder):
            folder = WritableFolder(checked_path(folder))
        self.files = folder
        self.folder = self.files.path
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

    def check_usable(self) -> None:
        """Raises OutputExistsError if the folder is in use by something else."""
        with self._storage_errors("read"), contextlib.suppress(NotADirectoryError):
            # Hidden files are locks, and leftovers of a run that was killed before it began.
            if self.has_run() or all(name[0] == "." for name in list_folder(self.folder)):
                return
        raise OutputExistsError(
            "The folder has files, but is not the folder of a run.",
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
        experiment = experiment.with_policy(before.experiment.training.dtype_policy)
        begun, asked = identity(before.experiment, before.data), identity(experiment, data)
        num_steps, num_asked = (each["training"].pop("num_steps") for each in (begun, asked))
        remedy = "Give the settings of that run, or choose a new --workdir."
        if differences := describe_differences(begun, asked):
            what = f"The folder has a run with other settings; {differences}"
            if before.data != data:
                place = f" ({before.data_folder})" if before.data_folder else ""
                what = f"The folder has a run on other data{place}; {differences}"
                remedy = "Leave --data out to read the data of the run, or choose a new --workdir."
        elif num_asked < num_steps:
            what = f"The run has {num_steps} steps, and cannot be shortened to {num_asked}."
            remedy = f"Leave training.num_steps out, or begin a run with --init-from {self.folder}."
        elif num_asked > num_steps > max(checkpoint_store(self.folder).steps(), default=0):
            what = f"The run must finish {num_steps} steps before it is extended to {num_asked}."
            remedy = f"Finish the run first, with training.num_steps={num_steps}."
        else:
            return before
        raise MismatchError(what, where=self.folder, remedy=remedy)

    def begin(
        self,
        experiment: ExperimentConfig,
        data: dict[str, Any],
        start: RunStart | None = None,
        data_folder: str | None = None,
    ) -> RunDescription:
        """Writes the description of a new run, or checks and extends the existing one.

        Another run in the folder is a MismatchError, a lost lock an OutputExistsError.
        """
        description = self.check_same(experiment, data)
        if description is None:
            description = RunDescription(experiment=experiment, data=data, start=start)
        num_steps, extended_at = description.experiment.training.num_steps, description.extended_at
        if experiment.training.num_steps > num_steps:
            extended_at = (*extended_at, num_steps)
        description = description.replace(
            experiment=experiment,
            data=data,
            extended_at=extended_at,
            data_folder=lasting_path(data_folder) if data_folder else description.data_folder,
        )
        self._write(description)
        return description

    def keep_vocabulary(self, files: Mapping[str, bytes]) -> None:
        """Writes missing or changed files of the tokenizer, by name; errors as in `begin`."""
        vocabulary = self.files.subfolder(VOCABULARY)
        with self._storage_errors("written"):
            for name, content in files.items():
                path = os.path.join(vocabulary.path, name)
                if not path_exists(path) or read_file(path) != content:
                    vocabulary.write(name, content)

    def remove_leftovers(self) -> None:
        """Removes unfinished files of description and vocabulary that killed processes left."""
        with self._storage_errors("cleaned up"):
            self.files.remove_temporaries()
            self.files.subfolder(VOCABULARY).remove_temporaries()

    def _write(self, description: RunDescription) -> None:
        with self._storage_errors("written"):
            self.files.write(RUN_FILE, settings_file(description))
            # For copies of checkpoints: the run itself is opened by `run.json`.
            self.files.write(CONFIG_FILE, settings_file(ModelDescription.of_run(description)))

    def _storage_errors(self, done: str) -> contextlib.AbstractContextManager[None]:
        remedy = "Check the storage and the permissions, or choose another --workdir."
        return storage_errors(f"The folder of the run cannot be {done}", self.folder, remedy)


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
            remedy=f"Choose one of: {', '.join(manifest.split_names)}.",
        )
    if described and described.tokenizer_sha256 not in (None, manifest.tokenizer_sha256):
        raise MismatchError(
            f"The data set has another vocabulary ({manifest.tokenizer_kind}) "
            f"than the model ({described.tokenizer}).",
            where=where,
            remedy="Prepare the text with the model's tokenizer: --vocabulary MODEL_FOLDER.",
        )
    if experiment and manifest.vocabulary_size != experiment.model.vocabulary_size:
        raise MismatchError(
            f"The data set has {manifest.vocabulary_size} token ids, "
            f"the model {experiment.model.vocabulary_size}.",
            where=where,
            remedy=f"Set the size with --set model.vocabulary_size={manifest.vocabulary_size}",
        )


def open_dataset(
    folder: str,
    experiment: ExperimentConfig,
    described: ModelDescription,
    split: str | None,
    verify: bool = True,
) -> PreparedDataset:
    """Opens a prepared data set, and checks that it fits a model."""
    dataset = PreparedDataset.open(folder, verify=verify)
    check_dataset(dataset.manifest, folder, experiment, described, split)
    return dataset
