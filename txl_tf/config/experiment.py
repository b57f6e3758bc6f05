"""Configuration of an experiment: model, optimizer, training, evaluation and task."""

import dataclasses
from typing import Annotated, Any, Literal, Self

from txl_tf.config.base import (
    FRACTION,
    FRACTION_BELOW_ONE,
    FRACTION_WITHIN,
    MAX_DISTANCE,
    MAX_ROWS,
    MAX_STEPS,
    MAX_STEPS_PER_LOOP,
    MAX_TOKENS,
    FrozenConfig,
    not_negative,
    parse_setting,
    positive,
)
from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig, RecurrentConfig
from txl_tf.config.task import TaskConfig
from txl_tf.errors import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(FrozenConfig):
    """Batch size, steps, intervals and precision of a training run.

    Raises:
        ValueError: If a value is out of its range.
    """

    global_batch_size: Annotated[int, positive(MAX_ROWS)]
    """Rows of all replicas together; each replica takes an equal share."""
    num_steps: Annotated[int, positive(MAX_STEPS)]
    """Steps of the whole run."""
    steps_per_loop: Annotated[int, positive(MAX_STEPS_PER_LOOP)] = 100
    """Steps that run on the device before the host looks again."""
    checkpoint_every_steps: Annotated[int, positive()] = 1000
    """Steps between two checkpoints; the last step always has one."""
    evaluate_every_steps: Annotated[int | None, positive()] = None
    """Steps between evaluations of the validation split; None: about a tenth of the run. The last
    step always has one."""
    evaluate_tokens: Annotated[int | Literal["all"] | None, positive()] = None
    """Tokens that evaluations before the last step read, from the beginning of the split. None: a
    tenth of the tokens trained on since the one before, so that they take at most a tenth of the
    time; but all where they decide on the learning rate, the average or the end of the run."""
    num_kept_checkpoints: Annotated[int, positive()] = 3
    """How many of the newest checkpoints are kept."""
    rotate_epochs: bool = True
    """Whether each epoch cuts the corpus at other places, decided by the seed."""
    seed: Annotated[int, not_negative(MAX_STEPS)] = 0
    """Decides initial weights, dropout masks and rotations."""
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras dtype policy of the model."""
    tensor_float_32: bool = False
    """Whether products of float32 numbers may round them first, on a TPU to bfloat16 and on a GPU
    to TF32. Exact ones take a TPU six passes instead of one. Evaluations have exact ones."""
    gradient_accumulation_steps: Annotated[int, positive()] = 1
    """Parts of a replica's rows that are read one after the other, to save memory."""
    rematerialize: bool = False
    """Whether blocks are computed again in the backward pass instead of kept, to save memory."""
    attention_kernel: Literal["auto", "always", "never"] = "auto"
    """Whether attention keeps its scores on the chip where the TPU can, v4 and later; auto: v5e
    and later, and not where the scores are small."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """What a step with a loss or gradient that is not finite does; neither changes a weight."""
    spike_deviations: Annotated[float | None, positive()] = None
    """Steps whose loss or gradient norm is further above its running mean are skipped, in
    standard deviations; None: none is."""
    jit_compile: bool | None = None
    """Whether a run on a single CPU or GPU compiles the whole step with XLA; None: as much of it
    as is fastest, see `StepCompilation`."""
    loss_positions: Literal["all", "last_half"] = "all"
    """Positions of a segment that are trained on; of an odd number the larger half."""
    document_boundaries: Literal["ignore", "mask"] = "ignore"
    """Whether tokens attend across the beginning of a document, and remember what is before it."""
    intermediate_losses: bool = False
    """Whether in the first half of the run all blocks predict, see `AuxiliaryLosses`."""
    num_targets: Literal[1, 2] = 1
    """Tokens that each position predicts in training; the second with half the weight."""
    average_weights_from_step: Annotated[int | None, positive(MAX_STEPS)] = None
    """First step of which the weights are averaged, see `WeightAverage`; None: no average."""
    average_weights_after_evaluations: Annotated[int | None, positive(MAX_STEPS_PER_LOOP)] = None
    """Evaluations without a gain after which the weights are averaged from then on, see
    `NonMonotoneTrigger`; None: `average_weights_from_step` decides. 5 is usual."""
    average_weights_decay: Annotated[float | None, FRACTION_WITHIN] = None
    """Decay of an exponential average; None: all steps count the same."""
    stop_after_evaluations: Annotated[int | None, positive()] = None
    """Evaluations in a row without a better one after which the run ends; None: it does not."""
    freeze: tuple[str, ...] | None = None
    """Parts that are not trained: `embedding`, `softmax`, `layers`, `layers:3` or `layers:0-3`,
    counted from 0. None: all are trained."""

    adapter_rank: Annotated[int | None, positive()] = None
    """Rank of low-rank adapters, see `Adapters`: all else of the model is frozen. None: none."""
    adapter_alpha: Annotated[float | None, positive()] = None
    """Adapters add `adapter_alpha / adapter_rank` times the product of their factors. None: the
    product as it is."""

    def validate(self) -> None:
        if self.gradient_accumulation_steps > self.global_batch_size:
            reason = "`gradient_accumulation_steps` must be at most `global_batch_size`."
            self.refuse(reason, "gradient_accumulation_steps", "global_batch_size")
        is_named = self.freeze is None or len(self.freeze) > 0
        self.require("freeze", is_named, "name a part, or be None")
        if self.adapter_alpha is not None and self.adapter_rank is None:
            self.refuse("`adapter_alpha` needs an `adapter_rank`.", "adapter_alpha")
        if self.adapter_rank is not None and self.freeze is not None:
            reason = "`freeze` must be None with an `adapter_rank`, which freezes all weights."
            self.refuse(reason, "freeze", "adapter_rank")
        start, evaluations = "average_weights_from_step", "average_weights_after_evaluations"
        first = self.average_weights_from_step
        is_within = first is None or first <= self.num_steps
        self.require(start, is_within, f"be at most `num_steps`, {self.num_steps}")
        if None not in (first, self.average_weights_after_evaluations):
            self.refuse(f"`{start}` and `{evaluations}` exclude each other.", start, evaluations)
        if self.average_weights_decay is not None and not self.averages_weights:
            reason = f"`average_weights_decay` needs `{start}` or `{evaluations}`."
            self.refuse(reason, "average_weights_decay")

    @property
    def may_compile(self) -> bool:
        """Whether XLA is not ruled out: a device's plan decides, or the setting."""
        return self.jit_compile is not False

    @property
    def averages_weights(self) -> bool:
        """Whether there is an average of the weights, which the model is used with."""
        starts = (self.average_weights_from_step, self.average_weights_after_evaluations)
        return any(start is not None for start in starts)

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


_ADAM_FIELDS = frozenset({"beta_1", "beta_2", "epsilon"})
_FIELDS_OF_OPTIMIZER = {
    "adam": _ADAM_FIELDS,
    "adamw": _ADAM_FIELDS | {"weight_decay"},
    "lamb": _ADAM_FIELDS | {"weight_decay", "max_weight_norm"},
    "adafactor": frozenset({"weight_decay"}),
    "muon": _ADAM_FIELDS | {"weight_decay", "momentum"},
    "sgd": frozenset({"weight_decay", "momentum", "nesterov"}),
}
_FIELDS_OF_SCHEDULE = {
    "cosine": frozenset({"final_learning_rate_fraction"}),
    "inverse_square_root": frozenset(),
    "constant": frozenset(),
    "plateau": frozenset({"final_learning_rate_fraction", "plateau_factor", "plateau_patience"}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(FrozenConfig):
    """The optimizer, its learning rate over the run, and the limit of the gradients.

    Fields that the named optimizer or schedule does not use must be left at
    their defaults.

    Raises:
        ValueError: If a value is out of its range, or set and not used.
    """

    name: Literal["adam", "adamw", "lamb", "adafactor", "muon", "sgd"] = "adam"
    """The optimizer."""
    schedule: Literal["cosine", "inverse_square_root", "constant", "plateau"] = "cosine"
    """What the learning rate does after the warm-up; "plateau" lowers it when validation stalls."""
    learning_rate: Annotated[float, positive()] = 2.5e-4
    """Peak, reached at the end of the warm-up."""
    warmup_steps: Annotated[int, not_negative()] = 0
    """Steps over which the learning rate rises linearly from 0."""
    final_learning_rate_fraction: Annotated[float, FRACTION] = 0.004
    """The floor of "cosine" and "plateau", as a fraction of the peak."""
    plateau_factor: Annotated[float, FRACTION_WITHIN] = 0.5
    """What "plateau" multiplies the learning rate by."""
    plateau_patience: Annotated[int, not_negative()] = 0
    """Evaluations without improvement in a row that "plateau" lets pass."""
    clip_norm: Annotated[float, positive()] = 0.25
    """Largest global norm of the gradients, after the all-reduce."""
    beta_1: Annotated[float, FRACTION_BELOW_ONE] = 0.9
    """Decay of the running mean of the gradients; not of "adafactor" and "sgd"."""
    beta_2: Annotated[float, FRACTION_BELOW_ONE] = 0.999
    """Decay of the running mean of their squares; not of "adafactor" and "sgd"."""
    epsilon: Annotated[float, positive()] = 1e-8
    """Added to the root of the second mean; not of "adafactor" and "sgd"."""
    weight_decay: Annotated[float, not_negative()] = 0.0
    """Share of the learning rate by which weights shrink each step, without biases and scales of
    norms; not of "adam"."""
    momentum: Annotated[float | None, FRACTION_BELOW_ONE] = None
    """Decay of the sum of the gradients of "muon" and "sgd"; None: 0.95 and 0."""
    nesterov: bool = False
    """Whether "sgd" takes the gradient once more after the momentum."""
    max_weight_norm: Annotated[float | None, positive()] = None
    """Largest norm that "lamb" takes a variable to have; None: no limit."""

    layer_rate_decay: Annotated[float | None, FRACTION_WITHIN] = None
    """What the learning rate of a layer is multiplied by for each layer above it; the embedding is
    the lowest. None: all learn at one rate."""

    def validate(self) -> None:
        self._check_use("name", _FIELDS_OF_OPTIMIZER)
        self._check_use("schedule", _FIELDS_OF_SCHEDULE)
        if self.nesterov and not self.momentum:
            self.refuse("`nesterov` needs a momentum.", "momentum")

    def _check_use(self, chooser: str, fields_of_choice: dict[str, frozenset[str]]) -> None:
        choice = getattr(self, chooser)
        unused = frozenset().union(*fields_of_choice.values()) - fields_of_choice[choice]
        for field in dataclasses.fields(self):
            if field.name in unused and getattr(self, field.name) != field.default:
                users = [name for name, used in fields_of_choice.items() if field.name in used]
                reason = f"`{field.name}` is for `{chooser}` {' or '.join(users)}, not used here."
                self.refuse(reason, field.name, chooser)


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

    batch_size: Annotated[int, positive(MAX_ROWS)] = 10
    """Rows that are read side by side, each from its own place in the split."""
    segment_length: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Tokens per row per step, `T`; None takes the model's."""
    memory_length: Annotated[int | None, not_negative(MAX_TOKENS)] = None
    """Remembered tokens, `M`; None takes the model's."""
    clamp_length: Annotated[int | None, positive(MAX_DISTANCE)] = None
    """Largest distance with an encoding of its own; None takes the model's.

    A length of `T + M` or more clamps nothing."""
    same_length: bool | None = None
    """Whether every query sees equally many positions; None takes the model's."""
    same_length_keys: Literal["memory_and_self", "memory"] | None = None
    """How many these are; None takes the model's."""
    warm_up_tokens: Annotated[int | Literal["all"] | None, not_negative()] = None
    """Tokens that a row reads before its first scored one, where there are so many; None is 0.

    `M` of them fill the memory. "all" is as many as can make a difference, about `L` times
    `M + T`. Rounded up so that all rows are cut into segments at multiples of `T`."""
    window_stride_tokens: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Tokens that a window of `T` moves on by and scores, its last ones; for models without
    memory. 1 is the protocol of Al-Rfou et al. (2019). None: segments follow each other."""
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras dtype policy of the model, whatever the run was trained in. In bfloat16 the nats of a
    token differ by up to 0.3 from those in float32, so figures would depend on the precision."""
    attention_kernel: Literal["auto", "always", "never"] | None = None
    """Whether replicas on TPUs attend by the kernel; None takes training's."""
    dynamic_learning_rate: Annotated[float | None, not_negative()] = None
    """Rate at which weights follow the text, see `DynamicEvaluation`; None: they are fixed."""
    dynamic_decay: Annotated[float | None, FRACTION] = None
    """Part of the way back to the trained weights after each segment; None is 0."""
    dynamic_statistics_segments: Annotated[int | None, positive()] = None
    """Segments of the split `train` that gradients are scaled by; None: they are not scaled."""
    dynamic_epsilon: Annotated[float | None, positive()] = None
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
