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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from txl_tf.config.base import MAX_TOKENS, FrozenConfig, Range, not_negative, positive
from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.prepared_dataset import Manifest, PreparedDataset
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import InputMissingError, PreemptedError, UsageError
from txl_tf.model_folder import Workdir, check_dataset, data_identity, deciding_settings
from txl_tf.models.sizes import num_parameters
from txl_tf.storage.locks import locked_folder

from ..arguments import add_json_argument, add_override_argument, override
from ..checkpoint_watch import EvaluationLog
from ..configs import load_experiment, read_settings
from ..memory_needs import require_training_memory
from ..progress import plain_table, say, show_progress

STUDIES_FOLDER = Path(__file__).resolve().parent.parent / "configs" / "studies"
# Share of the best perplexity by which a shorter length may be worse and still reach it.
_TOLERANCE = 0.001
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(FrozenConfig):
    """Variant of the experiment of a study."""

    name: str
    """Name of the row and of its folder."""
    set: tuple[str, ...] = ()
    """Values by name, such as `model.num_layers=6`."""
    remark: str = ""
    """Remark on the row, shown in the table."""

    def validate(self) -> None:
        rule = "be 1 to 100 of a-z, 0-9, `_`, `.` and `-`, and begin with a letter or digit"
        self.require("name", _NAME.fullmatch(self.name) is not None, rule)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyEvaluation(FrozenConfig):
    """Attention lengths and the text they are measured on.

    A model with a memory reads segments of its training length with memories of different lengths,
    at which every query sees equally many keys. Other models read overlapping windows: each window
    is computed as a whole, and its last `window_stride` tokens are scored.
    """

    split: str = "valid"
    """Split of the data set."""
    num_tokens: Annotated[int | None, Range(2)] = None
    """Tokens from the beginning of the split; None: all tokens."""
    memory_lengths: Annotated[tuple[int, ...], not_negative(MAX_TOKENS)] = ()
    """Memory lengths besides the training length; 0 disables the memory."""
    window_lengths: Annotated[tuple[int, ...], positive(MAX_TOKENS)] = ()
    """Window lengths besides the training segment length, for models without memory."""
    window_stride: Annotated[int, positive()] = 1
    """Tokens that a window scores."""

    def validate(self) -> None:
        stride = self.window_stride
        rule = f"all be at least `window_stride`, which is {stride}"
        self.require("window_lengths", min(self.window_lengths, default=stride) >= stride, rule)

    def settings_of(self, experiment: ExperimentConfig) -> list[EvaluationConfig]:
        """Returns the settings for each attention length, the training length first."""
        model, evaluation = experiment.model, experiment.evaluation
        segment_length, memory_length = model.segment_length, model.effective_memory_length
        if not memory_length:
            lengths = sorted({*self.window_lengths} - {segment_length})
            return [
                EvaluationConfig(
                    batch_size=evaluation.batch_size,
                    segment_length=length,
                    window_stride_tokens=min(self.window_stride, segment_length),
                )
                for length in (segment_length, *lengths)
            ]
        # Without a memory, every query would see only its own token.
        others = [(length, length > 0) for length in sorted({*self.memory_lengths})]
        return [
            evaluation.replace(
                segment_length=segment_length, memory_length=length, same_length=same_length
            )
            for length, same_length in [(memory_length, model.same_length), *others]
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
        """Returns all runs, the first seed of all rows first; a wrong `set` is a ValueError."""
        runs = []
        for seed in self.seeds:
            for row in self.rows:
                settings = [f"training.seed={seed}", *row.set]
                experiment = self.experiment.with_overrides(settings)
                evaluations = self.evaluation.settings_of(experiment)
                runs.append(AblationRun(f"{row.name}/seed-{seed}", row, experiment, evaluations))
        return runs


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
        return Workdir(os.path.join(self.arguments.out, run.name))

    def logs(self, run: AblationRun) -> list[EvaluationLog]:
        """Returns the logs of a run's results, one for each attention length."""
        evaluation, folder = self.study.evaluation, self.workdir(run).evaluations
        conditions = {
            "run": deciding_settings(run.experiment, self.data),
            "num_tokens": evaluation.num_tokens,
        }
        return [
            EvaluationLog(folder, evaluation.split, {**conditions, "evaluation": each.to_dict()})
            for each in run.evaluations
        ]

    def perplexities(self, run: AblationRun) -> list[float]:
        """Returns the perplexities that are measured so far, in the order of the lengths."""
        return [
            result["perplexity"] for log in self.logs(run) for result in [*log.results.values()][:1]
        ]


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
    dataset, runs = PreparedDataset.open(job.arguments.data), job.study.runs()
    with locked_folder(job.arguments.out) as folder, PreemptionWatcher() as watcher:
        for each in runs:
            if len(job.perplexities(each)) < len(each.evaluations):
                _finish(job, each, dataset, watcher)
            say(f"{each.name}: perplexity {job.perplexities(each)[0]:.2f}")
        rows = []
        for row in job.study.rows:
            of_row = [each for each in runs if each.row == row]
            rows.append(row_figures(of_row, [job.perplexities(each) for each in of_row]))
        figures = json.dumps({"rows": rows}, indent=1) + "\n"
        folder.write("table.json", figures.encode())
    print(figures if job.arguments.json else plain_table([_HEAD, *map(_cells, rows)]))


def _finish(
    job: Ablation, run: AblationRun, dataset: PreparedDataset, watcher: PreemptionWatcher
) -> None:
    """Trains a run in an ordinary workdir, and evaluates it at the missing attention lengths."""
    import keras

    from txl_tf.distribution.strategy import create_strategy
    from txl_tf.evaluation.evaluator import create_evaluator
    from txl_tf.evaluation.result import EvaluationText

    from ..training_data import TrainingData
    from ..training_run import TrainingJob, train

    training_job = TrainingJob(
        experiment=run.experiment,
        data=TrainingData(job.arguments.data, run.experiment),
        workdir=job.workdir(run),
        strategy=create_strategy(None, 1),
        watcher=watcher,
    )
    trainer, evaluation = train(training_job).trainer, job.study.evaluation
    weights = trainer.state.inference_weights()
    text = EvaluationText.of_split(dataset, evaluation.split)
    if evaluation.num_tokens is not None:
        text = text.beginning(min(evaluation.num_tokens, text.num_tokens))
    for settings, log in zip(run.evaluations, job.logs(run), strict=True):
        if log.results:
            continue
        if watcher.requested is not None:
            raise PreemptedError(
                f"The study was stopped: {watcher.requested}.",
                where=job.arguments.out,
                remedy="All finished work is saved; run the same command to resume.",
            )
        evaluator = create_evaluator(run.experiment.replace(evaluation=settings))
        evaluator.load_arrays(weights)
        result = evaluator.evaluate(text, step=trainer.step, track=show_progress)
        with log.locked():
            log.append(result)
        say(f"attention length {attention_length(settings)}: perplexity {result.perplexity:.2f}")
    keras.utils.clear_session(free_memory=True)


def row_figures(
    runs: Sequence[AblationRun], perplexities: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Returns the figures of a row as JSON values; `perplexities` by attention length."""
    model, evaluations = runs[0].experiment.model, runs[0].evaluations
    of_length = [list(each) for each in zip(*perplexities, strict=True)]
    means = [statistics.fmean(each) for each in of_length]
    limit = min(means) * (1.0 + _TOLERANCE)
    lengths = [*map(attention_length, evaluations)]
    return {
        "name": runs[0].row.name,
        "remark": runs[0].row.remark,
        "model": model.to_dict(),
        "parameters": num_parameters(model),
        "seeds": [each.experiment.training.seed for each in runs],
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


_HEAD = ("row", "remark", "T", "parameters", "PPL init", "PPL best", "Attn Len", "seeds")


def _cells(row: dict[str, Any]) -> list[str]:
    curve = [each["perplexities"] for each in row["curve"]]
    return [
        row["name"],
        row["remark"] or "-",
        str(row["model"]["segment_length"]),
        f"{row['parameters'] / 1e6:.2f} M",
        _format_mean(curve[0]),
        _format_mean(min(curve, key=statistics.fmean)),
        str(row["attention_length"]),
        str(len(row["seeds"])),
    ]


def _format_mean(values: Sequence[float]) -> str:
    """Returns `27.02 +- 0.11`, or the mean alone of a single value."""
    spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def attention_length(evaluation: EvaluationConfig) -> int:
    """Returns the tokens before the predicted one: of the memory, or else of the window."""
    has_windows = evaluation.window_stride_tokens is not None
    return (evaluation.segment_length if has_windows else evaluation.memory_length) or 0
