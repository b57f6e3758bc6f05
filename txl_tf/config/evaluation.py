"""Settings of an evaluation."""

import dataclasses
from typing import Annotated, Literal

from txl_tf.config.base import FRACTION, FrozenConfig, not_negative, positive
from txl_tf.config.limits import MAX_DISTANCE, MAX_ROWS, MAX_TOKENS
from txl_tf.config.model import AnyModelConfig, ModelConfig


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
        if not isinstance(model, ModelConfig):
            return
        memory_length = model.memory_length if self.memory_length is None else self.memory_length
        if not memory_length or not model.recurrence:
            same_length = model.same_length if self.same_length is None else self.same_length
            keys = self.same_length_keys or model.same_length_keys
            if same_length and keys == "memory":
                self.refuse(
                    "`evaluation.same_length_keys=memory` needs a memory.", "same_length_keys"
                )
