"""One row of an ablation: which parts of the model are there."""

import dataclasses
import re
from typing import Literal, cast

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.frozen_config import FrozenConfig
from txl_tf.config.limits import MAX_TOKENS
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.shown_value import shown_value

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_WITH_TABLE = ("shaw", "learned")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(FrozenConfig):
    """Recurrence, encoding and loss, as in Table 5 of Dai et al. (2019).

    Raises:
        ValueError: If a value is out of its range.
    """

    recurrence: bool = True
    """Whether segments are connected by a memory."""
    position_encoding: Literal["transformer_xl", "shaw", "sinusoidal", "learned"] = "transformer_xl"
    """Positions of Dai et al., Shaw et al., Vaswani et al., or Al-Rfou et al."""
    loss_positions: Literal["all", "last_half"] = "all"
    """Full or half loss: the positions of a segment that are trained on."""
    segment_length: int | None = None
    """Tokens through which gradients flow, `T`; None: as in the base experiment."""
    equal_memory_to: str | None = None
    """Name of the row whose training memory this one may use; decides the segment length."""
    name: str = ""
    """Name of the row and of its folder; by default made of the values above."""
    remark: str = ""
    """What the row is, for the table."""
    set: tuple[str, ...] = ()
    """Further values by name, such as `model.num_layers=6`; the row then needs a name."""

    def validate(self) -> None:
        self.check_at_most({"segment_length": MAX_TOKENS})
        if self.segment_length is not None and self.segment_length <= 0:
            raise ValueError(
                f"`segment_length` must be positive. Received: segment_length={self.segment_length}"
            )
        if self.segment_length is not None and self.equal_memory_to is not None:
            raise ValueError(
                "`equal_memory_to` decides the segment length. "
                f"Received: segment_length={self.segment_length}"
            )
        if self.set and not self.name:
            raise ValueError(f"A row with `set` needs a `name`. Received: set={self.set}")
        if not self.name:
            object.__setattr__(self, "name", self._default_name())
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "`name` must be made of small letters, digits, `_`, `.` and `-`, at most 100. "
                f"Received: name={shown_value(self.name)}"
            )

    def _default_name(self) -> str:
        parts = [
            "recurrence" if self.recurrence else "none",
            self.position_encoding,
            self.loss_positions,
        ]
        if self.segment_length is not None:
            parts.append(f"t{self.segment_length}")
        if self.equal_memory_to is not None:
            parts.append("equal_memory")
        return "-".join(parts)

    def experiment(
        self, base: ExperimentConfig, seed: int, segment_length: int | None = None
    ) -> ExperimentConfig:
        """What a cell of this row trains.

        Settings of the base that another encoding does not know are left out:
        `clamp_length` and `share_attention_biases`. Learned tables have a
        place for every distance that training sees, `T + M`, and none more.

        Args:
            base: `ExperimentConfig` that all rows have in common.
            seed: int. Seed of the run.
            segment_length: optional int. `T`, where the row leaves it open and
                it is not the base's.

        Returns:
            The `ExperimentConfig`.

        Raises:
            ValueError: If a value of `set` is not valid.
        """
        length = self.segment_length or segment_length or base.model.segment_length
        memory_length = base.model.memory_length if self.recurrence else 0
        has_table = self.position_encoding in _WITH_TABLE
        is_own = self.position_encoding == "transformer_xl"
        model = base.model.replace(
            recurrence=self.recurrence,
            position_encoding=self.position_encoding,
            segment_length=length,
            memory_length=memory_length,
            num_positions=length + memory_length if has_table else None,
            clamp_length=None if has_table else base.model.clamp_length,
            share_attention_biases=cast(ModelConfig, base.model).share_attention_biases and is_own,
        )
        training = base.training.replace(loss_positions=self.loss_positions, seed=seed)
        evaluation = base.evaluation.replace(
            clamp_length=None if has_table else base.evaluation.clamp_length
        )
        experiment = base.replace(model=model, training=training, evaluation=evaluation)
        return experiment.with_overrides(list(self.set))
