"""Configuration of an experiment: the sections of its settings, and the rules between them.

`OptimizerConfig`, `TrainingConfig`, `EvaluationConfig` and `TaskConfig` are sections beside the
model. `ExperimentConfig` joins them all; `EvaluatedModel` joins those that an evaluation needs.
"""

import dataclasses
from typing import Annotated, Any, Literal, Self

from txl_tf.config.base import (
    FRACTION,
    FRACTION_BELOW_ONE,
    FRACTION_WITHIN,
    FrozenConfig,
    not_negative,
    positive,
)
from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.config.limits import MAX_DISTANCE, MAX_ROWS, MAX_STEPS, MAX_STEPS_PER_LOOP, MAX_TOKENS
from txl_tf.config.model import AnyModelConfig, ModelConfig, RecurrentConfig
from txl_tf.config.setting_values import parse_setting
from txl_tf.errors import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(FrozenConfig):
    """Batch size, steps, intervals and precision of a training run.

    Raises:
        ValueError: If a value is out of its range.
    """

    global_batch_size: Annotated[int, positive(MAX_ROWS)]
    """Rows of a batch on all replicas together. Each replica runs an equal share."""
    num_steps: Annotated[int, positive(MAX_STEPS)]
    """Steps of the whole run."""
    steps_per_loop: Annotated[int, positive(MAX_STEPS_PER_LOOP)] = 100
    """Steps that the device runs before the host gets control again."""
    checkpoint_every_steps: Annotated[int, positive()] = 1000
    """Steps between checkpoints. The last step always has one."""
    evaluate_every_steps: Annotated[int | None, positive()] = None
    """Steps between evaluations of the validation split. The last step always has one. None means
    about a tenth of the run."""
    evaluate_tokens: Annotated[int | Literal["all"] | None, positive()] = None
    """Tokens that each evaluation before the last step reads, at places spread evenly over the
    split. None means a tenth of the tokens since the previous evaluation, fewer if a token costs
    more than in training, and at least 4,096. With `stop_after_evaluations`, and for tasks, None
    means all tokens."""
    num_kept_checkpoints: Annotated[int, positive()] = 3
    """Number of newest checkpoints to keep, besides the best. The checkpoint that an evaluation
    writes when it finds better weights counts too."""
    rotate_epochs: bool = True
    """Whether each epoch cuts the corpus at other positions. The seed determines the positions."""
    seed: Annotated[int, not_negative(MAX_STEPS)] = 0
    """Seed of initial weights, dropout masks and rotations."""
    dtype_policy: Literal["float32", "mixed_bfloat16", "auto"] = "float32"
    """Keras dtype policy of the model. "auto" means mixed_bfloat16 on TPUs. On other devices a run
    measures matrix products when it begins, and "auto" means the policy with the faster ones."""
    tensor_float_32: bool = False
    """Whether matrix products may round float32 inputs: to bfloat16 on a TPU, to TF32 on a GPU. On
    a TPU an exact product needs six passes, a rounded one needs one. Evaluations never round."""
    gradient_accumulation_steps: Annotated[int, positive()] = 1
    """Number of parts into which a replica divides its rows, to save memory. It processes one part
    after another."""
    rematerialize: bool = False
    """Whether the backward pass recomputes the activations of blocks, to save memory."""
    attention_kernel: Literal["auto", "always", "never"] = "auto"
    """Whether attention uses a kernel that keeps its scores on the chip. It needs a TPU v5e or
    later. "auto" uses it only where the scores are large."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """Whether a loss or gradient that is not finite stops the run ("stop") or skips its step
    ("skip")."""
    jit_compile: bool | None = None
    """Whether a run on one CPU or GPU compiles the whole step with XLA. None chooses by speed: of a
    wide model on a CPU only parts of the step are compiled, otherwise the whole step."""
    document_boundaries: Literal["ignore", "mask"] = "ignore"
    """Whether attention and memory cross into earlier documents ("ignore") or not ("mask")."""
    average_weights_from_step: Annotated[int | None, positive(MAX_STEPS)] = None
    """First step whose weights are averaged. Evaluations use the average. None disables
    averaging."""
    average_weights_decay: Annotated[float | None, FRACTION_WITHIN] = None
    """Decay of an exponential average. None means an average with equal weights."""
    stop_after_evaluations: Annotated[int | None, positive()] = None
    """Number of evaluations without improvement after which the run stops. None disables early
    stopping."""
    freeze: tuple[str, ...] | None = None
    """Parts that are not trained: `embedding`, `softmax`, `layers`, `layers:3` or `layers:0-3`.
    Layers are counted from 0. None means that all parts are trained."""
    adapter_rank: Annotated[int | None, positive()] = None
    """Rank of low-rank adapters (LoRA), which freeze all other weights. None disables adapters."""
    adapter_alpha: Annotated[float | None, positive()] = None
    """The output of adapters is scaled by `adapter_alpha / adapter_rank`. None means a scale of
    1."""

    def validate(self) -> None:
        if self.gradient_accumulation_steps > self.global_batch_size:
            self.refuse(
                "`gradient_accumulation_steps` must be at most `global_batch_size`.",
                "gradient_accumulation_steps",
                "global_batch_size",
            )
        is_named = self.freeze is None or len(self.freeze) > 0
        self.require("freeze", is_named, "name a part, or be None")
        if self.adapter_alpha is not None and self.adapter_rank is None:
            self.refuse("`adapter_alpha` needs an `adapter_rank`.", "adapter_alpha")
        if self.adapter_rank is not None and self.freeze is not None:
            self.refuse(
                "`freeze` must be None with an `adapter_rank`, which freezes the rest.",
                "freeze",
                "adapter_rank",
            )
        start, first = "average_weights_from_step", self.average_weights_from_step
        is_within = first is None or first <= self.num_steps
        self.require(start, is_within, f"be at most `num_steps`, {self.num_steps}")
        if self.average_weights_decay is not None and first is None:
            self.refuse(f"`average_weights_decay` needs `{start}`.", "average_weights_decay")

    @property
    def evaluation_period(self) -> int:
        """Steps between evaluations of the validation split.

        The default is a tenth of the run. It is rounded to whole periods of checkpoints if it is
        at least one period.
        """
        if self.evaluate_every_steps is not None:
            return self.evaluate_every_steps
        tenth, period = -(-self.num_steps // 10), self.checkpoint_every_steps
        return round(tenth / period) * period if tenth >= period else tenth

    def rows_per_replica(self, num_replicas: int) -> int:
        """Returns the number of rows that each replica runs.

        It is a multiple of `gradient_accumulation_steps`. Some rows are padding if the global batch
        cannot be divided equally.
        """
        num_parts = self.gradient_accumulation_steps
        return -(-self.global_batch_size // (num_replicas * num_parts)) * num_parts


# A field that only some optimizers or schedules use must be in these tables.
_ADAM_FIELDS = frozenset({"beta_1", "beta_2", "epsilon"})
_FIELDS_OF_OPTIMIZER = {
    "adam": _ADAM_FIELDS,
    "adamw": _ADAM_FIELDS | {"weight_decay"},
    "lamb": _ADAM_FIELDS | {"weight_decay", "max_weight_norm"},
    "muon": _ADAM_FIELDS | {"weight_decay", "momentum"},
    "sgd": frozenset({"weight_decay", "momentum"}),
}
_FIELDS_OF_SCHEDULE = {
    "cosine": frozenset({"final_learning_rate_fraction"}),
    "wsd": frozenset({"final_learning_rate_fraction", "decay_fraction"}),
    "inverse_square_root": frozenset(),
    "constant": frozenset(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(FrozenConfig):
    """The optimizer, its learning rate over the run, and the limit of the gradients.

    Fields that the optimizer or the schedule does not use must have their defaults.

    Raises:
        ValueError: If a value is out of its range, or is set but has no effect.
    """

    name: Literal["adam", "adamw", "lamb", "muon", "sgd"] = "adam"
    """Name of the optimizer."""
    schedule: Literal["cosine", "wsd", "inverse_square_root", "constant"] = "cosine"
    """Course of the learning rate after the warm-up. "wsd" is constant, and falls at the end."""
    learning_rate: Annotated[float, positive()] = 2.5e-4
    """Peak of the learning rate, at the end of the warm-up."""
    warmup_steps: Annotated[int, not_negative()] = 0
    """Number `W` of steps in which the learning rate rises linearly: step `k`, counted from 1, has
    `k / W` times the peak."""
    final_learning_rate_fraction: Annotated[float, FRACTION] = 0.004
    """Learning rate of the last step of "cosine" and "wsd", as a fraction of the peak."""
    decay_fraction: Annotated[float, FRACTION_WITHIN] = 0.2
    """Fraction of the steps, at the end, in which "wsd" lowers the learning rate."""
    clip_norm: Annotated[float, positive()] = 0.25
    """Largest global norm of the gradients. Gradients are clipped after the sum over replicas."""
    beta_1: Annotated[float, FRACTION_BELOW_ONE] = 0.9
    """Decay of the running mean of gradients. Unused by "sgd"."""
    beta_2: Annotated[float, FRACTION_BELOW_ONE] = 0.999
    """Decay of the running mean of squared gradients. Unused by "sgd"."""
    epsilon: Annotated[float, positive()] = 1e-8
    """Added to the root of the mean of squares. Unused by "sgd"."""
    weight_decay: Annotated[float, not_negative()] = 0.0
    """Each step shrinks the weights by this times the learning rate. Biases and scales of
    normalisation layers are not shrunk. Unused by "adam"."""
    momentum: Annotated[float | None, FRACTION_BELOW_ONE] = None
    """Decay of the momentum, only for "muon" and "sgd". None means 0.95 for "muon", 0 for "sgd"."""
    max_weight_norm: Annotated[float | None, positive()] = None
    """Limit of a variable's norm in the trust ratio of "lamb". None means no limit."""

    def validate(self) -> None:
        self.require_use("name", _FIELDS_OF_OPTIMIZER)
        self.require_use("schedule", _FIELDS_OF_SCHEDULE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(FrozenConfig):
    """Rows and lengths of an evaluation, which may differ from those in training.

    With `warm_up_tokens="all"` the number of rows does not change the results; otherwise it hardly
    changes them. If memory also holds the whole text, every segment length gives the results of
    one pass. With a shorter memory results depend on the segment length, because a token also sees
    the earlier tokens of its own segment. `same_length` with relative positions removes this
    dependence.

    Raises:
        ValueError: If a value is out of its range, or does not fit the others.
    """

    batch_size: Annotated[int, positive(MAX_ROWS)] = 10
    """Largest number of rows that are read in parallel, each from its own position in the split. A
    short split has fewer rows if `warm_up_tokens` is None."""
    segment_length: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Tokens that a row reads in one step, `T`. None means the model's setting."""
    memory_length: Annotated[int | None, not_negative(MAX_TOKENS)] = None
    """Remembered tokens, `M`. None means the model's setting."""
    clamp_length: Annotated[int | None, positive(MAX_DISTANCE)] = None
    """Larger distances share the encoding of this distance. A value of `T + M` or more has no
    effect. None means the model's setting."""
    same_length: bool | None = None
    """Whether every query sees the same number of keys. None means the model's setting."""
    same_length_keys: Literal["memory_and_self", "memory"] | None = None
    """Number of keys that a query sees with `same_length`. None means the model's setting."""
    warm_up_tokens: Annotated[int | Literal["all"] | None, not_negative()] = None
    """Tokens that a row reads before its first scored token. The number is rounded up so that all
    rows are cut at multiples of `T`. "all" means every token that can affect the result, about
    `L * (M + T)`. None means the tokens that fill the memory; the number of rows is then limited
    so that at most a quarter of the split is read twice."""
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras dtype policy of evaluations; the policy of training does not affect it. In bfloat16 the
    nats of a token differ by up to 0.3 from float32."""
    attention_kernel: Literal["auto", "always", "never"] | None = None
    """Whether attention uses a kernel that keeps its scores on a TPU's chip. None means the setting
    of training."""
    dynamic_learning_rate: Annotated[float | None, not_negative()] = None
    """Learning rate of dynamic evaluation, which trains the weights on the text that it has scored.
    None means fixed weights."""
    dynamic_decay: Annotated[float | None, FRACTION] = None
    """Fraction of their distance by which the weights return to their trained values after each
    segment. None means 0."""

    def validate(self) -> None:
        if self.dynamic_learning_rate is None:
            if self.dynamic_decay is not None:
                self.refuse("`dynamic_decay` needs a `dynamic_learning_rate`.", "dynamic_decay")
        elif self.batch_size != 1:
            self.refuse(
                "`batch_size` must be 1 with `dynamic_learning_rate`: weights follow one text.",
                "batch_size",
            )

    def check_model(self, model: AnyModelConfig) -> None:
        """Raises ValueError if a query of the model would see no key."""
        memory_length = model.memory_length if self.memory_length is None else self.memory_length
        if isinstance(model, ModelConfig) and not memory_length:
            same_length = model.same_length if self.same_length is None else self.same_length
            keys = self.same_length_keys or model.same_length_keys
            if same_length and keys == "memory":
                self.refuse(
                    "`evaluation.same_length_keys=memory` needs a memory.", "same_length_keys"
                )


TaskKind = Literal["classification", "regression"]
"""Kinds of tasks. The kind determines the loss and the form of the answers."""

LOWER_IS_BETTER = frozenset({"mean_squared_error"})
"""Metrics of tasks whose lowest value is the best."""

_MAX_LABELS = 65_536
_FIELDS_OF_TASK = {
    "classification": frozenset({"labels", "class_weights"}),
    "regression": frozenset(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(FrozenConfig):
    """Task on texts: the answers, and how the texts of an example are joined and read.

    Raises:
        ValueError: If a value is out of its range, or does not fit the kind.
    """

    kind: TaskKind
    """Kind of the answers: a class or a number for each example."""
    labels: tuple[str, ...] | None = None
    """Classes in the order of the outputs, only for "classification"."""
    metric: str
    """Name of the metric that selects the best step; it is computed on the validation examples."""
    has_pairs: bool = False
    """Whether an example is a pair of texts; an export then takes two texts."""
    pooling: Literal["last", "mean"] = "last"
    """Input of the head: the state of the last token, or the mean of the states of all tokens."""
    separator: str = "\n"
    """Text between the texts of an example, and after the last one."""
    max_tokens: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Number of tokens that are read from the beginning of a text. None means all tokens."""
    head_dropout: Annotated[float, FRACTION_BELOW_ONE] = 0.1
    """Dropout rate on the inputs of the head."""
    class_weights: tuple[float, ...] | None = None
    """Weight of the loss of each class, in the order of `labels`. None means equal weights."""

    def validate(self) -> None:
        self.require_use("kind", _FIELDS_OF_TASK)
        if self.kind != "classification":
            return
        labels, weights = self.labels or (), self.class_weights
        self.require("labels", 2 <= len(labels) <= _MAX_LABELS, f"name 2 to {_MAX_LABELS} classes")
        self.require("labels", len(set(labels)) == len(labels), "name each class once")
        self.require("labels", all(labels), "have no empty name")
        if weights is not None:
            self.require("class_weights", len(weights) == len(labels), "have one weight per label")
            is_usable = min(weights) >= 0.0 and max(weights) > 0.0
            self.require("class_weights", is_usable, "have no negative weight, and one above 0")

    @property
    def num_outputs(self) -> int:
        """Number of outputs of the head."""
        return len(self.labels) if self.labels is not None else 1


# Settings of an evaluation, and of training, that a recurrent model does not use.
_ATTENTION_ONLY = (
    "attention_kernel",
    "memory_length",
    "clamp_length",
    "same_length",
    "same_length_keys",
)
_ATTENTION_ONLY_IN_TRAINING = (
    "adapter_rank",
    "document_boundaries",
    "rematerialize",
    "attention_kernel",
)
# Settings of training on one stream of tokens. The examples of a task are independent.
_LANGUAGE_MODELLING_ONLY = ("document_boundaries", "evaluate_tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluatedModel(FrozenConfig):
    """Base class of a model with its task and the settings of its evaluation.

    A subclass has settings that decide `masks_documents` and `may_compile`.
    """

    model: AnyModelConfig
    """Settings of the model. In a file, `kind` is `"lstm"` or `"qrnn"`; a Transformer-XL has no
    `kind`."""
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    """Settings of evaluations during and after training."""
    task: TaskConfig | None = None
    """Task that the model is fine-tuned for. None means language modelling."""

    @property
    def masks_documents(self) -> bool:
        """True if attention and memory do not cross into earlier documents."""
        raise NotImplementedError

    @property
    def may_compile(self) -> bool:
        """True unless a setting forbids compilation with XLA."""
        raise NotImplementedError

    @property
    def resolved_evaluation(self) -> EvaluationConfig:
        """Settings of evaluations with an `attention_kernel`.

        If the setting is missing, it is the one of training, or "auto" without training.
        """
        return self.evaluation.replace(attention_kernel=self.evaluation.attention_kernel or "auto")

    def validate(self) -> None:
        if isinstance(self.model, RecurrentConfig):
            self._require_defaults("evaluation", _ATTENTION_ONLY, "a recurrent model")
        if self.task is not None:
            self._require_defaults("evaluation", ("dynamic_learning_rate",), "a task")

    def _require_defaults(self, section: str, names: tuple[str, ...], use: str) -> None:
        config = getattr(self, section)
        for name in names:
            if getattr(config, name) != getattr(type(config), name):
                self.refuse(
                    f"`{section}.{name}` must be {getattr(type(config), name)!r} for {use}.",
                    f"{section}.{name}",
                )

    def with_overrides(self, assignments: list[str]) -> Self:
        """Returns a copy with values changed by dotted names.

        Args:
            assignments: list of str such as `optimizer.learning_rate=1e-3`. `parse_setting`
                parses each value.

        Raises:
            ValueError: If a setting does not exist or a value is not valid.
        """
        values = self.to_dict()
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            section, _, field = name.strip().partition(".")
            fields = values.get(section)
            if not (equals and isinstance(fields, dict) and field in fields):
                sections = {key: each for key, each in values.items() if isinstance(each, dict)}
                known = [f"{key}.{name}" for key, each in sections.items() for name in each]
                raise ValueError(
                    "A setting must be `section.field=value` of a field that `txl config` lists."
                    f"{did_you_mean(name.strip(), known)} Received: {assignment[:200]}"
                )
            fields[field] = parse_setting(text.strip())
        return type(self).from_dict(values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig(EvaluatedModel):
    """All settings of an experiment, which do not include its data and devices."""

    training: TrainingConfig
    """Settings of the training run."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    """Settings of the optimizer."""

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        if self.task is None:
            del values["task"]
        return values

    def validate(self) -> None:
        super().validate()
        rank = self.training.adapter_rank
        if isinstance(self.model, RecurrentConfig):
            self._require_defaults("training", _ATTENTION_ONLY_IN_TRAINING, "a recurrent model")
        elif rank is not None:
            width = self.model.num_heads * self.model.head_dim
            highest = min(self.model.hidden_dim, width, self.model.intermediate_dim)
            if rank > highest:
                self.refuse(
                    f"`training.adapter_rank` must be at most {highest}, the smallest width.",
                    "training.adapter_rank",
                )
        if self.task is not None:
            self._require_defaults("training", _LANGUAGE_MODELLING_ONLY, "a task")
        _ = self.frozen_parts  # refuses parts that the model does not have
        if self.optimizer.warmup_steps >= self.training.num_steps:
            self.refuse(
                "`optimizer.warmup_steps` must be less than `training.num_steps`.",
                "optimizer.warmup_steps",
                "training.num_steps",
            )

    @property
    def masks_documents(self) -> bool:
        return self.training.document_boundaries == "mask"

    @property
    def may_compile(self) -> bool:
        return self.training.jit_compile is not False

    @property
    def resolved_evaluation(self) -> EvaluationConfig:
        kernel = self.evaluation.attention_kernel or self.training.attention_kernel
        return self.evaluation.replace(attention_kernel=kernel)

    @property
    def frozen_parts(self) -> FrozenParts:
        """Parts of the model that are not trained, see `TrainingConfig.freeze`."""
        patterns, has_head = self.training.freeze or (), self.task is not None
        return FrozenParts.parse(patterns, self.model.num_layers, has_head=has_head)

    def with_policy(self, dtype_policy: str) -> Self:
        """Returns a copy with another `training.dtype_policy` if it is "auto"."""
        is_auto = self.training.dtype_policy == "auto"
        return self.with_overrides([f"training.dtype_policy={dtype_policy}"] if is_auto else [])
