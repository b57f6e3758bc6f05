"""Configuration of an experiment: the sections of its settings, and the rules between them.

`OptimizerConfig`, `TrainingConfig`, `EvaluationConfig` and `TaskConfig` are sections beside the
model. `ExperimentConfig` joins them all; `EvaluatedModel` joins those that an evaluation needs.
"""

import dataclasses
from typing import Any, Self

from txl_tf.config.base import FrozenConfig
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.config.model import AnyModelConfig, RecurrentConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.config.setting_values import parse_setting
from txl_tf.config.task import TaskConfig
from txl_tf.config.training import TrainingConfig
from txl_tf.errors import did_you_mean

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
                settings = [f"{key}.{name}" for key, each in sections.items() for name in each]
                raise ValueError(
                    "A setting must be `section.field=value` of a field that `txl config` lists."
                    f"{did_you_mean(name.strip(), settings)} Received: {assignment[:200]}"
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
