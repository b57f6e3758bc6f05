"""What the paper found with its ablation, held against the figures of a study."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipelines.analysis.row_summary import RowSummary
from pipelines.analysis.sample_statistics import SampleStatistics

RECURRENCE = "recurrence helps"
RECURRENCE_AT_EQUAL_MEMORY = "recurrence helps within the same training memory"
ENCODING = "the encoding of Dai et al. is the best"
LONGER = "attention longer than in training helps"
FULL_LOSS = "full loss beats half loss"
_PUBLISHED = {True: "; published: yes", False: "; published: no", None: ""}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One comparison, seed by seed.

    Attributes:
        claim: str. What the comparison is about.
        conditions: str. Between which rows, or of which.
        before: `SampleStatistics` of the perplexity without.
        after: `SampleStatistics` of the perplexity with.
        published: optional bool. Whether Dai et al. found it to be so; `None`
            where they have no such rows.
    """

    claim: str
    conditions: str
    before: SampleStatistics
    after: SampleStatistics
    published: bool | None

    @property
    def difference(self) -> SampleStatistics:
        """By how much perplexity falls, paired by seed."""
        pairs = zip(self.before.values, self.after.values, strict=True)
        return SampleStatistics([before - after for before, after in pairs])

    @property
    def verdict(self) -> str:
        """`yes`, `no`, `within the spread`, or `one seed` where nothing can be said.

        Yes and no mean that the difference is positive or negative in the
        whole 95 % interval of its mean.
        """
        interval = self.difference.interval
        if interval is None:
            return "one seed"
        if interval[0] > 0.0:
            return "yes"
        return "no" if interval[1] < 0.0 else "within the spread"

    def describe(self) -> str:
        """The comparison in one line."""
        difference = self.difference
        interval = difference.interval
        known_to = ""
        if interval is not None:
            known_to = f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})"
        seeds = f"{difference.count} seed{'s' if difference.count > 1 else ''}"
        return (
            f"{self.claim}, {self.conditions}: {self.before.mean:.2f} -> {self.after.mean:.2f}, "
            f"difference {difference.describe()}{known_to} over {seeds}: {self.verdict}"
            f"{_PUBLISHED[self.published]}"
        )

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain JSON types."""
        return {
            "claim": self.claim,
            "conditions": self.conditions,
            "before": list(self.before.values),
            "after": list(self.after.values),
            "difference_mean": self.difference.mean,
            "difference_deviation": self.difference.deviation,
            "difference_interval": self.difference.interval,
            "verdict": self.verdict,
            "published": self.published,
        }


def findings(rows: Sequence[RowSummary]) -> list[Finding]:
    """Makes every comparison of the paper that the rows of a study allow.

    Rows are compared at their best attention lengths if they differ in one
    thing only.

    Args:
        rows: sequence of `RowSummary`.

    Returns:
        List of `Finding`, those of one claim together.
    """
    return [
        *_pairs(rows, RECURRENCE, "recurrence", True),
        *_equal_memory(rows),
        *_pairs(rows, ENCODING, "position_encoding", "transformer_xl"),
        *_longer(rows),
        *_pairs(rows, FULL_LOSS, "loss_positions", "all"),
    ]


def _aspects(summary: RowSummary) -> dict[str, Any]:
    row = summary.cell.row
    return {
        "recurrence": row.recurrence,
        "position_encoding": row.position_encoding,
        "loss_positions": row.loss_positions,
        "segment_length": summary.cell.experiment.model.segment_length,
        "set": row.set,
    }


def _describe(aspects: dict[str, Any], without: str) -> str:
    words = {
        "recurrence": "recurrence" if aspects["recurrence"] else "no recurrence",
        "position_encoding": aspects["position_encoding"],
        "loss_positions": {"all": "full loss", "last_half": "half loss"}[aspects["loss_positions"]],
        "segment_length": f"T = {aspects['segment_length']}",
        "set": " ".join(aspects["set"]),
    }
    return ", ".join(word for name, word in words.items() if word and name != without)


def _pairs(rows: Sequence[RowSummary], claim: str, aspect: str, better: Any) -> list[Finding]:
    found = []
    for after in rows:
        own = _aspects(after)
        if own[aspect] != better or after.cell.row.equal_memory_to is not None:
            continue
        for before in rows:
            other = _aspects(before)
            differing = [name for name in own if own[name] != other[name]]
            if differing == [aspect] and before.cell.row.equal_memory_to is None:
                conditions = _describe(own, without=aspect)
                if aspect == "position_encoding":
                    conditions = f"than {other[aspect]}, {conditions}"
                found.append(_compared(claim, conditions, before, after))
    return [finding for finding in found if finding is not None]


def _equal_memory(rows: Sequence[RowSummary]) -> list[Finding]:
    named = {summary.cell.row.name: summary for summary in rows}
    found = []
    for before in rows:
        after = named.get(before.cell.row.equal_memory_to or "")
        if after is None or not after.cell.row.recurrence or before.cell.row.recurrence:
            continue
        conditions = f"than {_describe(_aspects(before), without='recurrence')}"
        found.append(_compared(RECURRENCE_AT_EQUAL_MEMORY, conditions, before, after))
    return [finding for finding in found if finding is not None]


def _longer(rows: Sequence[RowSummary]) -> list[Finding]:
    found = []
    for summary in rows:
        longer = summary.best_longer_length
        if longer is None:
            continue
        aspects = _aspects(summary)
        own = summary.training_length.length
        conditions = f"{_describe(aspects, without='')}, {longer.length} instead of {own}"
        there = summary.published
        published = None if there is None else there.best < there.initial
        found.append(Finding(LONGER, conditions, summary.initial, summary.at(longer), published))
    return found


def _compared(claim: str, conditions: str, before: RowSummary, after: RowSummary) -> Finding | None:
    """Compares the seeds that both rows have; `None` where there are none."""
    seeds = [seed for seed in after.seeds if seed in before.seeds]
    if not seeds:
        return None
    without = before.perplexities[before.best_length]
    with_it = after.perplexities[after.best_length]
    published = None
    if before.published is not None and after.published is not None:
        published = after.published.best < before.published.best
    return Finding(
        claim,
        conditions,
        SampleStatistics([without[seed] for seed in seeds]),
        SampleStatistics([with_it[seed] for seed in seeds]),
        published,
    )
