"""A study: a base experiment, the rows that change it, seeds and evaluation."""

import dataclasses
import itertools
import math
import os
from pathlib import Path
from typing import Any

from pipelines.analysis.ablation_row import AblationCell, AblationRow, StudyEvaluation
from pipelines.arguments import load_experiment, override, read_settings
from txl_tf.config.base import shown_value
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.models.sizes import equal_memory_segment_length

STUDIES_FOLDER = Path(__file__).resolve().parent.parent / "configs" / "studies"
_KEYS = {"experiment", "set", "seeds", "evaluation", "axes", "rows"}
_AXES = ("recurrence", "position_encoding", "loss_positions")
_MAX_CELLS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationStudy:
    """Definition of an ablation study: base experiment, rows, seeds and evaluation.

    Attributes:
        base: `ExperimentConfig` that all rows have in common.
        rows: tuple of `AblationRow`, with different names.
        seeds: tuple of int. Every row is trained once with each.
        evaluation: `StudyEvaluation`.
    """

    base: ExperimentConfig
    rows: tuple[AblationRow, ...]
    seeds: tuple[int, ...]
    evaluation: StudyEvaluation

    def cells(self) -> list[AblationCell]:
        """Returns all runs, the first seed of all rows first.

        Raises:
            ValueError: If a row changes a value that is not valid.
        """
        return [
            AblationCell(
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
    """Reads a study.

    Args:
        source: str. A name in `pipelines/configs/studies`, or a `.json` or
            `.toml` file.
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
        study.cells()
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
    if base.training.document_boundaries == "mask" and not all(row.recurrence for row in rows):
        raise ValueError(
            "Without recurrence, evaluation reads windows that do not tell documents apart. "
            f"Received: document_boundaries={base.training.document_boundaries!r}"
        )
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
    num_cells = (num_rows + len(values.get("rows", []))) * len(values["seeds"])
    if num_cells > _MAX_CELLS:
        raise ValueError(f"A study has at most {_MAX_CELLS} runs. Received: {num_cells} runs")


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
