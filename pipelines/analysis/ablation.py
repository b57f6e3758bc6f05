"""Ablation studies, Tables 5 and 8 of Dai et al. (2019): `txl analyze ablation`.

    txl analyze ablation --study novels_ablation --data DIR --out DIR

Trains and evaluates every row of a study with every seed, one run after the other, and prints the
table. "PPL init" is the perplexity at the attention length of training, "PPL best" the lowest over
all lengths, "Attn Len" the shortest length that reaches it. The same command resumes where it
stopped; a finished run is not repeated.
"""

import argparse
import dataclasses
import json
import math
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from txl_tf.config.base import (
    FRACTION_BELOW_ONE,
    MAX_TOKENS,
    FrozenConfig,
    Range,
    describe_differences,
    positive,
    shown_value,
)
from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.model import LEARNED_ENCODINGS, ModelConfig, PositionEncoding
from txl_tf.data.manifest import Manifest
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    PreemptedError,
    UsageError,
)
from txl_tf.evaluation.result import MeasuredLoss
from txl_tf.models.sizes import equal_memory_segment_length, num_parameters, training_memory_bytes
from txl_tf.run import identity
from txl_tf.storage.files import first_line, is_remote
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.untrusted_files import read_json_object, storage_errors
from txl_tf.storage.writable_folder import WritableFolder

from ..arguments import (
    add_json_argument,
    add_override_argument,
    load_experiment,
    override,
    read_settings,
)
from ..memory_needs import require_training_memory
from ..progress import plain_table, say
from ..workdir import Workdir, check_dataset, data_identity

if TYPE_CHECKING:
    from txl_tf.evaluation.text_rows import EvaluationText

STUDIES_FOLDER = Path(__file__).resolve().parent.parent / "configs" / "studies"
_REQUIRED = {"experiment", "seeds", "rows"}
# Keys of a study file, with the type of the items of lists.
_KINDS = {"experiment": None, "set": str, "seeds": int, "evaluation": None, "rows": dict}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(FrozenConfig):
    """Model parts of one row: recurrence, encoding and loss (Table 5 of Dai et al., 2019)."""

    recurrence: bool = True
    """Whether segments are connected by a memory."""
    position_encoding: PositionEncoding = "transformer_xl"
    """Positions of Dai et al., Shaw et al. (with biases, or of two terms as the paper words it),
    Vaswani et al., or Al-Rfou et al."""
    loss_positions: Literal["all", "last_half"] = "all"
    """Full or half loss: the positions of a segment that are trained on."""
    segment_length: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Tokens through which gradients flow, `T`; None: as in the base experiment."""
    equal_memory_to: str | None = None
    """Name of the row whose training memory this one may use; decides the segment length."""
    name: str = ""
    """Name of the row and of its folder; by default made of the values above."""
    remark: str = ""
    """Remark on the row, shown in the table."""
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

        Drops settings of the base that the encoding does not have. Learned tables get `T + M`
        positions. `segment_length` replaces the base's where the row leaves it open.
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
    """True if every query sees equally many keys."""
    stride: int | None
    """Tokens that a window scores; `None` with recurrence, where nothing is read twice."""
    is_training_length: bool
    """True if training used the same lengths."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyEvaluation(FrozenConfig):
    """Attention lengths and the text they are measured on.

    A recurrent model reads segments of its training length with memories of different lengths.
    Other models read overlapping windows: each window is computed as a whole, and its last
    `window_stride` tokens are scored.
    """

    split: str = "valid"
    """Split of the data set."""
    num_tokens: Annotated[int | None, Range(2)] = None
    """Tokens from the beginning of the split; None: all tokens."""
    memory_lengths: tuple[int, ...] = ()
    """Memory lengths besides the training length; 0 disables the memory."""
    window_lengths: tuple[int, ...] = ()
    """Window lengths besides the training segment length, for rows without recurrence."""
    window_stride: Annotated[int, positive()] = 1
    """Tokens that a window scores."""
    same_length: bool = True
    """Whether at these memory lengths every query sees equally many keys."""
    tolerance: Annotated[float, FRACTION_BELOW_ONE] = 0.001
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
        """Name of the run, and path of its folder inside the study's folder."""
        return f"{self.row.name}/seed-{self.seed}"

    def attention_lengths(self) -> list[AttentionLength]:
        """Returns the lengths to evaluate at, the training length first."""
        is_recurrent = cast(ModelConfig, self.experiment.model).recurrence
        return self._memory_lengths() if is_recurrent else self._window_lengths()

    def _memory_lengths(self) -> list[AttentionLength]:
        model = self.experiment.model
        chosen = [(model.memory_length, model.same_length, True)]
        for length in sorted(set(self.evaluation.memory_lengths)):
            # Without a memory, every query would see only its own token.
            chosen.append((length, self.evaluation.same_length and length > 0, False))
        return [
            AttentionLength(
                length=length,
                segment_length=model.segment_length,
                memory_length=length,
                same_length=same_length,
                stride=None,
                is_training_length=is_training_length,
            )
            for length, same_length, is_training_length in chosen
        ]

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
        """Returns the settings that decide all figures of the run, as they are read from JSON.

        Attention lengths are left out: more can be measured later. `data` is from `data_identity`.
        """
        values = {
            **identity(self.experiment, data),
            "evaluation_split": self.evaluation.split,
            "evaluation_tokens": self.evaluation.num_tokens,
            "evaluation_rows": self.experiment.evaluation.batch_size,
        }
        return json.loads(json.dumps(values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationStudy:
    """Definition of an ablation study: every row is trained once with each seed."""

    base: ExperimentConfig
    """Experiment that all rows share."""
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
    """Reads a study by its name in `pipelines/configs/studies` or from a `.json` or `.toml` file.

    `overrides` change the base experiment.
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
    if not _REQUIRED <= set(values) <= set(_KINDS):
        raise ValueError(
            f"A study has {', '.join(sorted(_REQUIRED))}, and may have "
            f"{', '.join(sorted(set(_KINDS) - _REQUIRED))}. Received: {', '.join(values)}"
        )
    for name, item_kind in _KINDS.items():
        value = values.get(name, [])
        is_list = isinstance(value, list) and all(type(item) is item_kind for item in value)
        if item_kind is not None and not is_list:
            raise ValueError(
                f"`{name}` must be a list of {item_kind.__name__}. "
                f"Received: {name}={shown_value(value)}"
            )
    base = _base(values["experiment"], folder)
    base = override(base.with_overrides(values.get("set", [])), overrides)
    rows = [AblationRow.from_dict(row) for row in values["rows"]]
    _check(rows, values["seeds"])
    if not isinstance(base.model, ModelConfig):
        raise ValueError(
            "Rows change a Transformer-XL; other models are runs of their own. "
            f"Received: a model of kind {base.model.kind!r}"
        )
    return AblationStudy(
        base=base,
        rows=tuple(rows),
        seeds=tuple(values["seeds"]),
        evaluation=StudyEvaluation.from_dict(values.get("evaluation", {})),
    )


def _base(experiment: Any, folder: Path) -> ExperimentConfig:
    if isinstance(experiment, dict):
        return ExperimentConfig.from_dict(experiment)
    if not isinstance(experiment, str):
        raise ValueError(
            f"`experiment` is a name, a file or its sections. Received: {shown_value(experiment)}"
        )
    # A file beside the study comes before a named experiment.
    beside = folder / experiment
    return load_experiment(str(beside) if os.path.isfile(beside) else experiment, [])


def _check(rows: list[AblationRow], seeds: list[int]) -> None:
    if not rows:
        raise ValueError("A study needs one row or more. Received: rows=[]")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"`seeds` must be different integers, one or more. Received: {seeds}")
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        raise ValueError(f"Rows must have different names. Received: {names}")
    # Copied budgets cannot be copied again: results would depend on the order of rows.
    budgets = {row.name for row in rows if row.equal_memory_to is None} | {None}
    for row in rows:
        if row.equal_memory_to not in budgets:
            raise ValueError(
                "`equal_memory_to` names a row whose segment length is given. "
                f"Received: equal_memory_to={row.equal_memory_to!r}"
            )


Figures = dict[AttentionLength, MeasuredLoss]
_RESULT_FILE = "result.json"
_REMEDY = "Remove the file; its figures are measured again from the trained weights."


def read_figures(folder: Path, run: AblationRun, data: dict[str, Any]) -> Figures:
    """Reads the figures of a run; empty if there are none yet.

    Figures of other settings are a MismatchError, an unreadable file is a DataDamagedError.
    """
    path = folder / run.name / _RESULT_FILE
    if not path.exists():
        return {}
    try:
        with storage_errors("The figures of a run cannot be read", str(path)):
            values = read_json_object(str(path), remedy=_REMEDY)
        figures = {
            AttentionLength(**row["attention_length"]): MeasuredLoss(**row["loss"])
            for row in values["figures"]
        }
        perplexities = [measured.perplexity for measured in figures.values()]
        if not all(map(math.isfinite, perplexities)):
            raise ValueError(f"perplexities {perplexities}")
        differences = describe_differences(values["settings"], run.settings(data))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DataDamagedError(
            f"The figures of a run cannot be read: {first_line(error)}",
            where=str(path),
            remedy=_REMEDY,
        ) from error
    if differences:
        raise MismatchError(
            f"The study was begun with other settings; {differences}",
            where=str(path),
            remedy="Give the study and data it was begun with, or choose a new --out.",
        )
    return figures


def write_figures(folder: Path, run: AblationRun, data: dict[str, Any], figures: Figures) -> None:
    """Replaces the figures of a run on disk atomically."""
    rows = [
        {
            "attention_length": dataclasses.asdict(length),
            "loss": dataclasses.asdict(measured),
            "perplexity": measured.perplexity,
        }
        for length, measured in figures.items()
    ]
    values = {"settings": run.settings(data), "figures": rows}
    content = (json.dumps(values, indent=1) + "\n").encode()
    WritableFolder.at(folder / run.name).write(_RESULT_FILE, content)


def _missing(run: AblationRun, figures: Figures) -> list[AttentionLength]:
    return [length for length in run.attention_lengths() if length not in figures]


class AblationRunner:
    """Training and evaluation of the runs of a study, resumed from their last checkpoints.

    Each run trains in an ordinary workdir, which `txl train` can resume. Figures are written after
    every attention length.
    """

    def __init__(self, data_folder: str, folder: Path, watcher: PreemptionWatcher) -> None:
        import tensorflow as tf

        from txl_tf.data.prepared_dataset import PreparedDataset

        # Parallel kernels otherwise add in a varying order.
        tf.config.experimental.enable_op_determinism()
        self._dataset = PreparedDataset.open(data_folder)
        self._data = data_identity(self._dataset.manifest)
        self._data_folder = data_folder
        self._folder = folder
        self._watcher = watcher

    def finish(self, run: AblationRun) -> Figures:
        """Trains a run to its end, evaluates it at all attention lengths and returns them."""
        import keras

        from txl_tf.model_folder import open_model

        figures = read_figures(self._folder, run, self._data)
        missing = _missing(run, figures)
        if not missing:
            return figures
        workdir = Workdir(str(self._folder / run.name / "run"))
        self._train(run, workdir)
        step, weights = open_model(workdir.folder, "newest").read_weights()
        text = self._text(run.evaluation)
        for length in missing:
            evaluator = self._evaluator(run.experiment, length)
            evaluator.load_arrays(weights)
            result = evaluator.evaluate(text, step=step, track=self._until_stopped)
            figures[length] = MeasuredLoss(
                total_nats=result.total_nats,
                num_tokens=result.num_tokens,
                num_bytes=result.num_bytes,
                seconds=result.seconds,
            )
            write_figures(self._folder, run, self._data, figures)
            say(f"attention length {length.length}: perplexity {figures[length].perplexity:.2f}")
        keras.utils.clear_session(free_memory=True)
        return figures

    def _train(self, run: AblationRun, workdir: Workdir) -> None:
        from txl_tf.distribution.strategy import create_strategy

        from ..training_data import TrainingData
        from ..training_run import TrainingJob, train

        data = TrainingData(self._data_folder, run.experiment)
        job = TrainingJob(
            experiment=run.experiment,
            data=data,
            workdir=workdir,
            strategy=create_strategy(None, 1),
            watcher=self._watcher,
        )
        train(job)

    def _text(self, evaluation: StudyEvaluation) -> "EvaluationText":
        from ..evaluation import split_text

        text = split_text(self._dataset, evaluation.split)
        num_tokens = min(evaluation.num_tokens or text.num_tokens, text.num_tokens)
        share = num_tokens / text.num_tokens
        return dataclasses.replace(
            text,
            num_tokens=num_tokens,
            num_bytes=round(text.num_bytes * share),
            num_characters=round(text.num_characters * share),
            num_words=round(text.num_words * share),
        )

    def _evaluator(self, experiment: ExperimentConfig, length: AttentionLength) -> Any:
        from ..evaluation import create_evaluator

        evaluation = experiment.evaluation.replace(
            segment_length=length.segment_length,
            memory_length=length.memory_length,
            same_length=length.same_length,
        )
        if length.stride is not None:
            evaluation = EvaluationConfig(
                batch_size=experiment.evaluation.batch_size,
                segment_length=length.segment_length,
                window_stride_tokens=length.stride,
            )
        return create_evaluator(experiment.replace(evaluation=evaluation))

    def _until_stopped(self, batches: Iterable, num_batches: int) -> Iterator:
        for batch in batches:
            if self._watcher.requested is not None:
                raise PreemptedError(
                    f"The study was stopped: {self._watcher.requested}.",
                    where=str(self._folder),
                    remedy="All finished work is saved; run the same command to resume.",
                )
            yield batch


class Sample(tuple[float, ...]):
    """Values of the seeds, with their mean and deviation."""

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return statistics.fmean(self)

    def describe(self) -> str:
        """Returns `27.02 +- 0.11`, or the mean alone of a single value."""
        spread = f" +- {statistics.stdev(self):.2f}" if len(self) > 1 else ""
        return f"{self.mean:.2f}{spread}"


@dataclasses.dataclass(frozen=True)
class RowSummary:
    """Perplexities of a row at all attention lengths, seed by seed."""

    run: AblationRun
    """Any run of the row."""
    seeds: tuple[int, ...]
    """Finished seeds."""
    samples: dict[AttentionLength, Sample]
    """Perplexities by attention length, in the order of the seeds."""

    @classmethod
    def of(cls, finished: list[tuple[AblationRun, Figures]]) -> "RowSummary":
        """Builds the summary from one or more finished runs of a row."""
        run = finished[0][0]
        samples = {
            length: Sample(figures[length].perplexity for _, figures in finished)
            for length in run.attention_lengths()
        }
        return cls(run, tuple(each.seed for each, _ in finished), samples)

    @property
    def best_length(self) -> AttentionLength:
        """Length with the lowest mean perplexity, one for all seeds."""
        return min(self.samples, key=lambda length: self.samples[length].mean)

    @property
    def sufficient_length(self) -> AttentionLength:
        """Shortest length that reaches the best perplexity within the study's tolerance."""
        limit = self.best.mean * (1.0 + self.run.evaluation.tolerance)
        reaching = [length for length, sample in self.samples.items() if sample.mean <= limit]
        return min(reaching, key=lambda length: length.length)

    @property
    def initial(self) -> Sample:
        """Perplexity at the lengths of training."""
        return next(self.samples[each] for each in self.samples if each.is_training_length)

    @property
    def best(self) -> Sample:
        """Perplexity at the best length."""
        return self.samples[self.best_length]

    def to_dict(self) -> dict[str, Any]:
        """Returns all figures as plain JSON types."""
        experiment = self.run.experiment
        return {
            "name": self.run.row.name,
            "remark": self.run.row.remark,
            "loss_positions": experiment.training.loss_positions,
            "model": experiment.model.to_dict(),
            "parameters": num_parameters(experiment.model),
            "training_memory_bytes": training_memory_bytes(experiment),
            "seeds": list(self.seeds),
            "perplexity_initial": self.initial.mean,
            "perplexity_best": self.best.mean,
            "attention_length": self.sufficient_length.length,
            "curve": [
                {**dataclasses.asdict(length), "perplexities": list(sample)}
                for length, sample in self.samples.items()
            ],
        }


_ENCODINGS = {
    "transformer_xl": "Dai et al.",
    "shaw": "Shaw et al.",
    "shaw_two_terms": "Shaw et al., terms (a) and (b)",
    "sinusoidal": "Vaswani et al.",
    "learned": "Al-Rfou et al.",
}
_LOSSES = {"all": "full", "last_half": "half"}
_HEAD = (
    *("remark", "recurrence", "encoding", "loss", "T", "parameters"),
    *("training memory (computed)", "PPL init", "PPL best", "Attn Len", "seeds"),
)


def _cells(summary: RowSummary) -> list[str]:
    model = cast(ModelConfig, summary.run.experiment.model)
    return [
        summary.run.row.remark or "-",
        "yes" if model.recurrence else "no",
        _ENCODINGS[model.position_encoding],
        _LOSSES[summary.run.experiment.training.loss_positions],
        str(model.segment_length),
        f"{num_parameters(model) / 1e6:.2f} M",
        f"{training_memory_bytes(summary.run.experiment) / 1e6:.0f} MB",
        summary.initial.describe(),
        summary.best.describe(),
        str(summary.sufficient_length.length),
        str(len(summary.seeds)),
    ]


def write_table(rows: Sequence[RowSummary], folder: WritableFolder, as_json: bool) -> None:
    """Prints and writes the table."""
    figures = json.dumps({"rows": [row.to_dict() for row in rows]}, indent=1) + "\n"
    lines = [_HEAD, ["---"] * len(_HEAD), *map(_cells, rows)]
    markdown = [*(f"| {' | '.join(line)} |" for line in lines), ""]
    folder.write("table.json", figures.encode())
    folder.write("table.md", "\n".join(markdown).encode())
    print(figures if as_json else plain_table([_HEAD, *map(_cells, rows)]))
    say(f"Written: {folder.path}/table.md, {folder.path}/table.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    meaning = "named study or .toml or .json file"
    parser.add_argument("--study", metavar="NAME|FILE", required=True, help=meaning)
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the study")
    add_override_argument(parser)
    add_json_argument(parser)
    meaning = "train nothing; print what is finished"
    parser.add_argument("--only-table", action="store_true", help=meaning)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    arguments.ablation = study = load_study(arguments.study, arguments.overrides)
    if not arguments.only_table:
        for run in study.runs():
            require_training_memory(run.experiment)
    if is_remote(arguments.out):
        raise UsageError(
            "A study is written to a local folder.",
            where=f"--out {arguments.out}",
            remedy="Give a path on this machine.",
        )
    manifest = Manifest.read(arguments.data)
    arguments.data_identity = data_identity(manifest)
    check_dataset(manifest, arguments.data, split=study.evaluation.split)
    # Refuses a study begun with other settings before training anything.
    _finished(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Trains and evaluates the missing runs, and prints the table."""
    folder = Path(arguments.out)
    runs = arguments.ablation.runs()
    if not arguments.only_table:
        say(f"{len(_finished(arguments))} of {len(runs)} runs are finished.")
        with DirectoryLock(folder), PreemptionWatcher() as watcher:
            runner = AblationRunner(arguments.data, folder, watcher)
            for number, each in enumerate(runs, start=1):
                perplexity = runner.finish(each)[each.attention_lengths()[0]].perplexity
                say(f"{number} of {len(runs)}: {each.name}: perplexity {perplexity:.2f}")
    finished = _finished(arguments)
    if not finished:
        raise InputMissingError(
            "No run of the study is finished yet.",
            where=arguments.out,
            remedy="Leave --only-table out.",
        )
    of_rows = [[each for each in finished if each[0].row == row] for row in arguments.ablation.rows]
    rows = [RowSummary.of(each) for each in of_rows if each]
    write_table(rows, WritableFolder.at(folder), arguments.json)


def _finished(arguments: argparse.Namespace) -> list[tuple[AblationRun, Figures]]:
    """Returns the runs measured at all lengths, with their figures."""
    folder, data = Path(arguments.out), arguments.data_identity
    measured = [(run, read_figures(folder, run, data)) for run in arguments.ablation.runs()]
    return [(run, figures) for run, figures in measured if not _missing(run, figures)]
