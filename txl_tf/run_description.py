"""Description of a run, `run.json`: its settings, its data and its history."""

import dataclasses
import itertools
import json
import re
from typing import Any, Self

from txl_tf.config.experiment import ExperimentConfig

FORMAT_VERSION = 1
_DATA_FIELDS = {
    "fingerprint": str,
    "corpus": str,
    "tokenizer": str,
    "tokenizer_sha256": str,
    "vocabulary_size": int,
}
_START_FIELDS: dict[str, tuple[type, ...]] = {
    "source": (str,),
    "kind": (str,),
    "step": (int, type(None)),
    "vocabulary": (str,),
    "sha256": (str,),
}
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
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDescription:
    """Description of a run, as stored in its folder.

    Attributes:
        experiment: All settings.
        data: JSON values that decide the tokens, see `_DATA_FIELDS`.
        run_id: Distinguishes runs of equal settings; `None` before the first write.
        first_checkpoint_step: Steps done at the first checkpoint on disk; `None` before it.
        longest_checkpoint_period: Largest `checkpoint_every_steps` of all starts.
        extended_at: Numbers of steps, in order, at which the finished run was extended.
        start: Origin of the initial weights, see `_START_FIELDS`; `None` for random weights.
        data_folder: Folder that the data was last read from.
    """

    experiment: ExperimentConfig
    data: dict[str, Any]
    run_id: str | None = None
    first_checkpoint_step: int | None = None
    longest_checkpoint_period: int = 0
    extended_at: tuple[int, ...] = ()
    start: dict[str, Any] | None = None
    data_folder: str | None = None

    def __post_init__(self) -> None:
        period = self.experiment.training.checkpoint_every_steps
        period = max(self.longest_checkpoint_period, period)
        object.__setattr__(self, "longest_checkpoint_period", period)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values."""
        return dataclasses.replace(self, **changes)

    def identity(self) -> dict[str, Any]:
        """Returns the settings that every checkpoint of the run is bound to, see `identity`.

        The number of steps is the original one, before any extension.
        """
        values = identity(self.experiment, self.data, self.start)
        values["training"]["num_steps"] = (*self.extended_at, values["training"]["num_steps"])[0]
        return values

    def to_json(self) -> bytes:
        """Returns the contents of the file."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["experiment"] = self.experiment.to_dict()
        values = {"format_version": FORMAT_VERSION, **fields}
        return (json.dumps(values, indent=1) + "\n").encode()

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Parses the output of `to_json`, or the settings in the manifest of a checkpoint.

        Raises ValueError if a value is missing or wrong.
        """
        for name in ("experiment", "data"):
            if not isinstance(values.get(name), dict):
                received = ascii(values.get(name))[:100]
                raise ValueError(f"`{name}` must be an object. Received: {received}")
        checks = {
            "run_id": lambda value: isinstance(value, str) and _RUN_ID.fullmatch(value),
            "first_checkpoint_step": lambda value: value is None or _is_count(value),
            "longest_checkpoint_period": lambda value: _is_count(value) and value > 0,
            "extended_at": lambda value: isinstance(value, list) and all(map(_is_count, value)),
            "start": lambda value: value is None or _is_start(value),
            "data_folder": lambda value: value is None or isinstance(value, str),
        }
        known = {name: values[name] for name in checks if name in values}
        for name, value in known.items():
            if not checks[name](value):
                raise _not_written(name, value)
        experiment = ExperimentConfig.from_dict(values["experiment"])
        extended_at = tuple(known.pop("extended_at", ()))
        lengths = (*extended_at, experiment.training.num_steps)
        if not all(before < after for before, after in itertools.pairwise(lengths)):
            raise _not_written("extended_at", values["extended_at"])
        _check_data(values["data"], experiment.model.vocabulary_size)
        data = values["data"]
        return cls(experiment=experiment, data=data, extended_at=extended_at, **known)


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


def _is_start(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == _START_FIELDS.keys()
        and all(isinstance(value[name], kind) for name, kind in _START_FIELDS.items())
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def identity(
    experiment: ExperimentConfig, data: dict[str, Any], start: dict[str, Any] | None = None
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
        deciding["start"] = start
    if experiment.is_led_by_evaluations:
        for name in ("evaluate_every_steps", "evaluate_tokens"):
            training[name] = values["training"][name]
        deciding["evaluation"] = values["evaluation"]
    return deciding
