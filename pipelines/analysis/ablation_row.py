"""Rows of an ablation study, and the run for each row, seed and attention length."""

import dataclasses
import re
from typing import Any, Literal, Self, cast

from txl_tf.config.base import MAX_TOKENS, FrozenConfig, shown_value
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.run_description import identity

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")
_WITH_TABLE = ("shaw", "learned")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(FrozenConfig):
    """Model parts of one row: recurrence, encoding and loss (Table 5 of Dai et al., 2019).

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
        """Builds the experiment of one run of this row.

        Settings of the base that another encoding does not know are left out:
        `clamp_length` and `share_attention_biases`. Learned tables have a
        place for every distance that training sees, `T + M`, and none more.

        Args:
            base: `ExperimentConfig` that all rows have in common.
            seed: int. Seed of the run.
            segment_length: optional int. `T`, where the row leaves it open and
                it is not the base's.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionLength:
    """Attention length of an evaluation: by memory or by sliding window.

    Attributes:
        length: int. Tokens before the one that is predicted: the memory's
            length with recurrence, the window's without.
        segment_length: int. Tokens per row and step.
        memory_length: int. Tokens remembered.
        same_length: bool. Whether every query sees equally many keys.
        stride: optional int. Tokens that a window scores; `None` with
            recurrence, where nothing is read twice.
        is_training_length: bool. Whether training used the same lengths.
    """

    length: int
    segment_length: int
    memory_length: int
    same_length: bool
    stride: int | None
    is_training_length: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns the values as plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Reads what `to_dict` returned; a missing or unknown key is a TypeError."""
        return cls(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyEvaluation(FrozenConfig):
    """Attention lengths and the text they are measured on.

    A model with recurrence reads segments of the length it was trained with
    and remembers more or fewer tokens. One without reads windows that overlap:
    every window is computed as a whole, and its last `window_stride` tokens are
    scored.

    Raises:
        ValueError: If a value is out of its range.
    """

    split: str = "valid"
    """Split of the data set."""
    num_tokens: int | None = None
    """Tokens from the beginning of the split; None: all of it."""
    memory_lengths: tuple[int, ...] = ()
    """Memory lengths beside that of training; 0 is none at all."""
    window_lengths: tuple[int, ...] = ()
    """Window lengths beside training's segment length, for rows without recurrence."""
    window_stride: int = 1
    """Tokens that a window scores."""
    same_length: bool = True
    """Whether at these memory lengths every query sees equally many keys."""
    tolerance: float = 0.001
    """Share of the best perplexity by which a shorter length may be worse and still reach it."""

    def validate(self) -> None:
        if self.num_tokens is not None and self.num_tokens < 2:
            raise ValueError(
                f"`num_tokens` must be at least 2. Received: num_tokens={self.num_tokens}"
            )
        if self.window_stride <= 0:
            raise ValueError(
                f"`window_stride` must be positive. Received: window_stride={self.window_stride}"
            )
        if any(length > MAX_TOKENS for length in (*self.memory_lengths, *self.window_lengths)):
            raise ValueError(
                f"`memory_lengths` and `window_lengths` must be at most {MAX_TOKENS}. Received: "
                f"memory_lengths={self.memory_lengths}, window_lengths={self.window_lengths}"
            )
        if any(length < 0 for length in self.memory_lengths):
            raise ValueError(
                "`memory_lengths` must not be negative. "
                f"Received: memory_lengths={self.memory_lengths}"
            )
        if any(length < self.window_stride for length in self.window_lengths):
            raise ValueError(
                "`window_lengths` must not be less than `window_stride`. "
                f"Received: window_lengths={self.window_lengths}, "
                f"window_stride={self.window_stride}"
            )
        if not 0.0 <= self.tolerance < 1.0:
            raise ValueError(f"`tolerance` must be in [0, 1). Received: tolerance={self.tolerance}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationCell:
    """One run of an ablation study: its row, seed, experiment and evaluation.

    Attributes:
        row: `AblationRow`.
        seed: int.
        experiment: `ExperimentConfig` of the run.
        evaluation: `StudyEvaluation`.
    """

    row: AblationRow
    seed: int
    experiment: ExperimentConfig
    evaluation: StudyEvaluation

    @property
    def name(self) -> str:
        """Name of the cell, and path of its folder in that of the study."""
        return f"{self.row.name}/seed-{self.seed}"

    def attention_lengths(self) -> list[AttentionLength]:
        """Returns the lengths to evaluate at, that of training first."""
        if cast(ModelConfig, self.experiment.model).recurrence:
            return self._memory_lengths()
        return self._window_lengths()

    def _memory_lengths(self) -> list[AttentionLength]:
        model = self.experiment.model
        own = AttentionLength(
            length=model.memory_length,
            segment_length=model.segment_length,
            memory_length=model.memory_length,
            same_length=model.same_length,
            stride=None,
            is_training_length=True,
        )
        others = [
            dataclasses.replace(
                own,
                length=length,
                memory_length=length,
                # Without a memory, it would leave every query alone with itself.
                same_length=self.evaluation.same_length and length > 0,
                is_training_length=False,
            )
            for length in sorted(set(self.evaluation.memory_lengths))
        ]
        return [own, *others]

    def _window_lengths(self) -> list[AttentionLength]:
        own_length = self.experiment.model.segment_length
        lengths = sorted(set(self.evaluation.window_lengths) - {own_length})
        return [
            AttentionLength(
                length=length,
                segment_length=length,
                memory_length=0,
                same_length=False,
                stride=min(self.evaluation.window_stride, own_length),
                is_training_length=length == own_length,
            )
            for length in [own_length, *lengths]
        ]

    def settings(self, data: dict[str, Any]) -> dict[str, Any]:
        """Returns the settings that decide all figures of the run.

        Args:
            data: dict that `data_identity` returned.

        Returns:
            Dict of JSON values. Attention lengths are not among them: more of
            them can be measured later.
        """
        evaluation = self.evaluation
        return {
            **identity(self.experiment, data),
            "evaluation_split": evaluation.split,
            "evaluation_tokens": evaluation.num_tokens,
            "evaluation_rows": self.experiment.evaluation.batch_size,
        }
