"""Folder of a run or of a converted model, and `load_model`, which reads its model.

A run is what `txl train` makes: `run.json` and checkpoints. A converted model is
what `txl convert` makes: `config.json` and one checkpoint. Nothing of TensorFlow
is imported before weights are read.
"""

import dataclasses
import json
import os
import re
from typing import TYPE_CHECKING, Any, Literal, Self

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    StorageError,
    UsageError,
)
from txl_tf.storage.files import first_line, path_exists
from txl_tf.storage.untrusted_files import read_json_object

if TYPE_CHECKING:
    import numpy as np

    from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel
    from txl_tf.models.transformer_xl import TransformerXL
    from txl_tf.training.checkpoint_store import CheckpointStore

RUN_FILE = "run.json"
CONFIG_FILE = "config.json"
CHECKPOINTS = "checkpoints"
CONVERTED_STEP = 0
"""Step of the one checkpoint of a converted model."""

_WEIGHT_PREFIX = "model/"
_AVERAGE_PREFIX = "average/"
_CONVERT_AGAIN = "Convert it anew."
_ABSENT = (FileNotFoundError, NotADirectoryError)
FORMAT_VERSION = 1
_DATA_FIELDS = {
    "fingerprint": str,
    "corpus": str,
    "tokenizer": str,
    "tokenizer_sha256": str,
    "vocabulary_size": int,
}
# What may change from one start of a run to the next: it does not change a sound step, or only
# in which order it adds up, as another number of replicas does too.
_FREE_FIELDS = (
    "steps_per_loop",
    "checkpoint_every_steps",
    "evaluate_every_steps",
    "num_kept_checkpoints",
    "tensor_float_32",
    "gradient_accumulation_steps",
    "rematerialize",
    "jit_compile",
    "on_non_finite",
)
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription:
    """A run as its folder describes it.

    Attributes:
        experiment: `ExperimentConfig`.
        data: dict of JSON values that decide the tokens: fingerprint, corpus,
            tokenizer, its SHA-256 and the size of the vocabulary.
        run_id: optional str. Tells the run from all others, also of the same
            settings; `None` where a version of before wrote the description.
        first_checkpoint_step: optional int. Steps done at the first checkpoint
            that came onto the disk; `None` before there was one.
        longest_checkpoint_period: int. The largest `checkpoint_every_steps`
            that the run was ever started with.
    """

    experiment: ExperimentConfig
    data: dict[str, Any]
    run_id: str | None = None
    first_checkpoint_step: int | None = None
    longest_checkpoint_period: int = 0

    def __post_init__(self) -> None:
        period = self.experiment.training.checkpoint_every_steps
        period = max(self.longest_checkpoint_period, period)
        object.__setattr__(self, "longest_checkpoint_period", period)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> bytes:
        """Contents of the file."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        experiment = self.experiment.to_dict()
        values = {"format_version": FORMAT_VERSION, **fields, "experiment": experiment}
        return (json.dumps(values, indent=1) + "\n").encode()

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Takes up what `to_json` wrote.

        Earlier versions did not write the last three values; they may be missing.

        Raises:
            ValueError: If a value is missing or wrong.
        """
        for name in ("experiment", "data"):
            if not isinstance(values.get(name), dict):
                received = ascii(values.get(name))[:100]
                raise ValueError(f"`{name}` must be an object. Received: {received}")
        checks = {
            "run_id": lambda value: (
                value is None or (isinstance(value, str) and _RUN_ID.fullmatch(value))
            ),
            "first_checkpoint_step": lambda value: value is None or _is_count(value),
            "longest_checkpoint_period": lambda value: _is_count(value) and value > 0,
        }
        known = {name: values[name] for name in checks if name in values}
        for name, value in known.items():
            if not checks[name](value):
                raise _not_written(name, value)
        experiment = ExperimentConfig.from_dict(values["experiment"])
        _check_data(values["data"], experiment.model.vocabulary_size)
        return cls(experiment=experiment, data=values["data"], **known)


def _check_data(data: dict[str, Any], vocabulary_size: int) -> None:
    for name, kind in _DATA_FIELDS.items():
        if type(data.get(name)) is not kind or not data[name]:
            raise _not_written(f"data.{name}", data.get(name))
    if data["vocabulary_size"] != vocabulary_size:
        raise ValueError(
            f"`data.vocabulary_size` must be that of the model, {vocabulary_size}. "
            f"Received: {data['vocabulary_size']}"
        )


def _not_written(name: str, value: Any) -> ValueError:
    received = ascii(value)[:100]
    return ValueError(f"`{name}` is not what this program writes. Received: {received}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def identity(experiment: ExperimentConfig, data: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that decide every step; checkpoints are bound to them.

    Args:
        experiment: `ExperimentConfig`.
        data: dict. Identity of the data, see `RunDescription`.
    """
    values = experiment.to_dict()
    training = values["training"]
    training = {name: training[name] for name in training if name not in _FREE_FIELDS}
    deciding = {name: values[name] for name in ("model", "optimizer")}
    deciding |= {"training": training, "data": data}
    if experiment.optimizer.schedule == "plateau":
        # Evaluations decide the learning rate.
        training["evaluate_every_steps"] = experiment.training.evaluate_every_steps
        deciding["evaluation"] = values["evaluation"]
    return deciding


def load_model(
    folder: str | os.PathLike[str], step: int | Literal["best"] | None = None
) -> "TransformerXL | LSTMLanguageModel | QRNNLanguageModel":
    """Loads the model of a run or of a converted folder, after verifying it.

    Every file is compared with its checksum before a weight is used. Where the
    run averages its weights, the averages are loaded.

    Args:
        folder: path of the folder, also a remote one (`gs://`).
        step: optional int or `"best"`. The checkpoint of a run: of this step, or
            the best on the split `valid`; the newest by default. A converted
            model has one checkpoint only.

    Returns:
        The model in float32: `TransformerXL`, `LSTMLanguageModel` or
        `QRNNLanguageModel`.

    Raises:
        InputMissingError: If there is neither a run nor a converted model, or
            no such checkpoint yet.
        UsageError: If there is no checkpoint of this step.
        DataDamagedError: If a file is missing or not what was written.
        MismatchError: If configuration and weights are not of one model.
        StorageError: If a file cannot be read.

    Example:
    ```python
    model = txl_tf.load_model("runs/enwik8")
    log_probs, memory = model.log_probs(token_ids, model.initial_memory(1))
    ```
    """
    folder = os.fspath(folder)
    found = kind(folder)
    if found == "converted":
        require_no_step(step)
        return _converted_model(folder)
    if found is None:
        raise InputMissingError(
            "There is neither a run nor a converted model in this folder.",
            where=folder,
            remedy="`txl train` makes a run, `txl convert --from` a converted model.",
        )
    _, weights = _run_weights(folder, step)
    return build_model(describe_run(folder).experiment.model, weights)


def kind(folder: str) -> Literal["run", "converted"] | None:
    """Returns what a folder is of; `None` for neither a run nor a converted model."""
    if path_exists(os.path.join(folder, RUN_FILE)):
        return "run"
    return "converted" if path_exists(os.path.join(folder, CONFIG_FILE)) else None


def describe_run(folder: str) -> RunDescription:
    """Reads the description of a run.

    Raises:
        InputMissingError: If no run was begun here.
        DataDamagedError: If its description cannot be understood.
        MismatchError: If it is of a version that is not known.
        StorageError: If it cannot be read.
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
            remedy="Restore it from a copy.",
        ) from error
    raise MismatchError(
        f"The run is of format {ascii(version)[:40]}; this version reads {FORMAT_VERSION}.",
        where=path,
        remedy="Use the version of txl-tf that began it, or a newer one.",
    )


def run_folder_error(folder: str, done: str, error: OSError) -> StorageError:
    """The error of a folder that cannot be `done`, such as `"read"`."""
    return StorageError(
        f"The folder of the run cannot be {done}: {first_line(error)}",
        where=folder,
        remedy="Check the storage and the permissions, or choose another --workdir.",
    )


def converted_config(folder: str) -> ModelConfig:
    """Reads the configuration of a converted model.

    Raises:
        InputMissingError: If there is no converted model.
        DataDamagedError: If it cannot be read.
    """
    path = os.path.join(folder, CONFIG_FILE)
    try:
        return ModelConfig.from_dict(read_json_object(path, remedy=_CONVERT_AGAIN))
    except _ABSENT as error:
        what = "There is no converted model in this folder."
        raise InputMissingError(
            what, where=folder, remedy="`txl convert --from` makes one."
        ) from error
    except (ValueError, OSError) as error:
        raise DataDamagedError(
            f"The configuration of the model cannot be read: {first_line(error)}",
            where=path,
            remedy=_CONVERT_AGAIN,
        ) from error


def checkpoint_store(folder: str) -> "CheckpointStore":
    """Returns the checkpoints of a run or of a converted model, for reading.

    Raises:
        JobError: As `describe_run` and `converted_config` do.
    """
    from txl_tf.training.checkpoint_store import CheckpointStore

    if kind(folder) == "converted":
        bound_to = converted_identity(converted_config(folder))
    else:
        run = describe_run(folder)
        bound_to = identity(run.experiment, run.data)
    return CheckpointStore(os.path.join(folder, CHECKPOINTS), bound_to)


def converted_identity(config: ModelConfig) -> dict:
    """The identity of the checkpoint of a converted model, see `CheckpointStore`."""
    return {"model": config.to_dict()}


def read_weights(
    folder: str, step: int | Literal["best"] | None = None
) -> "tuple[int, dict[str, np.ndarray]]":
    """Reads the weights of a checkpoint as `load_model` does.

    Returns:
        Tuple of the step and a dict of variable path to array.
    """
    if kind(folder) != "converted":
        return _run_weights(folder, step)
    require_no_step(step)
    model = _converted_model(folder)
    return CONVERTED_STEP, {variable.path: variable.numpy() for variable in model.weights}


def _run_weights(
    folder: str, step: int | Literal["best"] | None
) -> "tuple[int, dict[str, np.ndarray]]":
    store = checkpoint_store(folder)
    found = _require_step(store, step, os.path.join(folder, CHECKPOINTS))
    arrays = store.load(found)
    # By the paths of the weights: among the averages is also how many steps they are of.
    prefix = _WEIGHT_PREFIX
    paths = {name.removeprefix(prefix): name for name in arrays if name.startswith(prefix)}
    return found, {path: arrays.get(_AVERAGE_PREFIX + path, arrays[paths[path]]) for path in paths}


def require_no_step(step: int | str | None) -> None:
    """Raises UsageError where a step of a converted model is asked for."""
    if step is not None:
        raise UsageError(
            "A converted model has no steps.", where=f"--step {step}", remedy="Leave it out."
        )


def _require_step(store: "CheckpointStore", step: int | Literal["best"] | None, where: str) -> int:
    steps = store.steps()
    if step == "best":
        step = store.best_step()
        if step is None:
            raise InputMissingError(
                "No checkpoint is known to be the best.",
                where=where,
                remedy="`txl train` finds it where the data has a split `valid`.",
            )
    if not steps:
        raise InputMissingError(
            "There is no checkpoint yet.", where=where, remedy="`txl train` makes them."
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


def build_model(
    config: ModelConfig | LSTMConfig | QRNNConfig, weights: "dict[str, np.ndarray]"
) -> "TransformerXL | LSTMLanguageModel | QRNNLanguageModel":
    """Builds a model in float32 with weights by variable path.

    Raises:
        MismatchError: If they are not those of such a model.
    """
    from txl_tf.models.language_model import assign_weights, create_model

    model = create_model(config, dtype="float32")
    assign_weights({variable.path: variable for variable in model.weights}, weights)
    return model


def _converted_model(folder: str) -> "TransformerXL":
    from txl_tf.convert.model_building import named_variables
    from txl_tf.models.language_model import assign_weights
    from txl_tf.models.transformer_xl import TransformerXL

    config = converted_config(folder)
    # By the names that a conversion gives: those of shared biases are not their paths.
    arrays = checkpoint_store(folder).load(CONVERTED_STEP)
    model = TransformerXL(config, dtype="float32")
    variables = named_variables(model).items()
    assign_weights({_WEIGHT_PREFIX + name: variable for name, variable in variables}, arrays)
    return model
