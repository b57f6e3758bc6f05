"""Statistics of an ablation over seeds, compared with the findings of the paper."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from txl_tf.config.model import ModelConfig
from txl_tf.models.sizes import num_parameters, training_memory_bytes

from .ablation_runs import AblationResult
from .ablation_study import AblationRun, AttentionLength

# Student's t, 97.5 %, for 1 to 30 degrees of freedom; beyond, the normal distribution's.
_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL_QUANTILE = 1.960


@dataclasses.dataclass(frozen=True)
class SampleStatistics:
    """Mean of a sample with its deviation and 95 % confidence interval.

    Args:
        values: sequence of float, one or more.
    """

    values: tuple[float, ...]

    def __init__(self, values: Sequence[float]) -> None:
        if not values:
            raise ValueError("`values` must not be empty. Received: no value")
        object.__setattr__(self, "values", tuple(values))

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Their standard deviation, of a sample; `None` of a single value."""
        return statistics.stdev(self.values) if self.count > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % confidence interval of the mean (Student's t); `None` for a single value."""
        if self.deviation is None:
            return None
        freedom = self.count - 1
        quantile = _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else _NORMAL_QUANTILE
        half = quantile * self.deviation / math.sqrt(self.count)
        return self.mean - half, self.mean + half

    def describe(self, digits: int = 2) -> str:
        """`27.02 +- 0.11`, or the mean alone of a single value."""
        spread = "" if self.deviation is None else f" +- {self.deviation:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


class PublishedRow(NamedTuple):
    """A row of the tables."""

    initial: float
    """Perplexity at the attention length of training."""
    best: float
    """Perplexity at the best length."""
    attention_length: int
    """The shortest length that reaches the best perplexity."""

    def describe(self) -> str:
        """Returns the row in short."""
        return f"{self.initial:.2f}, {self.best:.2f} at {self.attention_length}"


PUBLISHED_ROWS = {
    (True, "transformer_xl", "all"): PublishedRow(27.02, 26.77, 500),
    (True, "shaw", "all"): PublishedRow(27.94, 27.94, 256),
    (True, "transformer_xl", "last_half"): PublishedRow(28.69, 28.33, 460),
    (False, "transformer_xl", "all"): PublishedRow(29.59, 29.02, 260),
    (False, "transformer_xl", "last_half"): PublishedRow(30.10, 30.10, 120),
    (False, "shaw", "all"): PublishedRow(29.75, 29.75, 120),
    (False, "shaw", "last_half"): PublishedRow(30.50, 30.50, 120),
    (False, "sinusoidal", "last_half"): PublishedRow(30.97, 30.97, 120),
    (False, "learned", "last_half"): PublishedRow(31.16, 31.16, 120),
}
# Text and code of the paper differ in this encoding; the table does not say which one it is of.
PUBLISHED_ROWS |= {
    (recurrence, "shaw_two_terms", loss): row
    for (recurrence, encoding, loss), row in PUBLISHED_ROWS.items()
    if encoding == "shaw"
}
"""Table 5 of the OpenReview version, by recurrence, encoding and loss."""

PUBLISHED_AT_EQUAL_MEMORY = {
    (False, "transformer_xl", "all"): PublishedRow(28.43, 27.98, 400),
    (False, "transformer_xl", "last_half"): PublishedRow(28.83, 28.83, 120),
}
"""Table 8 of the same: the rows whose segments are longer because they have no memory."""

PUBLISHED_SEGMENTS = {
    (False, "transformer_xl", "all"): 176,
    (False, "transformer_xl", "last_half"): 172,
}
"""Their segment lengths, beside 128 of the others."""


@dataclasses.dataclass(frozen=True)
class RowSummary:
    """Perplexities of a row at all attention lengths, seed by seed."""

    run: AblationRun
    """A run of the row, of any seed."""
    perplexities: Mapping[AttentionLength, Mapping[int, float]]
    """Perplexity by attention length and seed; every length has the same seeds."""

    @classmethod
    def of(cls, results: Mapping[int, tuple[AblationRun, AblationResult]]) -> "RowSummary":
        """Builds the summary from the finished runs of a row, by seed; one or more."""
        run = next(iter(results.values()))[0]
        return cls(
            run,
            {
                length: {
                    seed: result.figures[length].perplexity for seed, (_, result) in results.items()
                }
                for length in run.attention_lengths()
            },
        )

    @property
    def published(self) -> PublishedRow | None:
        """Figures that Dai et al. (2019) publish for this row; `None` if they have no such row."""
        row = self.run.row
        kind = row.recurrence, row.position_encoding, row.loss_positions
        is_other_length = row.segment_length not in (None, PUBLISHED_SEGMENTS.get(kind))
        if row.set or is_other_length:
            return None
        is_in_budget = row.equal_memory_to is not None or row.segment_length is not None
        return (PUBLISHED_AT_EQUAL_MEMORY if is_in_budget else PUBLISHED_ROWS).get(kind)

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
        limit = self.best.mean * (1.0 + self.run.evaluation.tolerance)
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
        """Returns the perplexities at one length, over the seeds."""
        return SampleStatistics([*self.perplexities[length].values()])

    def to_dict(self) -> dict[str, Any]:
        """Returns all figures as plain JSON types."""
        experiment, row = self.run.experiment, self.run.row
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
                {**dataclasses.asdict(length), **_values(self.at(length))}
                for length in self.perplexities
            ],
        }


def _values(sample: SampleStatistics) -> dict[str, Any]:
    return {
        "mean": sample.mean,
        "deviation": sample.deviation,
        "per_seed": list(sample.values),
    }


RECURRENCE = "recurrence helps"
RECURRENCE_AT_EQUAL_MEMORY = "recurrence helps within the same computed training memory"
ENCODING = "the encoding of Dai et al. is the best"
LONGER = "the best attention length longer than in training helps (selected)"
FULL_LOSS = "full loss beats half loss"
_PUBLISHED = {True: "; published: yes", False: "; published: no", None: ""}


@dataclasses.dataclass(frozen=True)
class AblationFinding:
    """Comparison of two rows of a study, paired by seed."""

    claim: str
    """What the comparison is about."""
    conditions: str
    """Between which rows, or of which."""
    before: SampleStatistics
    """Perplexity without."""
    after: SampleStatistics
    """Perplexity with."""
    published: bool | None
    """Whether Dai et al. found it to be so; `None` where they have no such rows."""

    @property
    def difference(self) -> SampleStatistics:
        """Decrease of the perplexity, paired by seed."""
        pairs = zip(self.before.values, self.after.values, strict=True)
        return SampleStatistics([before - after for before, after in pairs])

    @property
    def verdict(self) -> str:
        """`yes` or `no` if the 95 % interval has one sign, `within the spread`, or `one seed`."""
        interval = self.difference.interval
        if interval is None:
            return "one seed"
        if interval[0] > 0.0:
            return "yes"
        return "no" if interval[1] < 0.0 else "within the spread"

    def describe(self) -> str:
        """Returns the comparison in one line."""
        difference = self.difference
        interval = difference.interval
        known_to = "" if interval is None else f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})"
        seeds = f"{difference.count} seed{'s' if difference.count > 1 else ''}"
        return (
            f"{self.claim}, {self.conditions}: {self.before.mean:.2f} -> {self.after.mean:.2f}, "
            f"difference {difference.describe()}{known_to} over {seeds}: {self.verdict}"
            f"{_PUBLISHED[self.published]}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns all figures as plain JSON types."""
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


def findings(rows: Sequence[RowSummary]) -> list[AblationFinding]:
    """Makes every comparison of the paper that the rows of a study allow, claim by claim.

    Rows are compared at their best attention lengths if they differ in one
    thing only. Best lengths are chosen on the compared figures. Of the lengths
    longer than training only the best is tested; this selection overstates
    small gains.
    """
    return [
        *_pairs(rows, RECURRENCE, "recurrence", True),
        *_equal_memory(rows),
        *_pairs(rows, ENCODING, "position_encoding", "transformer_xl"),
        *_longer(rows),
        *_pairs(rows, FULL_LOSS, "loss_positions", "all"),
    ]


def _aspects(summary: RowSummary) -> dict[str, Any]:
    row = summary.run.row
    return {
        "recurrence": row.recurrence,
        "position_encoding": row.position_encoding,
        "loss_positions": row.loss_positions,
        "segment_length": summary.run.experiment.model.segment_length,
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


def _pairs(
    rows: Sequence[RowSummary], claim: str, aspect: str, better: Any
) -> list[AblationFinding]:
    found = []
    for after in rows:
        own = _aspects(after)
        if own[aspect] != better or after.run.row.equal_memory_to is not None:
            continue
        for before in rows:
            other = _aspects(before)
            differing = [name for name in own if own[name] != other[name]]
            if differing == [aspect] and before.run.row.equal_memory_to is None:
                conditions = _describe(own, without=aspect)
                if aspect == "position_encoding":
                    conditions = f"than {other[aspect]}, {conditions}"
                found.append(_compared(claim, conditions, before, after))
    return [finding for finding in found if finding is not None]


def _equal_memory(rows: Sequence[RowSummary]) -> list[AblationFinding]:
    named = {summary.run.row.name: summary for summary in rows}
    found = []
    for before in rows:
        after = named.get(before.run.row.equal_memory_to or "")
        if after is None or not after.run.row.recurrence or before.run.row.recurrence:
            continue
        conditions = f"than {_describe(_aspects(before), without='recurrence')}"
        found.append(_compared(RECURRENCE_AT_EQUAL_MEMORY, conditions, before, after))
    return [finding for finding in found if finding is not None]


def _longer(rows: Sequence[RowSummary]) -> list[AblationFinding]:
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
        pair = summary.initial, summary.at(longer)
        found.append(AblationFinding(LONGER, conditions, *pair, published))
    return found


def _compared(
    claim: str, conditions: str, before: RowSummary, after: RowSummary
) -> AblationFinding | None:
    """Compares two rows on the seeds that both have; returns `None` without common seeds."""
    seeds = [seed for seed in after.seeds if seed in before.seeds]
    if not seeds:
        return None
    without = before.perplexities[before.best_length]
    with_it = after.perplexities[after.best_length]
    published = None
    if before.published is not None and after.published is not None:
        published = after.published.best < before.published.best
    return AblationFinding(
        claim,
        conditions,
        SampleStatistics([without[seed] for seed in seeds]),
        SampleStatistics([with_it[seed] for seed in seeds]),
        published,
    )
