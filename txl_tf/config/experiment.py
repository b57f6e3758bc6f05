"""Configuration of an experiment: model, optimizer, training and evaluation."""

import dataclasses
from typing import Any, ClassVar, Literal, Self

from txl_tf.config import settings
from txl_tf.config.base import (
    MAX_DISTANCE,
    MAX_ROWS,
    MAX_STEPS,
    MAX_STEPS_PER_LOOP,
    MAX_TOKENS,
    FrozenConfig,
    parse_setting,
    shown_value,
)
from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig, RecurrentConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.errors import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(FrozenConfig):
    """Batch size, steps, intervals and precision of a training run.

    Raises:
        ValueError: If a value is out of its range.
    """

    RANGES: ClassVar = {
        "global_batch_size": settings.positive(MAX_ROWS),
        "num_steps": settings.positive(MAX_STEPS),
        "steps_per_loop": settings.positive(MAX_STEPS_PER_LOOP),
        "checkpoint_every_steps": settings.positive(),
        "evaluate_every_steps": settings.positive(),
        "evaluate_tokens": settings.positive(),
        "num_kept_checkpoints": settings.positive(),
        "seed": settings.not_negative(MAX_STEPS),
        "gradient_accumulation_steps": settings.positive(),
        "spike_deviations": settings.positive(),
    }

    global_batch_size: int
    """Rows of all replicas together; each replica takes an equal share."""
    num_steps: int
    """Steps of the whole run."""
    steps_per_loop: int = 100
    """Steps that run on the device before the host looks again."""
    checkpoint_every_steps: int = 1000
    """Steps between two checkpoints; the last step always has one."""
    evaluate_every_steps: int | None = None
    """Steps between evaluations of the validation split; None: about a tenth of the run. The last
    step always has one."""
    evaluate_tokens: int | None = None
    """Tokens that evaluations before the last step read, from the beginning of the split; None:
    all."""
    num_kept_checkpoints: int = 3
    """How many of the newest checkpoints are kept."""
    rotate_epochs: bool = True
    """Whether each epoch cuts the corpus at other places, decided by the seed."""
    seed: int = 0
    """Decides initial weights, dropout masks and rotations."""
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras dtype policy of the model."""
    tensor_float_32: bool = False
    """Whether products of float32 numbers may round them first, on a TPU to bfloat16 and on a GPU
    to TF32. Exact ones take a TPU six passes instead of one."""
    gradient_accumulation_steps: int = 1
    """Parts of a replica's rows that are read one after the other, to save memory."""
    rematerialize: bool = False
    """Whether blocks are computed again in the backward pass instead of kept, to save memory."""
    attention_kernel: Literal["auto", "always", "never"] = "auto"
    """Whether attention keeps its scores on the chip where the TPU can, v4 and later; auto: v5e
    and later, and not where the scores are small."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """What a step with a loss or gradient that is not finite does; neither changes a weight."""
    spike_deviations: float | None = None
    """Steps whose loss or gradient norm is further above its running mean are skipped, in
    standard deviations; None: none is."""
    jit_compile: bool = True
    """Whether a run on a single CPU or GPU compiles the step with XLA."""
    loss_positions: Literal["all", "last_half"] = "all"
    """Positions of a segment that are trained on; of an odd number the larger half."""
    document_boundaries: Literal["ignore", "mask"] = "ignore"
    """Whether tokens attend across the beginning of a document, and remember what is before it."""
    intermediate_losses: bool = False
    """Whether in the first half of the run all blocks predict, see `AuxiliaryLosses`."""
    num_targets: Literal[1, 2] = 1
    """Tokens that each position predicts in training; the second with half the weight."""
    average_weights_from_step: int | None = None
    """First step of which the weights are averaged, see `WeightAverage`; None: no average."""
    average_weights_decay: float | None = None
    """Decay of an exponential average; None: all steps count the same."""
    freeze: tuple[str, ...] | None = None
    """Parts that are not trained: `embedding`, `softmax`, `layers`, `layers:3` or `layers:0-3`,
    counted from 0. None: all are trained."""

    def validate(self) -> None:
        if self.gradient_accumulation_steps > self.global_batch_size:
            raise ValueError(
                "`gradient_accumulation_steps` must be at most `global_batch_size`: a part has a "
                "row. Received: gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}, global_batch_size={self.global_batch_size}"
            )
        is_named = self.freeze is None or len(self.freeze) > 0
        self.require("freeze", is_named, "name a part, or be None")
        start = self.average_weights_from_step
        if start is not None and not 0 < start <= self.num_steps:
            raise ValueError(
                "`average_weights_from_step` must be between 1 and `num_steps`, or None. Received: "
                f"average_weights_from_step={start}, num_steps={self.num_steps}"
            )
        decay = self.average_weights_decay
        if decay is not None and (start is None or not 0.0 < decay < 1.0):
            raise ValueError(
                "`average_weights_decay` must be between 0 and 1 and needs "
                "`average_weights_from_step`, or None. Received: "
                f"average_weights_decay={decay}, average_weights_from_step={start}"
            )

    @property
    def evaluation_period(self) -> int:
        """Steps between evaluations of the validation split.

        By default a tenth of the run, in whole periods of checkpoints where
        there are any: an evaluation that is the best so far needs one.
        """
        if self.evaluate_every_steps is not None:
            return self.evaluate_every_steps
        tenth, period = -(-self.num_steps // 10), self.checkpoint_every_steps
        return round(tenth / period) * period if tenth >= period else tenth

    def rows_per_replica(self, num_replicas: int) -> int:
        """Returns the rows that each replica runs.

        They are a multiple of `gradient_accumulation_steps`. Where the global batch
        cannot be shared out equally, some are padding.
        """
        num_parts = self.gradient_accumulation_steps
        return -(-self.global_batch_size // (num_replicas * num_parts)) * num_parts


_DYNAMIC = ("dynamic_decay", "dynamic_statistics_segments", "dynamic_epsilon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(FrozenConfig):
    """Rows and lengths of an evaluation; they may differ from training's.

    With `warm_up_tokens="all"` the figures are those of a single row, whatever
    the `batch_size`. With a memory that holds the whole text they are those of
    one pass over it, and the `segment_length` makes no difference either. With
    less memory it makes one, because a token sees its segment besides the
    memory; with `same_length` all tokens see equally far, and again it makes
    none, unless positions are counted from the end of the segment, as
    "sinusoidal" and "learned" ones are.

    Raises:
        ValueError: If a value is out of its range, or does not fit the others.
    """

    RANGES: ClassVar = {
        "batch_size": settings.positive(MAX_ROWS),
        "segment_length": settings.positive(MAX_TOKENS),
        "memory_length": settings.not_negative(MAX_TOKENS),
        "clamp_length": settings.positive(MAX_DISTANCE),
        "warm_up_tokens": settings.not_negative(),
        "dynamic_learning_rate": settings.not_negative(),
        "dynamic_decay": settings.FRACTION,
        "dynamic_statistics_segments": settings.positive(),
        "dynamic_epsilon": settings.positive(),
    }

    batch_size: int = 10
    """Rows that are read side by side, each from its own place in the split."""
    segment_length: int | None = None
    """Tokens per row per step, `T`; None takes the model's."""
    memory_length: int | None = None
    """Remembered tokens, `M`; None takes the model's."""
    clamp_length: int | None = None
    """Largest distance with an encoding of its own; None takes the model's.

    A length of `T + M` or more clamps nothing."""
    same_length: bool | None = None
    """Whether every query sees equally many positions; None takes the model's."""
    same_length_keys: Literal["memory_and_self", "memory"] | None = None
    """How many these are; None takes the model's."""
    warm_up_tokens: int | Literal["all"] | None = None
    """Tokens that a row reads before its first scored one, where there are so many; None is 0.

    `M` of them fill the memory. "all" is as many as can make a difference, about `L` times
    `M + T`. Rounded up so that all rows are cut into segments at multiples of `T`."""
    dynamic_learning_rate: float | None = None
    """Rate at which weights follow the text, see `DynamicUpdate`; None: they are fixed."""
    dynamic_decay: float | None = None
    """Part of the way back to the trained weights after each segment; None is 0."""
    dynamic_statistics_segments: int | None = None
    """Segments of the split `train` that gradients are scaled by; None: they are not scaled."""
    dynamic_epsilon: float | None = None
    """Added to the scale of the gradients; None is 1e-3."""

    def validate(self) -> None:
        if self.dynamic_learning_rate is None:
            for name in _DYNAMIC:
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"`{name}` needs a `dynamic_learning_rate`. "
                        f"Received: {name}={getattr(self, name)}"
                    )
        elif self.batch_size != 1:
            raise ValueError(
                "`dynamic_learning_rate` needs a `batch_size` of 1: with more rows the weights "
                f"would learn from later parts of the text. Received: batch_size={self.batch_size}"
            )
        if self.dynamic_epsilon is not None and self.dynamic_statistics_segments is None:
            raise ValueError(
                "`dynamic_epsilon` needs `dynamic_statistics_segments`. "
                f"Received: dynamic_epsilon={self.dynamic_epsilon}"
            )


# What a recurrent model has no use for: no attention, no blocks, no documents told apart.
_ATTENTION_ONLY = {
    "training": (
        "document_boundaries",
        "intermediate_losses",
        "num_targets",
        "rematerialize",
        "attention_kernel",
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
        _ = self.frozen_parts  # refuses what the model does not have
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

    @property
    def frozen_parts(self) -> FrozenParts:
        """Parts of the model that are not trained, see `TrainingConfig.freeze`."""
        return FrozenParts.parse(self.training.freeze or (), self.model.num_layers)

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
        known = [f"{name}.{key}" for name, section in values.items() for key in section]
        raise ValueError(
            "There is no setting of this name; `txl config` lists all, as `section.field`."
            f"{did_you_mean(dotted_name, known)} Received: {dotted_name[:200]}"
        )
    place[field] = value
