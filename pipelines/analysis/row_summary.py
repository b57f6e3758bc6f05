"""What came out of a row of an ablation, over all seeds that are finished."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from pipelines.analysis.ablation_cell import AblationCell
from pipelines.analysis.attention_length import AttentionLength
from pipelines.analysis.cell_result import CellResult
from pipelines.analysis.published_ablation import (
    PUBLISHED_AT_EQUAL_MEMORY,
    PUBLISHED_ROWS,
    PublishedRow,
)
from pipelines.analysis.sample_statistics import SampleStatistics
from pipelines.analysis.training_memory import training_memory_bytes
from txl_tf.config.model_config import ModelConfig
from txl_tf.models.parameter_count import num_parameters


@dataclasses.dataclass(frozen=True)
class RowSummary:
    """Perplexities of a row at all attention lengths, seed by seed.

    Attributes:
        cell: `AblationCell` of the row, of any seed.
        perplexities: dict from `AttentionLength` to a dict from seed to
            perplexity; every length has the same seeds.
    """

    cell: AblationCell
    perplexities: Mapping[AttentionLength, Mapping[int, float]]

    @classmethod
    def of(cls, results: Mapping[int, tuple[AblationCell, CellResult]]) -> "RowSummary":
        """Builds it of the finished cells of a row.

        Args:
            results: dict from seed to the cell and its figures, one or more.

        Returns:
            The `RowSummary`.
        """
        cell = next(iter(results.values()))[0]
        return cls(
            cell,
            {
                length: {
                    seed: result.figures[length].perplexity for seed, (_, result) in results.items()
                }
                for length in cell.attention_lengths()
            },
        )

    @property
    def published(self) -> PublishedRow | None:
        """What Dai et al. publish of such a row, if it is one of theirs."""
        row = self.cell.row
        if row.set or row.segment_length is not None:
            return None
        is_in_budget = row.equal_memory_to is not None
        table = PUBLISHED_AT_EQUAL_MEMORY if is_in_budget else PUBLISHED_ROWS
        return table.get((row.recurrence, row.position_encoding, row.loss_positions))

    @property
    def seeds(self) -> list[int]:
        """The seeds that are finished."""
        return list(self.perplexities[self.training_length])

    @property
    def training_length(self) -> AttentionLength:
        """The lengths that training used."""
        return next(length for length in self.perplexities if length.is_training_length)

    @property
    def best_length(self) -> AttentionLength:
        """The length with the lowest perplexity on average, one for all seeds."""
        return min(self.perplexities, key=lambda length: self.at(length).mean)

    @property
    def sufficient_length(self) -> AttentionLength:
        """The shortest length that reaches the best perplexity within the study's tolerance."""
        limit = self.best.mean * (1.0 + self.cell.evaluation.tolerance)
        reaching = [length for length in self.perplexities if self.at(length).mean <= limit]
        return min(reaching, key=lambda length: length.length)

    @property
    def best_longer_length(self) -> AttentionLength | None:
        """The best length beyond that of training; `None` where none was measured."""
        own = self.training_length.length
        longer = [length for length in self.perplexities if length.length > own]
        return min(longer, key=lambda length: self.at(length).mean, default=None)

    @property
    def initial(self) -> SampleStatistics:
        """Perplexity at the lengths of training."""
        return self.at(self.training_length)

    @property
    def best(self) -> SampleStatistics:
        """Perplexity at the best length."""
        return self.at(self.best_length)

    def at(self, length: AttentionLength) -> SampleStatistics:
        """Perplexity at one length.

        Args:
            length: `AttentionLength` that was measured.

        Returns:
            The `SampleStatistics` over the seeds.
        """
        return SampleStatistics([*self.perplexities[length].values()])

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain JSON types."""
        experiment, row = self.cell.experiment, self.cell.row
        model = cast(ModelConfig, experiment.model)
        return {
            "name": row.name,
            "remark": row.remark,
            "recurrence": model.recurrence,
            "position_encoding": model.position_encoding,
            "loss_positions": experiment.training.loss_positions,
            "segment_length": experiment.model.segment_length,
            "memory_length": experiment.model.memory_length,
            "parameters": num_parameters(experiment.model),
            "training_memory_bytes": training_memory_bytes(experiment),
            "seeds": self.seeds,
            "perplexity_initial": _values(self.initial),
            "perplexity_best": _values(self.best),
            "best_attention_length": self.best_length.length,
            "attention_length": self.sufficient_length.length,
            "published": self.published and self.published._asdict(),
            "curve": [
                {**length.to_dict(), **_values(self.at(length))} for length in self.perplexities
            ],
        }


def _values(statistics: SampleStatistics) -> dict[str, Any]:
    return {
        "mean": statistics.mean,
        "deviation": statistics.deviation,
        "per_seed": list(statistics.values),
    }
