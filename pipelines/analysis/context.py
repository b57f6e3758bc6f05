"""Effective context length of trained runs: `txl analyze context`.

    txl analyze context --workdir A --workdir B --data DIR --out DIR

All runs form one group, for the relative effective context length (RECL) of
Dai et al. (2019), Appendix C. They read the same tokens, so they need the same
tokenizer. Contexts are read in segments, with the memory of the run's
evaluations or with `--context-memory`: one as long as the longest context
forgets none. `context.json` has all figures.
"""

import argparse
import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_tf.config.limits import MAX_ROWS, MAX_TOKENS
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import UsageError
from txl_tf.model_folder import ModelFolder, build_model, check_dataset, open_model
from txl_tf.storage.staging import StagingFolder, require_absent

from ..run.memory_needs import require_reading_memory
from ..shell.arguments import MAX_COUNT, MAX_STEP, add_json_argument, add_number
from ..shell.progress import plain_table, show_progress

if TYPE_CHECKING:
    from txl_tf.evaluation.effective_context import ModelGroup
    from txl_tf.models.language_model import LanguageModel

REPORT_FILE = "context.json"
RATIOS = (0.1, 0.5, 1.0)
"""Shares of hard tokens, `r`, of the paper's Table 6."""

_CONTEXTS = "50,100,150,200,250,300,350,400,450,500"


def _lengths(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


@dataclasses.dataclass(frozen=True)
class AnalyzedRun:
    """Trained model of an analysis."""

    name: str
    """Name in figures and tables."""
    source: ModelFolder

    @property
    def has_memory(self) -> bool:
        """True if the model has a memory whose length can be chosen at evaluation."""
        return self.source.description.model.effective_memory_length > 0

    def load_model(self, memory_length: int | None = None) -> "tuple[int, LanguageModel]":
        """Builds the model in float32 with the run's evaluation lengths; returns its step too."""
        from txl_tf.evaluation.evaluation_model import config_of_evaluation

        step, weights = self.source.read_weights()
        description = self.source.description
        config = config_of_evaluation(description.model, description.evaluation)
        if memory_length is not None and self.has_memory:
            config = config.replace(memory_length=memory_length)
        return step, build_model(config, weights)


def read_runs(folders: Sequence[str]) -> list[AnalyzedRun]:
    """Reads the settings of trained models, without their weights.

    A model is named after its folder or, if names are equal, by its path. A repeated folder is a
    UsageError.
    """
    paths = [os.path.normpath(folder) for folder in folders]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(
            "A run is named twice.", where=f"--workdir {twice}", remedy="Name each run once."
        )
    names = [os.path.basename(path) for path in paths]
    names = names if len(set(names)) == len(names) else paths
    return [AnalyzedRun(*pair) for pair in zip(names, map(open_model, folders), strict=True)]


@dataclasses.dataclass(frozen=True)
class ContextJob:
    """Checked arguments of the analysis, and the models that it measures."""

    arguments: argparse.Namespace
    runs: list[AnalyzedRun]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        action="append",
        required=True,
        dest="workdirs",
        help="run, checkpoint, converted model or export; repeated, a group of models",
    )
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    parser.add_argument("--split", default="valid", help="split to read (default: valid)")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to make")
    parser.add_argument(
        "--context",
        dest="contexts",
        type=_lengths,
        metavar="TOKENS,...",
        default=_CONTEXTS,
        help=f"context lengths in equal steps, the steps of RECL (default: {_CONTEXTS})",
    )
    add_number(
        parser, "--tokens", 1, MAX_COUNT, "tokens to predict, drawn from the split", default=1000
    )
    add_number(parser, "--seed", 0, MAX_STEP, "seed that draws the tokens", default=0)
    add_number(parser, "--batch-size", 1, MAX_ROWS, "tokens to predict at a time", default=16)
    add_number(
        parser,
        "--context-memory",
        1,
        MAX_TOKENS,
        "memory length to read contexts with (default: as in the run's evaluations)",
        metavar="TOKENS",
    )
    add_json_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> ContextJob:
    """Checks the arguments before TensorFlow is imported."""
    contexts = arguments.contexts
    steps = {second - first for first, second in itertools.pairwise(contexts)}
    is_in_range = contexts[0] >= 1 and contexts[-1] <= MAX_TOKENS
    if len(steps) != 1 or min(steps) <= 0 or not is_in_range:
        raise UsageError(
            f"There must be at least two context lengths, 1 to {MAX_TOKENS}, in equal steps up.",
            where=f"--context {','.join(map(str, contexts))}"[:200],
        )
    job = ContextJob(arguments, read_runs(arguments.workdirs))
    if arguments.context_memory and not any(each.has_memory for each in job.runs):
        raise UsageError(
            "None of the models has a memory.",
            where="--context-memory",
            remedy="Leave --context-memory out.",
        )
    for each in job.runs:
        _require_memory(each, arguments)
    require_absent(arguments.out)
    return job


def _require_memory(run: AnalyzedRun, arguments: argparse.Namespace) -> None:
    model, num_rows = run.source.description.model, arguments.batch_size
    where, memory_length = f"--batch-size {num_rows}", model.memory_length
    if arguments.context_memory and run.has_memory:
        memory_length = arguments.context_memory
        where += f", --context-memory {memory_length}"
    require_reading_memory("The analysis", model, num_rows, 1, memory_length, where)


def run(job: ContextJob) -> None:
    """Measures, writes the report, and prints the tables."""
    arguments = job.arguments
    dataset = PreparedDataset.open(arguments.data)
    for each in job.runs:
        check_dataset(dataset.manifest, arguments.data, each.source.description)
    # Claims the folder before anything is measured.
    with StagingFolder(arguments.out, last_file=REPORT_FILE) as staging:
        report = _report(job, dataset)
        path = Path(staging.path) / REPORT_FILE
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        staging.publish()
    print(json.dumps(report) if arguments.json else format_context(report))


def _report(job: ContextJob, dataset: PreparedDataset) -> dict[str, Any]:
    from txl_tf.evaluation.effective_context import ModelGroup

    arguments, contexts = job.arguments, job.arguments.contexts
    windows = _draw_windows(arguments, dataset, contexts[-1])
    measurements = [_measure(each, windows, arguments) for each in job.runs]
    group = ModelGroup(contexts, np.stack([losses for _, losses in measurements]))
    for index, (facts, _) in enumerate(measurements):
        facts["perplexities"] = [group.perplexity(index, context) for context in contexts]
    names, step_size = [each.name for each in job.runs], contexts[1] - contexts[0]
    return {
        "split": arguments.split,
        "data_fingerprint": dataset.fingerprint,
        "num_tokens": group.num_tokens,
        "seed": arguments.seed,
        "contexts": contexts,
        "step_size": step_size,
        "runs": [facts for facts, _ in measurements],
        "relative_effective_context_length": group_report(group, names, step_size),
    }


def _draw_windows(
    arguments: argparse.Namespace, dataset: PreparedDataset, longest: int
) -> np.ndarray:
    """Draws tokens from the split, each with the longest context before it.

    Returns int `(N, longest + 1)`; the drawn token is the last. Contexts cross document boundaries.
    Tokens with less text before them are not drawn.
    """
    split = arguments.split
    check_dataset(dataset.manifest, dataset.folder, split=split)
    num_possible = dataset.num_tokens(split) - longest
    if num_possible <= 0:
        raise UsageError(
            f"The split {split} has no token with {longest} tokens before it.",
            where=dataset.folder,
            remedy="Shorten --context, or take another --split.",
        )
    num_tokens = min(arguments.tokens, num_possible)
    draws = np.random.default_rng(arguments.seed).choice(num_possible, num_tokens, replace=False)
    starts = map(int, np.sort(draws))
    return np.stack([dataset.read_tokens(split, start, start + longest + 1) for start in starts])


def _measure(
    run: AnalyzedRun, windows: np.ndarray, arguments: argparse.Namespace
) -> tuple[dict[str, Any], list]:
    """Returns a description of a run, and its losses by context length and token."""
    from txl_tf.evaluation.context_losses import ContextLosses

    step, model = run.load_model(arguments.context_memory)
    losses_of, contexts = ContextLosses(model, arguments.batch_size), arguments.contexts
    losses = [
        losses_of(windows[:, -(context + 1) :])
        for context in show_progress(contexts, len(contexts), run.name)
    ]
    facts = {
        "name": run.name,
        "step": step,
        "model": run.source.description.model.to_dict(),
        "num_parameters": model.count_params(),
        "segment_length": model.config.segment_length,
        "memory_length": model.config.memory_length,
    }
    return facts, losses


def group_report(group: "ModelGroup", names: Sequence[str], step_size: int) -> list[dict[str, Any]]:
    """Returns the RECL of each run for each share of hard tokens."""

    def length(model: int, ratio: float) -> dict[str, Any]:
        recl = group.relative_effective_context_length(model, ratio=ratio, step_size=step_size)
        return recl._asdict()

    return [
        {
            "ratio": ratio,
            "num_hard_tokens": len(group.hard_tokens(group.contexts[0], ratio)),
            "runs": {name: length(model, ratio) for model, name in enumerate(names)},
        }
        for ratio in RATIOS
    ]


def format_context(report: dict[str, Any]) -> str:
    """Formats the tables of a report."""
    groups = report["relative_effective_context_length"]
    runs = report["runs"]
    lengths = [["run", "parameters", "memory", *(f"r = {group['ratio']}" for group in groups)]]
    perplexities = [["context", *(run["name"] for run in runs)]]
    for run in runs:
        cells = [run["name"], f"{run['num_parameters']:,}", str(run["memory_length"] or "-")]
        lengths.append([*cells, *(_at_least(group["runs"][run["name"]]) for group in groups)])
    for index, context in enumerate(report["contexts"]):
        perplexities.append([str(context), *(f"{run['perplexities'][index]:.3f}" for run in runs)])
    titles = {
        f"Relative effective context length, steps of {report['step_size']} tokens": lengths,
        "Perplexity by context length": perplexities,
    }
    head = (
        f"{report['num_tokens']:,} tokens of the split {report['split']}, "
        f"each with {report['contexts'][0]} to {report['contexts'][-1]} tokens before it"
    )
    tables = [f"{title}\n{plain_table(rows)}" for title, rows in titles.items()]
    return "\n\n".join([head, *tables])


def _at_least(recl: dict[str, Any]) -> str:
    """Formats a length, marked if it is a lower bound."""
    return f">= {recl['length']}" if recl["is_lower_bound"] else str(recl["length"])
