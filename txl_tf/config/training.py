"""Configuration of a training run: batch, steps, intervals, precision, averages."""

import dataclasses
from typing import Annotated, Literal

from txl_tf.config import settings
from txl_tf.config.base import MAX_ROWS, MAX_STEPS, MAX_STEPS_PER_LOOP, FrozenConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig(FrozenConfig):
    """Batch size, steps, intervals and precision of a training run.

    Raises:
        ValueError: If a value is out of its range.
    """

    global_batch_size: Annotated[int, settings.positive(MAX_ROWS)]
    """Rows of all replicas together; each replica takes an equal share."""
    num_steps: Annotated[int, settings.positive(MAX_STEPS)]
    """Steps of the whole run."""
    steps_per_loop: Annotated[int, settings.positive(MAX_STEPS_PER_LOOP)] = 100
    """Steps that run on the device before the host looks again."""
    checkpoint_every_steps: Annotated[int, settings.positive()] = 1000
    """Steps between two checkpoints; the last step always has one."""
    evaluate_every_steps: Annotated[int | None, settings.positive()] = None
    """Steps between evaluations of the validation split; None: about a tenth of the run. The last
    step always has one."""
    evaluate_tokens: Annotated[int | Literal["all"] | None, settings.positive()] = None
    """Tokens that evaluations before the last step read, from the beginning of the split. None: a
    tenth of the tokens trained on since the one before, so that they take at most a tenth of the
    time; but all where they decide on the learning rate, the average or the end of the run."""
    num_kept_checkpoints: Annotated[int, settings.positive()] = 3
    """How many of the newest checkpoints are kept."""
    rotate_epochs: bool = True
    """Whether each epoch cuts the corpus at other places, decided by the seed."""
    seed: Annotated[int, settings.not_negative(MAX_STEPS)] = 0
    """Decides initial weights, dropout masks and rotations."""
    dtype_policy: Literal["float32", "mixed_bfloat16"] = "float32"
    """Keras dtype policy of the model."""
    tensor_float_32: bool = False
    """Whether products of float32 numbers may round them first, on a TPU to bfloat16 and on a GPU
    to TF32. Exact ones take a TPU six passes instead of one. Evaluations have exact ones."""
    gradient_accumulation_steps: Annotated[int, settings.positive()] = 1
    """Parts of a replica's rows that are read one after the other, to save memory."""
    rematerialize: bool = False
    """Whether blocks are computed again in the backward pass instead of kept, to save memory."""
    attention_kernel: Literal["auto", "always", "never"] = "auto"
    """Whether attention keeps its scores on the chip where the TPU can, v4 and later; auto: v5e
    and later, and not where the scores are small."""
    on_non_finite: Literal["stop", "skip"] = "stop"
    """What a step with a loss or gradient that is not finite does; neither changes a weight."""
    spike_deviations: Annotated[float | None, settings.positive()] = None
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
    average_weights_from_step: Annotated[int | None, settings.positive(MAX_STEPS)] = None
    """First step of which the weights are averaged, see `WeightAverage`; None: no average."""
    average_weights_after_evaluations: Annotated[
        int | None, settings.positive(MAX_STEPS_PER_LOOP)
    ] = None
    """Evaluations without a gain after which the weights are averaged from then on, see
    `NonMonotoneTrigger`; None: `average_weights_from_step` decides. 5 is usual."""
    average_weights_decay: Annotated[float | None, settings.FRACTION_WITHIN] = None
    """Decay of an exponential average; None: all steps count the same."""
    stop_after_evaluations: Annotated[int | None, settings.positive()] = None
    """Evaluations in a row without a better one after which the run ends; None: it does not."""
    freeze: tuple[str, ...] | None = None
    """Parts that are not trained: `embedding`, `softmax`, `layers`, `layers:3` or `layers:0-3`,
    counted from 0. None: all are trained."""

    adapter_rank: Annotated[int | None, settings.positive()] = None
    """Rank of low-rank adapters, see `Adapters`: all else of the model is frozen. None: none."""
    adapter_alpha: Annotated[float | None, settings.positive()] = None
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
