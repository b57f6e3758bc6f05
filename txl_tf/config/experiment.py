"""Configuration of an experiment: model, optimizer, training and evaluation."""

import dataclasses
from typing import Annotated, Any, Literal, Self

from txl_tf.config import settings
from txl_tf.config.base import (
    MAX_DISTANCE,
    MAX_ROWS,
    MAX_TOKENS,
    FrozenConfig,
    parse_setting,
    shown_value,
)
from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig, RecurrentConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.config.task import TaskConfig
from txl_tf.config.training import TrainingConfig
from txl_tf.errors import did_you_mean

_DYNAMIC = ("dynamic_decay", "dynamic_statistics_segments", "dynamic_epsilon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(FrozenConfig):
    """Rows and lengths of an evaluation; they may differ from training's.

    With `warm_up_tokens="all"` the figures equal a single row's, whatever
    the `batch_size`. With a memory that holds the whole text they equal those for
    one pass over it, and the `segment_length` makes no difference either. With
    less memory it makes one, because a token sees its segment besides the
    memory; with `same_length` all tokens see equally far, and again it makes
    none, unless positions are counted from the end of the segment, as
    "sinusoidal" and "learned" ones are.

    Raises:
        ValueError: If a value is out of its range, or does not fit the others.
    """

    batch_size: Annotated[int, settings.positive(MAX_ROWS)] = 10
    """Rows that are read side by side, each from its own place in the split."""
    segment_length: Annotated[int | None, settings.positive(MAX_TOKENS)] = None
    """Tokens per row per step, `T`; None takes the model's."""
    memory_length: Annotated[int | None, settings.not_negative(MAX_TOKENS)] = None
    """Remembered tokens, `M`; None takes the model's."""
    clamp_length: Annotated[int | None, settings.positive(MAX_DISTANCE)] = None
    """Largest distance with an encoding of its own; None takes the model's.

    A length of `T + M` or more clamps nothing."""
    same_length: bool | None = None
    """Whether every query sees equally many positions; None takes the model's."""
    same_length_keys: Literal["memory_and_self", "memory"] | None = None
    """How many these are; None takes the model's."""
    warm_up_tokens: Annotated[int | Literal["all"] | None, settings.not_negative()] = None
    """Tokens that a row reads before its first scored one, where there are so many; None is 0.

    `M` of them fill the memory. "all" is as many as can make a difference, about `L` times
    `M + T`. Rounded up so that all rows are cut into segments at multiples of `T`."""
    window_stride_tokens: Annotated[int | None, settings.positive(MAX_TOKENS)] = None
    """Tokens that a window of `T` moves on by and scores, its last ones; for models without
    memory. 1 is the protocol of Al-Rfou et al. (2019). None: segments follow each other."""
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras dtype policy of the model, whatever the run was trained in. In bfloat16 the nats of a
    token differ by up to 0.3 from those in float32, so figures would depend on the precision."""
    attention_kernel: Literal["auto", "always", "never"] | None = None
    """Whether replicas on TPUs attend by the kernel; None takes training's."""
    dynamic_learning_rate: Annotated[float | None, settings.not_negative()] = None
    """Rate at which weights follow the text, see `DynamicUpdate`; None: they are fixed."""
    dynamic_decay: Annotated[float | None, settings.FRACTION] = None
    """Part of the way back to the trained weights after each segment; None is 0."""
    dynamic_statistics_segments: Annotated[int | None, settings.positive()] = None
    """Segments of the split `train` that gradients are scaled by; None: they are not scaled."""
    dynamic_epsilon: Annotated[float | None, settings.positive()] = None
    """Added to the scale of the gradients; None is 1e-3."""

    def validate(self) -> None:
        if self.dynamic_learning_rate is None:
            for name in _DYNAMIC:
                if getattr(self, name) is not None:
                    self.refuse(f"`{name}` needs a `dynamic_learning_rate`.", name)
        elif self.batch_size != 1:
            reason = "`dynamic_learning_rate` needs a `batch_size` of 1: weights follow one text."
            self.refuse(reason, "batch_size")
        if self.dynamic_epsilon is not None and self.dynamic_statistics_segments is None:
            reason = "`dynamic_epsilon` needs `dynamic_statistics_segments`."
            self.refuse(reason, "dynamic_epsilon")
        if self.window_stride_tokens is not None:
            for name in ("warm_up_tokens", "dynamic_learning_rate"):
                if getattr(self, name) is not None:
                    reason = f"`{name}` is for segments that follow each other, not for windows."
                    self.refuse(reason, name, "window_stride_tokens")

    def check_windows(self, model: ModelConfig | LSTMConfig | QRNNConfig) -> None:
        """Checks that a model can be read with the windows of these settings, if there are any.

        Raises:
            ValueError: If the model has a memory, or a window fewer tokens than
                it moves on by.
        """
        if (stride := self.window_stride_tokens) is None:
            return
        if isinstance(model, RecurrentConfig):
            remembered = "states"
        else:
            chosen = model if self.memory_length is None else self
            length = chosen.memory_length if model.recurrence else 0
            remembered = f"memory_length={length}" if length else ""
        if remembered:
            raise ValueError(
                "`evaluation.window_stride_tokens` is for models without memory; "
                "`evaluation.memory_length=0` leaves the memory of a Transformer-XL out. "
                f"Received: window_stride_tokens={stride}, a model with {remembered}"
            )
        length = self.segment_length or model.segment_length
        if stride > length:
            raise ValueError(
                "`evaluation.window_stride_tokens` must be at most the segment length. "
                f"Received: window_stride_tokens={stride}, segment_length={length}"
            )


_RECURRENT: dict[str, type[LSTMConfig | QRNNConfig]] = {
    each.kind: each for each in (LSTMConfig, QRNNConfig)
}
# What a recurrent model has no use for: no attention, no blocks, no documents told apart.
_ATTENTION_ONLY = {
    "training": (
        "adapter_rank",
        "document_boundaries",
        "intermediate_losses",
        "num_targets",
        "rematerialize",
        "attention_kernel",
    ),
    "evaluation": (
        "attention_kernel",
        "memory_length",
        "clamp_length",
        "same_length",
        "same_length_keys",
    ),
}

# Of a stream of tokens, which a task does not have: its examples are independent.
_LANGUAGE_MODELLING_ONLY = {
    "training": (
        "document_boundaries",
        "evaluate_tokens",
        "intermediate_losses",
        "loss_positions",
        "num_targets",
    ),
    "evaluation": ("dynamic_learning_rate",),
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
    task: TaskConfig | None = None
    """The task that the model is fine-tuned for; None: language modelling."""

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        if self.task is None:
            del values["task"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        model = values.get("model") if isinstance(values, dict) else None
        if isinstance(model, dict) and "kind" in model:
            config_class = _RECURRENT.get(str(model["kind"]))
            if config_class is None:
                raise ValueError(
                    '`model.kind` must be "lstm" or "qrnn", or left out for a Transformer-XL. '
                    f"Received: kind={shown_value(model['kind'])}"
                )
            values = {**values, "model": config_class.from_dict(model)}
        return super().from_dict(values)

    def validate(self) -> None:
        if isinstance(self.model, RecurrentConfig):
            for section, names in _ATTENTION_ONLY.items():
                self._require_defaults(section, names, "a recurrent model")
        elif self.training.adapter_rank is not None:
            self._check_adapter_rank(self.training.adapter_rank, self.model)
        if self.task is not None:
            self._check_task()
        _ = self.frozen_parts  # refuses what the model does not have
        if self.optimizer.warmup_steps >= self.training.num_steps:
            reason = "`optimizer.warmup_steps` must be less than `training.num_steps`."
            self.refuse(reason, "optimizer.warmup_steps", "training.num_steps")
        if self.is_led_by_evaluations and self.training.evaluate_every_steps is None:
            reason = (
                '`optimizer.schedule="plateau"` and `training.average_weights_after_evaluations` '
                "need `training.evaluate_every_steps`."
            )
            self.refuse(reason, "training.evaluate_every_steps")
        length, positions = self.model.segment_length, self.training.loss_positions
        if self.training.num_targets == 2 and length < (2 if positions == "all" else 3):
            reason = "`training.num_targets=2` needs a position with two targets in the segment."
            self.refuse(reason, "model.segment_length", "training.loss_positions")

    @property
    def is_led_by_evaluations(self) -> bool:
        """Whether evaluations decide how the run continues."""
        has_trigger = self.training.average_weights_after_evaluations is not None
        return self.optimizer.schedule == "plateau" or has_trigger

    @property
    def resolved_evaluation(self) -> EvaluationConfig:
        """The evaluation, with the kernel of training by default."""
        kernel = self.evaluation.attention_kernel or self.training.attention_kernel
        return self.evaluation.replace(attention_kernel=kernel)

    @property
    def frozen_parts(self) -> FrozenParts:
        """Parts of the model that are not trained, see `TrainingConfig.freeze`."""
        patterns, has_head = self.training.freeze or (), self.task is not None
        return FrozenParts.parse(patterns, self.model.num_layers, has_head=has_head)

    def _check_task(self) -> None:
        for section, names in _LANGUAGE_MODELLING_ONLY.items():
            self._require_defaults(section, names, "a task")
        if self.optimizer.schedule == "plateau":
            reason = '`optimizer.schedule` must not be "plateau" for a task, which lowers no loss.'
            self.refuse(reason, "optimizer.schedule")

    def _check_adapter_rank(self, rank: int, model: ModelConfig) -> None:
        highest = min(model.hidden_dim, model.num_heads * model.head_dim, model.intermediate_dim)
        if rank > highest:
            reason = f"`training.adapter_rank` must be at most {highest}, the model's least width."
            self.refuse(reason, "training.adapter_rank")

    def _require_defaults(self, section: str, names: tuple[str, ...], use: str) -> None:
        config = getattr(self, section)
        defaults = {field.name: field.default for field in dataclasses.fields(config)}
        for name in names:
            if getattr(config, name) != defaults[name]:
                reason = f"`{section}.{name}` must be {defaults[name]!r} for {use}."
                self.refuse(reason, f"{section}.{name}")

    def with_overrides(self, assignments: list[str]) -> Self:
        """Returns a copy with values changed by dotted names.

        Args:
            assignments: list of str like `optimizer.learning_rate=1e-3`. The
                value is JSON; any other text is a string.

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


def _assign(values: dict[str, Any], dotted_name: str, value: Any) -> None:
    *sections, field = dotted_name.split(".")
    place: Any = values
    for section in sections:
        place = place.get(section) if isinstance(place, dict) else None
    if not isinstance(place, dict) or field not in place or isinstance(place[field], dict):
        known = [f"{name}.{key}" for name, section in values.items() for key in section]
        raise ValueError(
            "There is no setting of this name; `txl config` lists all, as `section.field`."
            f"{did_you_mean(dotted_name, known)} Received: {dotted_name[:200]}"
        )
    place[field] = value
