"""Description of a run and of its progress: the file `run.json`."""

import dataclasses
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
        period = max(
            self.longest_checkpoint_period, self.experiment.training.checkpoint_every_steps
        )
        object.__setattr__(self, "longest_checkpoint_period", period)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> bytes:
        """Contents of the file."""
        values = {
            "format_version": FORMAT_VERSION,
            "experiment": self.experiment.to_dict(),
            "data": self.data,
            "run_id": self.run_id,
            "first_checkpoint_step": self.first_checkpoint_step,
            "longest_checkpoint_period": self.longest_checkpoint_period,
        }
        return (json.dumps(values, indent=1) + "\n").encode()

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Takes up what `to_json` wrote.

        Args:
            values: dict of JSON values. The last three may be missing, as
                earlier versions did not write them.

        Raises:
            ValueError: If a value is missing or wrong.
        """
        for name in ("experiment", "data"):
            if not isinstance(values.get(name), dict):
                received = ascii(values.get(name))[:100]
                raise ValueError(f"`{name}` must be an object. Received: {received}")
        known: dict[str, Any] = {}
        checks = {
            "run_id": lambda value: (
                value is None or (isinstance(value, str) and _RUN_ID.fullmatch(value))
            ),
            "first_checkpoint_step": lambda value: value is None or _is_count(value),
            "longest_checkpoint_period": lambda value: _is_count(value) and value > 0,
        }
        for name, is_valid in checks.items():
            if name not in values:
                continue
            if not is_valid(values[name]):
                received = ascii(values[name])[:100]
                raise ValueError(f"`{name}` is not what this program writes. Received: {received}")
            known[name] = values[name]
        experiment = ExperimentConfig.from_dict(values["experiment"])
        _check_data(values["data"], experiment.model.vocabulary_size)
        return cls(experiment=experiment, data=values["data"], **known)


def _check_data(data: dict[str, Any], vocabulary_size: int) -> None:
    for name, kind in _DATA_FIELDS.items():
        if type(data.get(name)) is not kind or not data[name]:
            received = ascii(data.get(name))[:100]
            raise ValueError(f"`data.{name}` is not what this program writes. Received: {received}")
    if data["vocabulary_size"] != vocabulary_size:
        raise ValueError(
            f"`data.vocabulary_size` must be that of the model, {vocabulary_size}. "
            f"Received: {data['vocabulary_size']}"
        )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def identity(experiment: ExperimentConfig, data: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that decide every step; checkpoints are bound to them.

    Args:
        experiment: `ExperimentConfig`.
        data: dict. Identity of the data, see `RunDescription`.

    Returns:
        Dict of JSON values.
    """
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
    if experiment.optimizer.schedule == "plateau":
        # Evaluations decide the learning rate.
        training["evaluate_every_steps"] = experiment.training.evaluate_every_steps
        deciding["evaluation"] = values["evaluation"]
    return deciding
