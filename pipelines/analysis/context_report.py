"""Report of the context analysis as JSON values and as tables."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from txl_tf.evaluation.context_length import (
    EffectiveMemoryLength,
    ModelGroup,
    relative_effective_context_length,
)

RATIOS = (0.1, 0.5, 1.0)
"""Shares of hard tokens, `r`, of the paper's Table 6."""


def group_report(group: ModelGroup, names: Sequence[str], step_size: int) -> list[dict[str, Any]]:
    """Reports the RECL of each run for each share of hard tokens.

    Args:
        group: `ModelGroup`.
        names: list of str. Names of its models.
        step_size: int. Tokens that each step adds.

    Returns:
        List with a dict of JSON values for each of `RATIOS`: `ratio`,
        `num_hard_tokens` and `runs`, in which each name has its `length`,
        `is_lower_bound` and the `gains` of all steps that were measured, those
        beyond its `length` too.
    """
    steps = [
        (context, context + step_size)
        for context in range(group.contexts[0], group.contexts[-1] - step_size + 1, step_size)
    ]
    return [
        {
            "ratio": ratio,
            "num_hard_tokens": len(group.hard_tokens(group.contexts[0], ratio)),
            "runs": {
                name: _run_report(group, model, ratio, step_size, steps)
                for model, name in enumerate(names)
            },
        }
        for ratio in RATIOS
    ]


def _run_report(
    group: ModelGroup, model: int, ratio: float, step_size: int, steps: list[tuple[int, int]]
) -> dict[str, Any]:
    found = relative_effective_context_length(group, model, ratio=ratio, step_size=step_size)
    return {
        "length": found.length,
        "is_lower_bound": found.is_lower_bound,
        "gains": [
            {
                "short": short,
                "long": long,
                "relative_gain": group.relative_gain(model, short, long, ratio),
                "perplexity_gain": group.perplexity_gain(model, short, long, ratio),
            }
            for short, long in steps
        ],
    }


def memory_report(found: EffectiveMemoryLength, training_length: int) -> dict[str, Any]:
    """Returns the longest useful memory of a run, beside that of training.

    Args:
        found: `EffectiveMemoryLength`.
        training_length: int. Tokens remembered in training.
    """
    return {
        **dataclasses.asdict(found),
        "training_length": training_length,
        "times_training_length": found.length / training_length,
    }


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """Prints the tables.

    Args:
        report: dict that `txl analyze context` writes.
        console: optional `rich.console.Console`.
    """
    console = console or Console()
    console.print(
        f"{report['num_tokens']:,} tokens of the split {report['split']}, "
        f"each with {report['contexts'][0]} to {report['contexts'][-1]} tokens before it"
    )
    console.print(_recl_table(report))
    console.print(_perplexity_table(report))
    if any(run["memory"] is not None for run in report["runs"]):
        console.print(_memory_table(report))


def _recl_table(report: dict[str, Any]) -> Table:
    groups = report["relative_effective_context_length"]
    table = Table(
        "run",
        "parameters",
        *(f"r = {group['ratio']}" for group in groups),
        title=f"Relative effective context length, steps of {report['step_size']} tokens",
    )
    for run in report["runs"]:
        lengths = [_at_least(group["runs"][run["name"]]) for group in groups]
        table.add_row(run["name"], f"{run['num_parameters']:,}", *lengths)
    return table


def _perplexity_table(report: dict[str, Any]) -> Table:
    names = [run["name"] for run in report["runs"]]
    table = Table("context", *names, title="Perplexity by context length")
    for index, context in enumerate(report["contexts"]):
        values = [f"{run['perplexities'][index]:.3f}" for run in report["runs"]]
        table.add_row(str(context), *values)
    return table


def _memory_table(report: dict[str, Any]) -> Table:
    table = Table(
        "run",
        "in training",
        "longest useful",
        "times training's",
        "perplexity",
        title="Memory length at evaluation, whole split",
    )
    for run in report["runs"]:
        memory = run["memory"]
        if memory is not None:
            perplexity = dict(memory["perplexities"])[memory["length"]]
            table.add_row(
                run["name"],
                str(memory["training_length"]),
                _at_least(memory),
                f"{memory['times_training_length']:.2f}",
                f"{perplexity:.3f}",
            )
    return table


def _at_least(found: dict[str, Any]) -> str:
    """Returns a length; with a mark where more was not measured."""
    return f">= {found['length']}" if found["is_lower_bound"] else str(found["length"])
