"""Folders with a model: how they are identified, opened, read and written, and `load_model`."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from txl_tf.config.differences import describe_differences
from txl_tf.config.model import AnyModelConfig, ModelConfig
from txl_tf.data.prepared_dataset import Manifest, dataset_tokenizer, read_tokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    UsageError,
    storage_errors,
)
from txl_tf.imports import tensorflow as tf
from txl_tf.model_folder.descriptions import (
    CHECKPOINTS,
    CONFIG_FILE,
    RUN_FILE,
    VOCABULARY,
    ModelDescription,
    RunDescription,
    read_settings_file,
)
from txl_tf.storage.files import list_folder, path_exists
from txl_tf.storage.listed_files import verify_checksums
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.checkpoints.checkpoint_files import (
    DATA_FILE,
    MANIFEST_FILE,
    read_checkpoint,
    require_finite,
    write_checkpoint,
)
from txl_tf.training.checkpoints.checkpoint_store import step_of_folder

if TYPE_CHECKING:
    import keras

    from txl_tf.models.language_model import LanguageModel

StepChoice = int | Literal["best", "newest"] | None
"""Checkpoint of a run. `None` means the best on the split `valid`, or the newest without a best."""
FolderKind = Literal["run", "checkpoint", "model", "export", "data set"]
BASE = "base"
"""Folder in a run with adapters. It has the frozen weights, which the checkpoints omit."""
GRAPH_FILE = "saved_model.pb"
EXTRA = "assets.extra"
"""Folder of an export for files that a server does not read."""

# TensorFlow writes `.S` for a slash in the name of a variable.
_EXPORTED_WEIGHT = re.compile(r"weights/_numbers/(.+)/\.ATTRIBUTES/VARIABLE_VALUE")
_EXPORTED_SCALE = "weights/_scales/{}/.ATTRIBUTES/VARIABLE_VALUE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """Folder of a model with its settings, as `open_model` returns it.

    `folder` is the folder of the run if the user named a checkpoint inside a run, the version of an
    export, and otherwise the folder that the user named. `kind` is the kind of the named folder.
    `step` is the selected checkpoint of a run. `step` and `run` are `None` without a run.
    """

    kind: FolderKind
    folder: str
    step: StepChoice
    description: ModelDescription
    run: RunDescription | None = None

    def chosen_step(self) -> tuple[int, bool]:
        """Returns the step of the selected checkpoint of a run, and True if it is the best."""
        assert self.run is not None
        store = self.run.checkpoints(self.folder)
        steps, best = store.steps(), store.best_step()
        if not steps:
            raise InputMissingError(
                "The run has no checkpoint yet.",
                where=self.folder,
                remedy="Wait until `txl train` saves one.",
            )
        if self.step == "best" and best is None:
            raise InputMissingError(
                "The run has no best checkpoint: no evaluation has chosen one yet.",
                where=self.folder,
                remedy="Wait for an evaluation, or choose another --step.",
            )
        newest = steps[-1]
        default = newest if best is None else best
        by_name: dict[StepChoice, int | None] = {"newest": newest, "best": best, None: default}
        step = by_name.get(self.step, self.step)
        if step not in steps:
            raise UsageError(
                f"There is no checkpoint of step {step}.",
                where=f"--step {step}",
                remedy=f"Choose one of: {', '.join(map(str, steps))}.",
            )
        return int(step), step == best

    def read_weights(self, *, with_head: bool = False) -> tuple[int, dict[str, np.ndarray]]:
        """Reads the weights by path, compares their checksums, and returns them with their step.

        The step is 0 if it is unknown. If the run averages its weights, the averages are returned.
        Adapters are merged into the weights, and weights stored in fewer bits become float32.
        `with_head` includes the head of a task.
        """
        if self.kind == "export":
            return self.description.step, _exported_weights(self.folder)
        if self.run is None:
            step, arrays = _read_checkpoint(self.folder, self.description.model)
        else:
            step, _ = self.chosen_step()
            arrays = self.run.checkpoints(self.folder).load(step)
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
        """Builds the model in float32 with its weights; raises the errors of `load_model`."""
        return build_model(self.description.model, self.read_weights()[1])

    def tokenizer(self) -> Tokenizer | None:
        """Reads the tokenizer with `read_tokenizer`; `None` if there is no vocabulary."""
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
        folder: str or path. Folder of a run, a checkpoint, a converted model or an export, which
            may be remote (`gs://`); or a `.keras` file.
        step: optional int, `"best"` or `"newest"`. Selects a checkpoint of a run: the one of this
            step, the best on the split `valid`, or the newest. Defaults to `None`: the best if
            one is known, otherwise the newest. Other models have only one set of weights.

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
    """Identifies the kind of a folder, and reads the settings of its model.

    TensorFlow is not imported. A checkpoint inside a run opens the run at the step of the
    checkpoint. Raises InputMissingError if there is no model, UsageError for a `step` if the folder
    is not a run, and DataDamagedError for invalid settings.
    """
    kind, place = identify_folder(folder)
    if step is not None and kind != "run":
        raise UsageError(
            "The folder holds one set of weights, so no step can be chosen.",
            where=f"--step {step}",
            remedy="Leave the step out.",
        )
    inside = _run_of_checkpoint(place) if kind == "checkpoint" else None
    run: RunDescription | None = None
    description: ModelDescription | None = None
    if kind == "run" or inside is not None:
        place, step = inside or (place, step)
        run = RunDescription.read(place)
        description = ModelDescription.of_run(run)
    elif kind in ("model", "export"):
        path = os.path.join(place, EXTRA if kind == "export" else "", CONFIG_FILE)
        description = read_settings_file(path, ModelDescription)
    if kind is None or description is None:
        has_weights = kind in ("checkpoint", "export")
        raise InputMissingError(
            "The folder has weights, but their config.json is missing."
            if has_weights
            else "There is no model in this folder.",
            where=place,
            remedy="Name the folder of a run, a checkpoint with the config.json of its run, "
            "a converted model or an export.",
        )
    return ModelFolder(kind=kind, folder=place, step=step, description=description, run=run)


def identify_folder(folder: str | os.PathLike[str]) -> tuple[FolderKind | None, str]:
    """Returns the kind of a folder, or `None`, and the path of its files.

    The path is the folder itself; for an export with versions it is the newest version.
    """
    place = checked_path(folder)
    with storage_errors("The folder cannot be read", place):
        if _has(place, RUN_FILE) or _has(place, CHECKPOINTS):
            return "run", place
        if _run_of_checkpoint(place) is not None:
            return "checkpoint", place
        if _has(place, CONFIG_FILE):
            return "model", place
        if _has(place, MANIFEST_FILE):
            return "checkpoint" if _has(place, DATA_FILE) else "data set", place
        numbers: list[str] = []
        with contextlib.suppress(NotADirectoryError):
            numbers = [name for name in list_folder(place) if name.isdecimal()]
        newest_first = sorted(numbers, key=int, reverse=True)
        for path in (place, *(os.path.join(place, number) for number in newest_first)):
            if _has(path, GRAPH_FILE):  # written last
                return "export", path
    return None, place


def _run_of_checkpoint(folder: str) -> tuple[str, int] | None:
    """Returns the run that contains a checkpoint, and the step; `None` for other folders."""
    parent, name = os.path.split(folder.rstrip("/"))
    step, run = step_of_folder(name), os.path.dirname(parent) or "."
    if step is None or os.path.basename(parent) != CHECKPOINTS or not _has(run, RUN_FILE):
        return None
    return run, step


def _has(folder: str, name: str) -> bool:
    return path_exists(os.path.join(folder, name))


def checked_path(folder: str | os.PathLike[str]) -> str:
    """Returns the path as text; UsageError if it is remote but has lost a slash."""
    path = os.fspath(folder)
    if re.match(r"[a-z][a-z0-9+.-]+:/(?!/)", path):
        raise UsageError(
            "The remote path lost a slash: `pathlib.Path` keeps one of the two in `://`.",
            where=path,
            remedy="Give the path as a string, such as gs://BUCKET/FOLDER.",
        )
    return path


def _read_checkpoint(folder: str, model: AnyModelConfig) -> tuple[int, dict[str, np.ndarray]]:
    manifest, arrays = read_checkpoint(folder)
    checkpoint_model, folder_model = manifest["identity"].get("model"), model.to_dict()
    differences = describe_differences({"model": checkpoint_model}, {"model": folder_model})
    if differences:
        raise MismatchError(
            f"The weights are not of the model in config.json; {differences}",
            where=folder,
            remedy="Put the config.json of these weights into the folder.",
        )
    return manifest["step"], arrays


def _inference_weights(arrays: Mapping[str, np.ndarray], with_head: bool) -> dict[str, np.ndarray]:
    # Selected by the paths of the weights, because the averages also contain a count of steps.
    prefixes = ("model/", "adapter/", *(["task/"] if with_head else []))
    paths = {name.partition("/")[2]: name for name in arrays if name.startswith(prefixes)}
    return {path: arrays.get(f"average/{path}", arrays[paths[path]]) for path in paths}


def _exported_weights(version: str) -> dict[str, np.ndarray]:
    verify_checksums(version)
    reader = tf.train.load_checkpoint(os.path.join(version, "variables", "variables"))
    shapes = reader.get_variable_to_shape_map()
    weights = {}
    for match in filter(None, map(_EXPORTED_WEIGHT.fullmatch, shapes)):
        # TensorFlow converts, because NumPy itself has no bfloat16.
        array = tf.cast(reader.get_tensor(match[0]), tf.float32).numpy()
        scale = _EXPORTED_SCALE.format(match[1])
        path = match[1].replace(".S", "/")
        weights[path] = array * reader.get_tensor(scale) if scale in shapes else array
    return weights


def build_model(config: AnyModelConfig, weights: Mapping[str, np.ndarray]) -> "LanguageModel":
    """Builds a model in float32 and assigns weights by path; MismatchError if they do not fit."""
    from txl_tf.models import create_model
    from txl_tf.models.language_model import assign_weights

    model = create_model(config, dtype="float32")
    assign_weights({variable.path: variable for variable in model.weights}, weights)
    return model


def write_model_folder(
    model: "keras.Model", folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None
) -> None:
    """Writes a model with its tokenizer as a folder, completely or not at all.

    Raises OutputExistsError if the folder exists, and ValueError if the model is not a
    `TransformerXL` or the tokenizer has another vocabulary size.
    """
    if not isinstance(model.config, ModelConfig):
        raise ValueError(
            "Only a `TransformerXL` can be saved as a model folder. "
            f"Received: {type(model).__name__}"
        )
    # Imported here because it loads Keras.
    from txl_tf.models.plain_weights import plain_weights

    description = ModelDescription.of_model(model, tokenizer)
    weights = plain_weights(model, "A model folder")
    with StagingFolder(checked_path(folder), last_file=CONFIG_FILE) as staging:
        _write_model(WritableFolder.at(staging.path), description, weights, tokenizer)
        staging.publish()


def write_base(run: WritableFolder, model: ModelConfig, weights: Mapping[str, np.ndarray]) -> None:
    """Writes the frozen weights of a run with adapters, and removes what an earlier start left."""
    with storage_errors("The folder of the run cannot be written", run.path):
        run.remove_folder(BASE)
        _write_model(run.subfolder(BASE), ModelDescription(model=model), weights)
        run.flush_tree(BASE)


def _write_model(
    folder: WritableFolder,
    description: ModelDescription,
    weights: Mapping[str, np.ndarray],
    tokenizer: Tokenizer | None = None,
) -> None:
    arrays = {f"model/{path}": array for path, array in weights.items()}
    require_finite(0, arrays)
    folder.make()
    manifest = write_checkpoint(folder.path, 0, arrays, {"model": description.model.to_dict()})
    folder.write(MANIFEST_FILE, manifest)
    for name, content in description.files(tokenizer).items():
        folder.write(name, content)


def read_base(folder: str) -> dict[str, np.ndarray]:
    """Reads the frozen weights of a run with adapters; DataDamagedError if they are missing."""
    place = os.path.join(folder, BASE)
    try:
        return open_model(place).read_weights()[1]
    except InputMissingError as error:
        raise DataDamagedError(
            "The base weights of the adapters are missing.",
            where=place,
            remedy="Restore base/ from a copy.",
        ) from error


def tokenizer_from(source: Tokenizer | str | os.PathLike[str]) -> Tokenizer:
    """Returns a tokenizer unchanged, or reads it from the folder of a data set or a model."""
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
