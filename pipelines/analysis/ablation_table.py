"""The figures of an ablation for people: the table of the paper and what follows from it."""

from collections.abc import Sequence
from typing import Any, cast

from pipelines.analysis.ablation_findings import Finding, findings
from pipelines.analysis.row_summary import RowSummary
from pipelines.analysis.training_memory import training_memory_bytes
from txl_tf.config.model_config import ModelConfig
from txl_tf.models.parameter_count import num_parameters

_ENCODINGS = {
    "transformer_xl": "Dai et al.",
    "shaw": "Shaw et al.",
    "sinusoidal": "Vaswani et al.",
    "learned": "Al-Rfou et al.",
}
_LOSSES = {"all": "full", "last_half": "half"}
_HEAD = (
    *("remark", "recurrence", "encoding", "loss", "T", "parameters", "training memory"),
    *("PPL init", "PPL best", "Attn Len", "seeds", "published (WikiText-103)"),
)


class AblationTable:
    """Table and findings of the rows that have a finished seed.

    Args:
        rows: sequence of `RowSummary`.
    """

    def __init__(self, rows: Sequence[RowSummary]) -> None:
        self._rows = list(rows)
        self._findings: list[Finding] = findings(self._rows)

    def text(self) -> str:
        """The table in columns, with the findings below."""
        lines = [list(_HEAD), *map(_cells, self._rows)]
        widths = [max(len(line[index]) for line in lines) for index in range(len(_HEAD))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*table, "", *(finding.describe() for finding in self._findings)])

    def markdown(self) -> str:
        """The same for a README."""
        lines = [list(_HEAD), ["---"] * len(_HEAD), *map(_cells, self._rows)]
        table = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([*table, "", *(f"- {each.describe()}" for each in self._findings), ""])

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain JSON types."""
        return {
            "rows": [row.to_dict() for row in self._rows],
            "findings": [finding.to_dict() for finding in self._findings],
        }


def _cells(summary: RowSummary) -> list[str]:
    row, model = summary.cell.row, cast(ModelConfig, summary.cell.experiment.model)
    memory_bytes = training_memory_bytes(summary.cell.experiment)
    return [
        row.remark or "-",
        "yes" if model.recurrence else "no",
        _ENCODINGS[model.position_encoding],
        _LOSSES[summary.cell.experiment.training.loss_positions],
        str(model.segment_length),
        f"{num_parameters(model) / 1e6:.2f} M",
        f"{memory_bytes / 1e6:.0f} MB",
        summary.initial.describe(),
        summary.best.describe(),
        str(summary.sufficient_length.length),
        str(len(summary.seeds)),
        "-" if summary.published is None else summary.published.describe(),
    ]
