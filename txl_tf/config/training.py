"""Configuration of a training run: batch, steps, intervals, precision, averages."""

import dataclasses
from typing import ClassVar, Literal

from txl_tf.config import settings
from txl_tf.config.base import MAX_ROWS, MAX_STEPS, MAX_STEPS_PER_LOOP, FrozenConfig
from txl_tf.config.frozen_parts import check_adapters


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
        "stop_after_evaluations": settings.positive(),
        "adapter_rank": settings.positive(),
        "adapter_alpha": settings.positive(),
        "average_weights_after_evaluations": settings.positive(MAX_STEPS_PER_LOOP),
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
    evaluate_tokens: int | Literal["all"] | None = None
    """Tokens that evaluations before the last step read, from the beginning of the split. None: a
    tenth of the tokens trained on since the one before, so that they take at most a tenth of the
    time; but all where they decide on the learning rate, the average or the end of the run."""
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
    to TF32. Exact ones take a TPU six passes instead of one. Evaluations have exact ones."""
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
    average_weights_from_step: int | None = None
    """First step of which the weights are averaged, see `WeightAverage`; None: no average."""
    average_weights_after_evaluations: int | None = None
    """Evaluations without a gain after which the weights are averaged from then on, see
    `NonMonotoneTrigger`; None: `average_weights_from_step` decides. 5 is usual."""
    average_weights_decay: float | None = None
    """Decay of an exponential average; None: all steps count the same."""
    stop_after_evaluations: int | None = None
    """Evaluations in a row without a better one after which the run ends; None: it does not."""
    freeze: tuple[str, ...] | None = None
    """Parts that are not trained: `embedding`, `softmax`, `layers`, `layers:3` or `layers:0-3`,
    counted from 0. None: all are trained."""

    adapter_rank: int | None = None
    """Rank of low-rank adapters, see `Adapters`: all else of the model is frozen. None: none."""
    adapter_alpha: float | None = None
    """Adapters add `adapter_alpha / adapter_rank` times the product of their factors. None: the
    product as it is."""

    def validate(self) -> None:
        if self.gradient_accumulation_steps > self.global_batch_size:
            raise ValueError(
                "`gradient_accumulation_steps` must be at most `global_batch_size`: a part has a "
                "row. Received: gradient_accumulation_steps="
                f"{self.gradient_accumulation_steps}, global_batch_size={self.global_batch_size}"
            )
        is_named = self.freeze is None or len(self.freeze) > 0
        self.require("freeze", is_named, "name a part, or be None")
        check_adapters(self.adapter_rank, self.adapter_alpha, self.freeze)
        start = self.average_weights_from_step
        if start is not None and not 0 < start <= self.num_steps:
            raise ValueError(
                "`average_weights_from_step` must be between 1 and `num_steps`, or None. Received: "
                f"average_weights_from_step={start}, num_steps={self.num_steps}"
            )
        if None not in (start, self.average_weights_after_evaluations):
            raise ValueError(
                "`average_weights_from_step` and `average_weights_after_evaluations` exclude "
                f"each other. Received: {start}, {self.average_weights_after_evaluations}"
            )
        decay = self.average_weights_decay
        if decay is not None and not (self.averages_weights and 0.0 < decay < 1.0):
            raise ValueError(
                "`average_weights_decay` must be between 0 and 1 and needs "
                "`average_weights_from_step` or `average_weights_after_evaluations`, or None. "
                f"Received: average_weights_decay={decay}, average_weights_from_step={start}"
            )

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
