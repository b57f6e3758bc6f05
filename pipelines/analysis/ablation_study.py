"""A study: a base experiment, the rows that change it, seeds and evaluation."""

import dataclasses
import itertools
import json
import tomllib
from pathlib import Path
from typing import Any

from pipelines.analysis.ablation_cell import AblationCell
from pipelines.analysis.ablation_row import AblationRow
from pipelines.analysis.study_evaluation import StudyEvaluation
from pipelines.analysis.training_memory import equal_memory_segment_length
from pipelines.experiments import load_experiment, override
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.errors import InputMissingError, UsageError

STUDIES_FOLDER = Path(__file__).resolve().parent.parent / "configs" / "studies"
_KEYS = {"experiment", "set", "seeds", "evaluation", "axes", "rows"}
_AXES = ("recurrence", "position_encoding", "loss_positions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationStudy:
    """Everything that an ablation trains and evaluates.

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
        """All runs, the first seed of all rows first.

        Returns:
            List of `AblationCell`.

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

    Returns:
        The `AblationStudy`.

    Raises:
        InputMissingError: If there is neither such a name nor such a file.
        UsageError: If a value is not valid.
    """
    path = STUDIES_FOLDER / f"{source}.toml" if "/" not in source else Path(source)
    path = path if path.is_file() else Path(source)
    if not path.is_file():
        names = sorted(file.stem for file in STUDIES_FOLDER.glob("*.toml"))
        raise InputMissingError(
            "There is no study of this name and no such file.",
            where=f"--study {source}",
            remedy=f"Names are: {', '.join(names)}; files end in .json or .toml.",
        )
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        study = _study(values, overrides, path.parent)
        study.cells()
    except (ValueError, TypeError) as error:
        raise UsageError(f"{error}".replace("\n", " "), where=str(path)) from error
    return study


def _study(values: dict[str, Any], overrides: list[str], folder: Path) -> AblationStudy:
    if not isinstance(values, dict) or not {"experiment", "seeds"} <= set(values) <= _KEYS:
        raise ValueError(
            f"A study has `experiment`, `seeds`, and of {', '.join(sorted(_KEYS))} what it needs. "
            f"Received: {', '.join(values) if isinstance(values, dict) else values!r}"
        )
    base = _base(values["experiment"], folder)
    base = override(base.with_overrides(list(values.get("set", []))), overrides)
    axes = values.get("axes", {})
    if unknown := sorted(set(axes) - set(_AXES)):
        raise ValueError(f"Axes are {', '.join(_AXES)}. Received: {', '.join(unknown)}")
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
            f"`experiment` is a name, a file or its sections. Received: {experiment!r}"
        )
    # A file that a study names is beside it.
    beside = folder / experiment
    return load_experiment(str(beside) if beside.is_file() else experiment, [])


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
