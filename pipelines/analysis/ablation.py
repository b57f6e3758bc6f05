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
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from txl_tf.config.base import (
    MAX_TOKENS,
    FrozenConfig,
    Range,
    not_negative,
    positive,
)
from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.model import LEARNED_ENCODINGS, ModelConfig, PositionEncoding
from txl_tf.data.prepared_dataset import Manifest, PreparedDataset
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import InputMissingError, PreemptedError, UsageError
from txl_tf.model_folder import Workdir, check_dataset, data_identity, deciding_settings
from txl_tf.models.sizes import num_parameters, num_scored, row_numbers
from txl_tf.storage.files import is_remote
from txl_tf.storage.locks import WritableFolder, locked_folder

from ..arguments import add_json_argument, add_override_argument, override
from ..checkpoint_watch import EvaluationLog
from ..configs import load_experiment, read_settings
from ..memory_needs import require_training_memory
from ..progress import plain_table, say

STUDIES_FOLDER = Path(__file__).resolve().parent.parent / "configs" / "studies"
# Share of the best perplexity by which a shorter length may be worse and still reach it.
_TOLERANCE = 0.001
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(FrozenConfig):
    """Model parts of one row: recurrence, encoding and loss (Table 5 of Dai et al., 2019)."""

    name: str
    """Name of the row and of its folder."""
    recurrence: bool = True
    """Whether segments are connected by a memory."""
    position_encoding: PositionEncoding = "transformer_xl"
    """Positions of Dai et al., Shaw et al. (with biases, or of two terms as the paper words it),
    Vaswani et al., or Al-Rfou et al."""
    loss_positions: Literal["all", "last_half"] = "all"
    """Full or half loss: the positions of a segment that are trained on."""
    segment_length: Annotated[int | None, positive(MAX_TOKENS)] = None
    """Tokens through which gradients flow, `T`; None: as in the base experiment."""
    remark: str = ""
    """Remark on the row, shown in the table."""
    set: tuple[str, ...] = ()
    """Further values by name, such as `model.num_layers=6`."""

    def validate(self) -> None:
        rule = "be 1 to 100 of a-z, 0-9, `_`, `.` and `-`, and begin with a letter or digit"
        self.require("name", _NAME.fullmatch(self.name) is not None, rule)

    def experiment(self, base: ExperimentConfig, seed: int) -> ExperimentConfig:
        """Builds the experiment of one run of this row; a wrong value of `set` is a ValueError.

        Drops settings of the base that the encoding does not have. Learned tables get `T + M`
        positions.
        """
        length = self.segment_length or base.model.segment_length
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
        clamp_length = None if has_table else base.evaluation.clamp_length
        evaluation = base.evaluation.replace(clamp_length=clamp_length)
        experiment = base.replace(model=model, training=training, evaluation=evaluation)
        return experiment.with_overrides(list(self.set))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyEvaluation(FrozenConfig):
    """Attention lengths and the text they are measured on.

    A recurrent model reads segments of its training length with memories of different lengths, at
    which every query sees equally many keys. Other models read overlapping windows: each window
    is computed as a whole, and its last `window_stride` tokens are scored.
    """

    split: str = "valid"
    """Split of the data set."""
    num_tokens: Annotated[int | None, Range(2)] = None
    """Tokens from the beginning of the split; None: all tokens."""
    memory_lengths: Annotated[tuple[int, ...], not_negative(MAX_TOKENS)] = ()
    """Memory lengths besides the training length; 0 disables the memory."""
    window_lengths: Annotated[tuple[int, ...], positive(MAX_TOKENS)] = ()
    """Window lengths besides the training segment length, for rows without recurrence."""
    window_stride: Annotated[int, positive()] = 1
    """Tokens that a window scores."""

    def validate(self) -> None:
        stride = self.window_stride
        rule = f"all be at least `window_stride`, which is {stride}"
        self.require("window_lengths", min(self.window_lengths, default=stride) >= stride, rule)

    def settings_of(self, experiment: ExperimentConfig) -> list[EvaluationConfig]:
        """Returns the settings for each attention length, the training length first."""
        model, evaluation = cast(ModelConfig, experiment.model), experiment.evaluation
        if not model.recurrence:
            lengths = sorted({*self.window_lengths} - {model.segment_length})
            return [
                EvaluationConfig(
                    batch_size=evaluation.batch_size,
                    segment_length=length,
                    window_stride_tokens=min(self.window_stride, model.segment_length),
                )
                for length in (model.segment_length, *lengths)
            ]
        # Without a memory, every query would see only its own token.
        others = [(length, length > 0) for length in sorted({*self.memory_lengths})]
        return [
            evaluation.replace(
                segment_length=model.segment_length, memory_length=length, same_length=same_length
            )
            for length, same_length in [(model.memory_length, model.same_length), *others]
        ]


class AblationRun(NamedTuple):
    """One run of a study; its name is the path of its folder inside the study's."""

    name: str
    row: AblationRow
    experiment: ExperimentConfig
    evaluations: list[EvaluationConfig]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationStudy(FrozenConfig):
    """Definition of an ablation study: every row is trained once with each seed."""

    experiment: ExperimentConfig
    """Experiment that all rows share."""
    rows: tuple[AblationRow, ...]
    """Rows, with different names."""
    seeds: tuple[int, ...]
    """Seeds of the runs of each row."""
    set: tuple[str, ...] = ()
    """Values of the experiment by name, such as `model.num_layers=6`."""
    evaluation: StudyEvaluation = dataclasses.field(default_factory=StudyEvaluation)
    """Attention lengths."""

    def validate(self) -> None:
        for name, values in (("rows", [row.name for row in self.rows]), ("seeds", self.seeds)):
            is_unique = 0 < len({*values}) == len(values)
            self.require(name, is_unique, "have at least one entry, and none twice (rows: by name)")
        if not isinstance(self.experiment.model, ModelConfig):
            reason = "`experiment.model` must be a Transformer-XL, whose parts the rows change."
            self.refuse(reason, "experiment.model.kind")

    def runs(self) -> list[AblationRun]:
        """Returns all runs, the first seed of all rows first."""
        found = []
        for seed in self.seeds:
            for row in self.rows:
                experiment = row.experiment(self.experiment, seed)
                evaluations = self.evaluation.settings_of(experiment)
                name = f"{row.name}/seed-{seed}"
                found.append(AblationRun(name, row, experiment, evaluations))
        return found


def load_study(source: str, overrides: list[str]) -> AblationStudy:
    """Reads a study by name or file; `overrides` change the base experiment."""
    paths = (f"{STUDIES_FOLDER}/{source}.toml", source)
    path = next((each for each in paths if os.path.isfile(each)), None)
    if path is None:
        names = sorted(file.stem for file in STUDIES_FOLDER.glob("*.toml"))
        raise InputMissingError(
            "No study and no file has this name.",
            where=f"--study {source}",
            remedy=f"Give a .json or .toml file, or one of: {', '.join(names)}.",
        )
    try:
        values = read_settings(Path(path))
        if isinstance(values.get("experiment"), str):
            values["experiment"] = load_experiment(values["experiment"], []).with_policy("float32")
        study = AblationStudy.from_dict(values)
        study = study.replace(experiment=override(study.experiment, [*study.set, *overrides]))
        study.runs()
    except ValueError as error:
        raise UsageError(f"{error}", where=path, remedy="Correct the file or --set.") from error
    return study


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ablation:
    """Checked arguments of the analysis."""

    study: AblationStudy
    arguments: argparse.Namespace
    data: dict[str, Any]
    """Identity of the data, see `data_identity`."""

    def workdir(self, run: AblationRun) -> Workdir:
        """Returns the folder of a run."""
        return Workdir(Path(self.arguments.out) / run.name)

    def log(self, run: AblationRun, evaluation: EvaluationConfig) -> EvaluationLog:
        """Returns the log of a run's results at one attention length."""
        conditions = {
            "run": deciding_settings(run.experiment, self.data),
            "evaluation": evaluation.to_dict(),
            "num_tokens": self.study.evaluation.num_tokens,
        }
        folder = self.workdir(run).evaluations
        return EvaluationLog(folder, self.study.evaluation.split, conditions)

    def missing(self, run: AblationRun) -> list[EvaluationConfig]:
        """Returns the attention lengths that a run is not measured at."""
        return [each for each in run.evaluations if not self.log(run, each).results]

    def perplexities(self, run: AblationRun) -> list[float]:
        """Returns the perplexities of a measured run, in the order of its lengths."""
        logs = (self.log(run, each) for each in run.evaluations)
        return [next(iter(log.results.values()))["perplexity"] for log in logs]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    meaning = "named study or .toml or .json file"
    parser.add_argument("--study", metavar="NAME|FILE", required=True, help=meaning)
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to make or resume")
    add_override_argument(parser)
    add_json_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> Ablation:
    """Checks the arguments before TensorFlow is imported."""
    study = load_study(arguments.study, arguments.overrides)
    if is_remote(arguments.out):
        raise UsageError(
            "A study cannot be written to a remote folder.",
            where=f"--out {arguments.out}",
            remedy="Give a path on this machine.",
        )
    manifest = Manifest.read(arguments.data)
    check_dataset(manifest, arguments.data, split=study.evaluation.split)
    job = Ablation(study=study, arguments=arguments, data=data_identity(manifest))
    for each in study.runs():
        require_training_memory(each.experiment)
        # Refuses a study begun with other settings before training anything.
        job.workdir(each).check_same(each.experiment, job.data)
    return job


def run(job: Ablation) -> None:
    """Trains and evaluates the missing runs, and prints the table."""
    runs, folder = job.study.runs(), job.arguments.out
    dataset = PreparedDataset.open(job.arguments.data)
    say(f"{sum(not job.missing(each) for each in runs)} of {len(runs)} runs are finished.")
    with locked_folder(folder), PreemptionWatcher() as watcher:
        for number, each in enumerate(runs, start=1):
            if missing := job.missing(each):
                _finish(job, each, missing, dataset, watcher)
            perplexity = job.perplexities(each)[0]
            say(f"{number} of {len(runs)}: {each.name}: perplexity {perplexity:.2f}")
    rows = []
    for row in job.study.rows:
        finished = [each for each in runs if each.row == row]
        perplexities = [job.perplexities(each) for each in finished]
        rows.append(row_figures(finished, perplexities))
    write_table(rows, WritableFolder.at(folder), job.arguments.json)


def _finish(
    job: Ablation,
    run: AblationRun,
    missing: list[EvaluationConfig],
    dataset: PreparedDataset,
    watcher: PreemptionWatcher,
) -> None:
    """Trains a run in an ordinary workdir, and evaluates it at the missing attention lengths."""
    import keras

    from txl_tf.distribution.strategy import create_strategy
    from txl_tf.evaluation.evaluator import create_evaluator
    from txl_tf.evaluation.result import EvaluationText

    from ..training_data import TrainingData
    from ..training_run import TrainingJob, train

    def until_stopped(batches: Iterable, num_batches: int) -> Iterator:
        for batch in batches:
            if watcher.requested is not None:
                raise PreemptedError(
                    f"The study was stopped: {watcher.requested}.",
                    where=job.arguments.out,
                    remedy="All finished work is saved; run the same command to resume.",
                )
            yield batch

    training_job = TrainingJob(
        experiment=run.experiment,
        data=TrainingData(job.arguments.data, run.experiment),
        workdir=job.workdir(run),
        strategy=create_strategy(None, 1),
        watcher=watcher,
    )
    trainer, split = train(training_job).trainer, job.study.evaluation.split
    weights = trainer.state.inference_weights()
    text, num_tokens = EvaluationText.of_split(dataset, split), job.study.evaluation.num_tokens
    if num_tokens is not None:
        text = text.beginning(min(num_tokens, text.num_tokens))
    for each in missing:
        evaluator = create_evaluator(run.experiment.replace(evaluation=each))
        evaluator.load_arrays(weights)
        result = evaluator.evaluate(text, step=trainer.step, track=until_stopped)
        log = job.log(run, each)
        with log.locked():
            log.append(result)
        say(f"attention length {attention_length(each)}: perplexity {result.perplexity:.2f}")
    keras.utils.clear_session(free_memory=True)


def training_memory_bytes(experiment: ExperimentConfig) -> int:
    """Estimates the memory of a training step in float32 by a formula.

    It counts `row_numbers` for every row and layer; the keys of positions, once for all rows; the
    logits of a full softmax and their gradient; and four numbers for every parameter. A compiler's
    own buffers and recomputation are not counted, and are similar for the models compared.
    """
    model, training = cast(ModelConfig, experiment.model), experiment.training
    segment = model.segment_length  # T
    memory = model.effective_memory_length  # M
    keys, width = memory + segment, model.num_heads * model.head_dim  # K, E
    positions = keys * width if model.has_relative_positions else 0
    logits = 2 * num_scored(experiment) * model.vocabulary_size
    numbers = (
        training.global_batch_size * (model.num_layers * row_numbers(model) + logits)
        + model.num_layers * positions
        # The weight, its gradient, and Adam's two means.
        + 4 * num_parameters(model)
    )
    return 4 * numbers  # float32


def attention_length(evaluation: EvaluationConfig) -> int:
    """Returns the tokens before the predicted one: of the memory, or else of the window."""
    has_windows = evaluation.window_stride_tokens is not None
    return (evaluation.segment_length if has_windows else evaluation.memory_length) or 0


def row_figures(
    finished: Sequence[AblationRun], perplexities: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Returns the figures of a row as JSON values; `perplexities` by attention length."""
    experiment, evaluations = finished[0].experiment, finished[0].evaluations
    of_length = [list(each) for each in zip(*perplexities, strict=True)]
    means = [statistics.fmean(each) for each in of_length]
    limit = min(means) * (1.0 + _TOLERANCE)
    lengths = [*map(attention_length, evaluations)]
    return {
        "name": finished[0].row.name,
        "remark": finished[0].row.remark,
        "loss_positions": experiment.training.loss_positions,
        "model": experiment.model.to_dict(),
        "parameters": num_parameters(experiment.model),
        "training_memory_bytes": training_memory_bytes(experiment),
        "seeds": [each.experiment.training.seed for each in finished],
        "perplexity_initial": means[0],
        "perplexity_best": min(means),
        "attention_length": min(
            length for length, mean in zip(lengths, means, strict=True) if mean <= limit
        ),
        "curve": [
            {"length": length, "perplexities": values, "evaluation": evaluation.to_dict()}
            for length, values, evaluation in zip(lengths, of_length, evaluations, strict=True)
        ],
    }


_ENCODINGS = {
    "transformer_xl": "Dai et al.",
    "shaw": "Shaw et al.",
    "shaw_two_terms": "Shaw et al., terms (a) and (b)",
    "sinusoidal": "Vaswani et al.",
    "learned": "Al-Rfou et al.",
}
_HEAD = (
    *("remark", "recurrence", "encoding", "loss", "T", "parameters"),
    *("training memory (computed)", "PPL init", "PPL best", "Attn Len", "seeds"),
)


def _cells(row: dict[str, Any]) -> list[str]:
    curve = [each["perplexities"] for each in row["curve"]]
    return [
        row["remark"] or "-",
        "yes" if row["model"]["recurrence"] else "no",
        _ENCODINGS[row["model"]["position_encoding"]],
        {"all": "full", "last_half": "half"}[row["loss_positions"]],
        str(row["model"]["segment_length"]),
        f"{row['parameters'] / 1e6:.2f} M",
        f"{row['training_memory_bytes'] / 1e6:.0f} MB",
        _format_mean(curve[0]),
        _format_mean(min(curve, key=statistics.fmean)),
        str(row["attention_length"]),
        str(len(row["seeds"])),
    ]


def _format_mean(values: Sequence[float]) -> str:
    """Returns `27.02 +- 0.11`, or the mean alone of a single value."""
    spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def write_table(rows: Sequence[dict[str, Any]], folder: WritableFolder, as_json: bool) -> None:
    """Prints and writes the table."""
    figures = json.dumps({"rows": rows}, indent=1) + "\n"
    lines = [_HEAD, ["---"] * len(_HEAD), *map(_cells, rows)]
    markdown = [*(f"| {' | '.join(line)} |" for line in lines), ""]
    folder.write("table.json", figures.encode())
    folder.write("table.md", "\n".join(markdown).encode())
    print(figures if as_json else plain_table([_HEAD, *map(_cells, rows)]))
    say(f"Written: {folder.path}/table.md, {folder.path}/table.json")
