"""Settings of training."""

import dataclasses
from typing import Annotated, Literal

from txl_tf.config.base import FRACTION_WITHIN, FrozenConfig, not_negative, positive
from txl_tf.config.limits import MAX_ROWS, MAX_STEPS, MAX_STEPS_PER_LOOP


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
