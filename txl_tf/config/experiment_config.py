"""The configuration of a whole experiment, and how it is changed by name."""

import dataclasses
from typing import Any, Self

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.frozen_config import FrozenConfig
from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.config.recurrent_config import RecurrentConfig
from txl_tf.config.setting_text import parse_setting
from txl_tf.config.shown_value import shown_value
from txl_tf.config.training_config import TrainingConfig

# What a recurrent model has no use for: no attention, no blocks, no documents told apart.
_ATTENTION_ONLY = {
    "training": (
        "document_boundaries",
        "intermediate_losses",
        "num_targets",
        "rematerialize",
    ),
    "evaluation": ("memory_length", "clamp_length", "same_length", "same_length_keys"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig(FrozenConfig):
    """Model, optimizer, training and evaluation: all but the data."""

    model: ModelConfig | LSTMConfig | QRNNConfig
    """The model; in a file, `kind` tells `"lstm"` and `"qrnn"` from a Transformer-XL."""
    training: TrainingConfig
    """The training run."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    """The optimizer."""
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    """The evaluation during and after training."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        model = values.get("model") if isinstance(values, dict) else None
        if isinstance(model, dict) and "kind" in model:
            values = {**values, "model": _recurrent_config(model)}
        return super().from_dict(values)

    def validate(self) -> None:
        if isinstance(self.model, RecurrentConfig):
            self._check_recurrent()
        if self.optimizer.warmup_steps >= self.training.num_steps:
            raise ValueError(
                "`optimizer.warmup_steps` must be less than `training.num_steps`. Received: "
                f"warmup_steps={self.optimizer.warmup_steps}, num_steps={self.training.num_steps}"
            )
        if self.optimizer.schedule == "plateau" and self.training.evaluate_every_steps is None:
            raise ValueError(
                '`optimizer.schedule="plateau"` needs `training.evaluate_every_steps`. '
                f"Received: evaluate_every_steps={self.training.evaluate_every_steps}"
            )
        length, positions = self.model.segment_length, self.training.loss_positions
        if self.training.num_targets == 2 and length < (2 if positions == "all" else 3):
            raise ValueError(
                "`training.num_targets=2` needs a position that has two targets in the segment. "
                f"Received: segment_length={length}, loss_positions={positions}"
            )

    def _check_recurrent(self) -> None:
        for section, names in _ATTENTION_ONLY.items():
            config = getattr(self, section)
            defaults = {field.name: field.default for field in dataclasses.fields(config)}
            for name in names:
                if getattr(config, name) != defaults[name]:
                    raise ValueError(
                        f"`{section}.{name}` must be {defaults[name]!r} for a recurrent model. "
                        f"Received: {name}={getattr(config, name)!r}"
                    )

    def with_overrides(self, assignments: list[str]) -> Self:
        """Returns a copy with values changed by dotted names.

        Args:
            assignments: list of str like `optimizer.learning_rate=1e-3`. The
                value is JSON; what is not JSON is a string.

        Returns:
            The changed configuration.

        Raises:
            ValueError: If an assignment has no `=`, names an unknown field or
                gives a value that is not valid.
        """
        values = self.to_dict()
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise ValueError(
                    f"An override is `section.field=value`. Received: {assignment[:200]}"
                )
            _assign(values, name.strip(), parse_setting(text.strip()))
        return type(self).from_dict(values)


def _recurrent_config(values: dict[str, Any]) -> LSTMConfig | QRNNConfig:
    for config_class in (LSTMConfig, QRNNConfig):
        if values["kind"] == config_class.kind:
            return config_class.from_dict(values)
    raise ValueError(
        '`model.kind` must be "lstm" or "qrnn", or left out for a Transformer-XL. '
        f"Received: kind={shown_value(values['kind'])}"
    )


def _assign(values: dict[str, Any], dotted_name: str, value: Any) -> None:
    *sections, field = dotted_name.split(".")
    place: Any = values
    for section in sections:
        place = place.get(section) if isinstance(place, dict) else None
    if not isinstance(place, dict) or field not in place or isinstance(place[field], dict):
        raise ValueError(
            "An override names a field as `section.field`; sections are "
            f"{', '.join(sorted(values))}. Received: {dotted_name[:200]}"
        )
    place[field] = value
