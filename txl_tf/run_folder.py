"""Folders of runs, checkpoints and converted models, and `load_model`, which reads their model.

`txl train` makes a run: `run.json` and checkpoints. `txl convert` makes a converted model:
`config.json` and one checkpoint. A copied checkpoint is a model too, because its manifest has the
settings. TensorFlow is imported only when weights are read.
"""

import os
import re
from typing import TYPE_CHECKING, Literal

from txl_tf.adapter_base import with_base
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.converted_folder import (
    CHECKPOINTS,
    CONFIG_FILE,
    CONVERTED_STEP,
    converted_config,
    converted_identity,
    converted_model,
    model_of_converted,
)
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    StorageError,
    UsageError,
)
from txl_tf.run_description import FORMAT_VERSION, RunDescription
from txl_tf.storage.files import first_line, path_exists
from txl_tf.storage.untrusted_files import read_json_object

if TYPE_CHECKING:
    import numpy as np

    from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel
    from txl_tf.models.transformer_xl import TransformerXL
    from txl_tf.training.checkpoint_store import CheckpointStore

RUN_FILE = "run.json"
FolderKind = Literal["run", "converted", "checkpoint"]
StepChoice = int | Literal["best", "newest"] | None
"""Checkpoint of a run; `None` selects the best on the split `valid`, or else the newest."""

_CHECKPOINT_FILES = ("manifest.json", "state.index")
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})")
_WEIGHT_PREFIX = "model/"
_ADAPTER_PREFIX = "adapter/"
_HEAD_PREFIX = "task/"
_AVERAGE_PREFIX = "average/"
_RESTORE = "Restore it from a copy."
_ABSENT = (FileNotFoundError, NotADirectoryError)


def load_model(
    folder: str | os.PathLike[str], step: StepChoice = None
) -> "TransformerXL | LSTMLanguageModel | QRNNLanguageModel":
    """Loads the model of a run, a checkpoint, a converted folder or a file that Keras saved.

    Every file of a folder is compared with its checksum before a weight is used. If the run
    averages its weights, the averages are loaded.

    Args:
        folder: path of the folder, also a remote one (`gs://`), or of a `.keras` file.
        step: optional int, `"best"` or `"newest"`. The checkpoint of a run: of this
            step, the best on the split `valid`, or the newest. Defaults to `None`: the
            best if one is known, or else the newest. A converted model and a checkpoint
            have one step only.

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
    if is_keras_file(folder):
        import keras

        require_no_step(step, "A file that Keras saved has no steps.")
        return keras.saving.load_model(folder)
    folder, step = locate(os.fspath(folder), step)
    found = kind(folder)
    if found == "converted":
        require_no_step(step)
        return converted_model(folder)
    if found is None:
        raise InputMissingError(
            "There is neither a run nor a converted model in this folder.",
            where=folder,
            remedy="Name a run, one of its checkpoints, or a converted model: `txl train` and "
            "`txl convert --from` make them.",
        )
    _, weights = read_weights(folder, step)
    described = describe(folder)
    config = described if isinstance(described, ModelConfig) else described.experiment.model
    return build_model(config, weights)


def is_keras_file(path: str | os.PathLike[str]) -> bool:
    """True if the path is an existing `.keras` file."""
    return os.fspath(path).endswith(".keras") and os.path.isfile(path)


def kind(folder: str) -> FolderKind | None:
    """Returns the kind of a folder; `None` if it has no model that `load_model` reads."""
    if path_exists(os.path.join(folder, RUN_FILE)):
        return "run"
    if path_exists(os.path.join(folder, CONFIG_FILE)):
        return "converted"
    is_checkpoint = all(path_exists(os.path.join(folder, name)) for name in _CHECKPOINT_FILES)
    return "checkpoint" if is_checkpoint else None


def locate(folder: str, step: StepChoice = None) -> tuple[str, StepChoice]:
    """Returns folder and step of a model; a checkpoint in a run becomes a step of the run.

    Other folders are returned unchanged. Raises UsageError if a step of a checkpoint is given.
    """
    if kind(folder) != "checkpoint":
        return folder, step
    require_no_step(step, "A checkpoint is of one step.")
    checkpoints, name = os.path.split(folder.rstrip("/"))
    named = _CHECKPOINT_NAME.fullmatch(name)
    owner = os.path.dirname(checkpoints) or "."
    found = kind(owner) if os.path.basename(checkpoints) == CHECKPOINTS else None
    if named is None or found is None:
        return folder, None
    return owner, int(named[1]) if found == "run" else None


def describe(folder: str) -> "RunDescription | ModelConfig":
    """Reads the settings of the model of a run, a converted folder or a checkpoint.

    A `ModelConfig` belongs to a converted model, whose training is unknown.
    """
    found = kind(folder)
    if found == "run":
        return describe_run(folder)
    return describe_checkpoint(folder) if found == "checkpoint" else converted_config(folder)


def describe_checkpoint(folder: str) -> RunDescription | ModelConfig:
    """Reads the settings from the manifest of a checkpoint, which `read_weights` verifies.

    Raises DataDamagedError if the manifest is invalid.
    """
    path = os.path.join(folder, _CHECKPOINT_FILES[0])
    try:
        found = read_json_object(path).get("identity")
        if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
            raise ValueError("it does not tell the model")
        if "training" not in found:
            return ModelConfig.from_dict(found["model"])
        names = ("model", "training", "optimizer", "evaluation", "task")
        experiment = {name: found[name] for name in names if name in found}
        known = {name: found[name] for name in ("data", "start") if name in found}
        return RunDescription.from_values({**known, "experiment": experiment})
    except (ValueError, OSError) as error:
        raise DataDamagedError(
            f"The manifest of the checkpoint cannot be read: {first_line(error)}",
            where=path,
            remedy=_RESTORE,
        ) from error


def describe_run(folder: str) -> RunDescription:
    """Reads the description of a run.

    Raises InputMissingError if there is no run, DataDamagedError if the description is invalid,
    MismatchError if its version is unknown, and StorageError if it cannot be read.
    """
    path = os.path.join(folder, RUN_FILE)
    try:
        values = read_json_object(path)
        version = values.get("format_version")
        if version == FORMAT_VERSION:
            return RunDescription.from_values(values)
    except _ABSENT as error:
        what, remedy = "There is no run in this folder.", "`txl train --workdir` begins one."
        raise InputMissingError(what, where=folder, remedy=remedy) from error
    except OSError as error:
        raise run_folder_error(folder, "read", error) from error
    except ValueError as error:
        raise DataDamagedError(
            f"The description of the run cannot be read: {first_line(error)}",
            where=path,
            remedy=_RESTORE,
        ) from error
    raise MismatchError(
        f"The run is of format {ascii(version)[:40]}; this version reads {FORMAT_VERSION}.",
        where=path,
        remedy="Use the version of txl-tf that began it, or a newer one.",
    )


def run_folder_error(folder: str, done: str, error: OSError) -> StorageError:
    """Creates the error for a folder that cannot be `done`, such as `"read"`."""
    return StorageError(
        f"The folder of the run cannot be {done}: {first_line(error)}",
        where=folder,
        remedy="Check the storage and the permissions, or choose another --workdir.",
    )


def checkpoint_store(folder: str) -> "CheckpointStore":
    """Returns the checkpoints of a run or of a converted model, for reading."""
    if kind(folder) == "converted":
        return _checkpoints_bound_to(converted_identity(converted_config(folder)), folder)
    return _checkpoints_bound_to(describe_run(folder).identity(), folder)


def chosen_step(folder: str, step: StepChoice) -> tuple[int, bool]:
    """Returns the step of the chosen checkpoint of a run, and True if it is the best."""
    store = checkpoint_store(folder)
    found = _require_step(store, step, os.path.join(folder, CHECKPOINTS))
    return found, found == store.best_step()


def _checkpoints_bound_to(identity: dict, folder: str) -> "CheckpointStore":
    from txl_tf.training.checkpoint_store import CheckpointStore

    return CheckpointStore(os.path.join(folder, CHECKPOINTS), identity)


def read_weights(
    folder: str, step: StepChoice = None, *, with_head: bool = False
) -> "tuple[int, dict[str, np.ndarray]]":
    """Reads the weights of a run, a checkpoint or a converted folder as `load_model` does.

    Returns the step and the weights by variable path; with `with_head`, they include the head of a
    task.
    """
    folder, step = locate(folder, step)
    found = kind(folder)
    if found == "converted":
        require_no_step(step)
        model = converted_model(folder)
        return CONVERTED_STEP, {variable.path: variable.numpy() for variable in model.weights}
    if found == "checkpoint":
        return _checkpoint_weights(folder, with_head)
    described = describe_run(folder)
    store = _checkpoints_bound_to(described.identity(), folder)
    chosen = _require_step(store, step, os.path.join(folder, CHECKPOINTS))
    weights = _inference_weights(store.load(chosen), with_head)
    if described.experiment.training.adapter_rank is None:
        return chosen, weights
    return chosen, with_base(folder, described, weights)


def _checkpoint_weights(folder: str, with_head: bool) -> "tuple[int, dict[str, np.ndarray]]":
    from txl_tf.training.checkpoint_format import ARRAYS_PREFIX, read_arrays, verified_manifest

    manifest = verified_manifest(folder)
    arrays = read_arrays(os.path.join(folder, ARRAYS_PREFIX), manifest["arrays"])
    described = describe_checkpoint(folder)
    if isinstance(described, ModelConfig):
        weights = model_of_converted(described, arrays).weights
        return manifest["step"], {variable.path: variable.numpy() for variable in weights}
    if described.experiment.training.adapter_rank is not None:
        raise InputMissingError(
            "The checkpoint holds adapters; the weights they belong to are with its run.",
            where=folder,
            remedy="Name the folder of the run.",
        )
    return manifest["step"], _inference_weights(arrays, with_head)


def _inference_weights(arrays: "dict[str, np.ndarray]", with_head: bool) -> "dict[str, np.ndarray]":
    # By the paths of the weights, because the averages also contain a count of steps.
    prefixes = (_WEIGHT_PREFIX, _ADAPTER_PREFIX, *([_HEAD_PREFIX] if with_head else []))
    paths = {name.partition("/")[2]: name for name in arrays if name.startswith(prefixes)}
    return {path: arrays.get(_AVERAGE_PREFIX + path, arrays[paths[path]]) for path in paths}


def require_no_step(step: int | str | None, what: str = "A converted model has no steps.") -> None:
    """Raises UsageError if a step is given for a model that has no choice of steps."""
    if step is not None:
        raise UsageError(what, where=f"--step {step}", remedy="Leave it out.")


def _require_step(store: "CheckpointStore", step: StepChoice, where: str) -> int:
    steps = store.steps()
    if step == "best" and store.best_step() is None:
        raise InputMissingError(
            "No checkpoint is known to be the best.",
            where=where,
            remedy="`txl train` finds it where the data has a split `valid`.",
        )
    if not steps:
        raise InputMissingError(
            "There is no checkpoint yet.", where=where, remedy="`txl train` makes them."
        )
    if step in ("best", None):
        step = store.best_step()
    if step in ("newest", None):
        return steps[-1]
    if step not in steps:
        raise UsageError(
            f"There is no checkpoint of step {step}.",
            where=f"--step {step}",
            remedy=f"There are: {', '.join(map(str, steps))}.",
        )
    return step


def build_model(
    config: ModelConfig | LSTMConfig | QRNNConfig, weights: "dict[str, np.ndarray]"
) -> "TransformerXL | LSTMLanguageModel | QRNNLanguageModel":
    """Builds a model in float32 with weights by variable path.

    Raises MismatchError if they belong to another model.
    """
    from txl_tf.models import create_model
    from txl_tf.models.language_model import assign_weights

    model = create_model(config, dtype="float32")
    assign_weights({variable.path: variable for variable in model.weights}, weights)
    return model
