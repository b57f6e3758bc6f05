"""Ablation studies: base experiment, rows that change it, seeds, evaluation and their runs."""

import dataclasses
import itertools
import math
import os
import re
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from txl_tf.config.base import MAX_TOKENS, FrozenConfig, shown_value
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import LEARNED_ENCODINGS, ModelConfig, PositionEncoding
from txl_tf.config.settings import FRACTION_BELOW_ONE, Range, positive
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.models.sizes import equal_memory_segment_length
from txl_tf.run_description import identity

from ..arguments import load_experiment, override, read_settings

STUDIES_FOLDER = Path(__file__).resolve().parent.parent / "configs" / "studies"
_KEYS = {"experiment", "set", "seeds", "evaluation", "axes", "rows"}
_AXES = ("recurrence", "position_encoding", "loss_positions")
_MAX_RUNS = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(FrozenConfig):
    """Model parts of one row: recurrence, encoding and loss (Table 5 of Dai et al., 2019)."""

    RANGES: ClassVar = {"segment_length": positive(MAX_TOKENS)}

    recurrence: bool = True
    """Whether segments are connected by a memory."""
    position_encoding: PositionEncoding = "transformer_xl"
    """Positions of Dai et al., Shaw et al. (with biases, or of two terms as the paper words it),
    Vaswani et al., or Al-Rfou et al."""
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
        length = self.segment_length
        if length is not None and self.equal_memory_to is not None:
            raise ValueError(
                f"`equal_memory_to` decides the segment length. Received: segment_length={length}"
            )
        if self.set and not self.name:
            raise ValueError(f"A row with `set` needs a `name`. Received: set={self.set}")
        if not self.name:
            parts = ["recurrence" if self.recurrence else "none", self.position_encoding]
            parts += [self.loss_positions, *([f"t{length}"] if length is not None else [])]
            parts += ["equal_memory"] if self.equal_memory_to is not None else []
            object.__setattr__(self, "name", "-".join(parts))
        rule = "be made of small letters, digits, `_`, `.` and `-`, at most 100"
        self.require("name", _NAME.fullmatch(self.name) is not None, rule)

    def experiment(
        self, base: ExperimentConfig, seed: int, segment_length: int | None = None
    ) -> ExperimentConfig:
        """Builds the experiment of one run of this row; a wrong value of `set` is a ValueError.

        Settings of the base that another encoding does not know are left out:
        `clamp_length` and `share_attention_biases`. Learned tables have a
        place for every distance that training sees, `T + M`, and none more.

        Args:
            base: `ExperimentConfig` that all rows have in common.
            seed: int. Seed of the run.
            segment_length: optional int. `T`, where the row leaves it open and
                it is not the base's.
        """
        length = self.segment_length or segment_length or base.model.segment_length
        memory_length = base.model.memory_length if self.recurrence else 0
        has_table = self.position_encoding in LEARNED_ENCODINGS
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
    """Attention length of an evaluation: by memory or by sliding window."""

    length: int
    """Tokens before the predicted one: the memory's length with recurrence, else the window's."""
    segment_length: int
    """Tokens per row and step."""
    memory_length: int
    """Tokens remembered."""
    same_length: bool
    """Whether every query sees equally many keys."""
    stride: int | None
    """Tokens that a window scores; `None` with recurrence, where nothing is read twice."""
    is_training_length: bool
    """Whether training used the same lengths."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyEvaluation(FrozenConfig):
    """Attention lengths and the text they are measured on.

    A model with recurrence reads segments of the length it was trained with
    and remembers more or fewer tokens. One without reads windows that overlap:
    every window is computed as a whole, and its last `window_stride` tokens are
    scored.
    """

    RANGES: ClassVar = {
        "num_tokens": Range(2),
        "window_stride": positive(),
        "tolerance": FRACTION_BELOW_ONE,
    }

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
        memories, windows, stride = self.memory_lengths, self.window_lengths, self.window_stride
        for name, lengths in (("memory_lengths", memories), ("window_lengths", windows)):
            is_short = all(length <= MAX_TOKENS for length in lengths)
            self.require(name, is_short, f"be at most {MAX_TOKENS}")
        self.require("memory_lengths", min(memories, default=0) >= 0, "not be negative")
        rule = f"not be less than `window_stride`, {stride}"
        self.require("window_lengths", min(windows, default=stride) >= stride, rule)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRun:
    """One run of an ablation study: its row, seed, experiment and evaluation."""

    row: AblationRow
    seed: int
    experiment: ExperimentConfig
    evaluation: StudyEvaluation

    @property
    def name(self) -> str:
        """Name of the run, and path of its folder in that of the study."""
        return f"{self.row.name}/seed-{self.seed}"

    def attention_lengths(self) -> list[AttentionLength]:
        """Returns the lengths to evaluate at, that of training first."""
        is_recurrent = cast(ModelConfig, self.experiment.model).recurrence
        return self._memory_lengths() if is_recurrent else self._window_lengths()

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
        """Returns the settings that decide all figures of the run, as JSON values.

        Attention lengths are not among them: more can be measured later. `data`
        is what `data_identity` returned.
        """
        return {
            **identity(self.experiment, data),
            "evaluation_split": self.evaluation.split,
            "evaluation_tokens": self.evaluation.num_tokens,
            "evaluation_rows": self.experiment.evaluation.batch_size,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationStudy:
    """Definition of an ablation study: every row is trained once with each seed."""

    base: ExperimentConfig
    """The experiment that all rows have in common."""
    rows: tuple[AblationRow, ...]
    """Rows, with different names."""
    seeds: tuple[int, ...]
    evaluation: StudyEvaluation

    def runs(self) -> list[AblationRun]:
        """Returns all runs, the first seed of all rows first."""
        return [
            AblationRun(
                row=row,
                seed=seed,
                experiment=row.experiment(self.base, seed, self._segment_length(row)),
                evaluation=self.evaluation,
            )
            for seed in self.seeds
            for row in self.rows
        ]

    def _segment_length(self, row: AblationRow) -> int | None:
        if row.equal_memory_to is None:
            return None
        reference = next(other for other in self.rows if other.name == row.equal_memory_to)
        seed = self.seeds[0]
        return equal_memory_segment_length(
            reference.experiment(self.base, seed), row.experiment(self.base, seed)
        )


def load_study(source: str, overrides: list[str]) -> AblationStudy:
    """Reads a study by its name in `pipelines/configs/studies`, or from a file.

    Args:
        source: str. The name, or a `.json` or `.toml` file.
        overrides: list of str that change the base experiment.

    Raises:
        InputMissingError: If there is neither such a name nor such a file.
        UsageError: If a value is not valid.
    """
    path = STUDIES_FOLDER / f"{source}.toml" if "/" not in source else Path(source)
    path = path if os.path.isfile(path) else Path(source)
    if not os.path.isfile(path):
        names = sorted(file.stem for file in STUDIES_FOLDER.glob("*.toml"))
        raise InputMissingError(
            "There is no study of this name and no such file.",
            where=f"--study {source}",
            remedy=f"Names are: {', '.join(names)}; files end in .json or .toml.",
        )
    try:
        study = _study(read_settings(path), overrides, path.parent)
        study.runs()
    except ValueError as error:
        raise UsageError(f"{error}", where=str(path), remedy="Correct the file.") from error
    return study


def _study(values: dict[str, Any], overrides: list[str], folder: Path) -> AblationStudy:
    if not {"experiment", "seeds"} <= set(values) <= _KEYS:
        raise ValueError(
            f"A study has `experiment`, `seeds`, and of {', '.join(sorted(_KEYS))} what it needs. "
            f"Received: {', '.join(values)}"
        )
    _check_types(values)
    base = _base(values["experiment"], folder)
    base = override(base.with_overrides(values.get("set", [])), overrides)
    axes = values.get("axes", {})
    rows = [
        AblationRow(**dict(zip(axes, values_of_row, strict=True)))
        for values_of_row in (itertools.product(*axes.values()) if axes else ())
    ]
    rows += [AblationRow.from_dict(row) for row in values.get("rows", [])]
    seeds = values["seeds"]
    _check(rows, seeds)
    if not isinstance(base.model, ModelConfig):
        raise ValueError(
            "Rows change a Transformer-XL; other models are runs of their own. "
            f"Received: a model of kind {base.model.kind!r}"
        )
    return AblationStudy(
        base=base,
        rows=tuple(rows),
        seeds=tuple(seeds),
        evaluation=StudyEvaluation.from_dict(values.get("evaluation", {})),
    )


def _base(experiment: Any, folder: Path) -> ExperimentConfig:
    if isinstance(experiment, dict):
        return ExperimentConfig.from_dict(experiment)
    if not isinstance(experiment, str):
        raise ValueError(
            f"`experiment` is a name, a file or its sections. Received: {shown_value(experiment)}"
        )
    # A file that a study names is beside it.
    beside = folder / experiment
    return load_experiment(str(beside) if os.path.isfile(beside) else experiment, [])


def _check_types(values: dict[str, Any]) -> None:
    """Raises ValueError where a part of a study is of another kind, or there is too much of it."""
    kinds = {"seeds": (list, int), "set": (list, str), "rows": (list, dict)}
    for name, (kind, item_kind) in kinds.items():
        value = values.get(name, [])
        if type(value) is not kind or any(type(item) is not item_kind for item in value):
            raise ValueError(
                f"`{name}` must be a list of {item_kind.__name__}. "
                f"Received: {name}={shown_value(value)}"
            )
    axes = values.get("axes", {})
    if not isinstance(axes, dict) or not all(isinstance(axis, list) for axis in axes.values()):
        raise ValueError(f"`axes` must be lists by name. Received: axes={shown_value(axes)}")
    if unknown := sorted(set(axes) - set(_AXES)):
        raise ValueError(f"Axes are {', '.join(_AXES)}. Received: {', '.join(unknown)}")
    num_rows = math.prod(map(len, axes.values())) if axes else 0
    num_runs = (num_rows + len(values.get("rows", []))) * len(values["seeds"])
    if num_runs > _MAX_RUNS:
        raise ValueError(f"A study has at most {_MAX_RUNS} runs. Received: {num_runs} runs")


def _check(rows: list[AblationRow], seeds: list[int]) -> None:
    if not rows:
        raise ValueError("A study needs `axes` or `rows`. Received: neither")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"`seeds` must be different integers, one or more. Received: {seeds}")
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        raise ValueError(f"Rows must have different names. Received: {names}")
    for row in rows:
        # A budget that is itself made equal to another would depend on an order.
        budgets = [other.name for other in rows if other.equal_memory_to is None]
        if row.equal_memory_to is not None and row.equal_memory_to not in budgets:
            raise ValueError(
                "`equal_memory_to` names a row whose segment length is given. "
                f"Received: equal_memory_to={row.equal_memory_to!r}"
            )
