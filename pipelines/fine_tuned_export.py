"""Export of a fine-tuned run, with the signature `classify`, by `txl export`."""

import argparse
import os
from collections.abc import Callable
from typing import Any

from txl_tf.causal_lm.model_source import ModelSource
from txl_tf.config.task import SERVED_KINDS
from txl_tf.errors import UsageError

# What a request is answered with follows from the task: nothing is written, nothing measured.
_OF_LANGUAGE_MODELS = (
    *("num_tokens", "seed", "data", "memory_length"),
    *("sampler", "temperature", "k", "p", "min_p", "stop"),
)


def check_task_options(arguments: argparse.Namespace) -> None:
    """Raises UsageError where an option is of no use for the task of a run, or it is not served."""
    for name in _OF_LANGUAGE_MODELS:
        if getattr(arguments, name) not in (None, []):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                "The run was fine-tuned for a task, whose export writes no text.",
                where=option,
                remedy="Leave it out.",
            )
    kind = arguments.experiment.task.kind
    if kind not in SERVED_KINDS:
        raise UsageError(
            f"A task of kind {kind} has no signature that takes a text.",
            where=f"--workdir {arguments.workdir}",
            remedy="Answer with `txl finetune --predict`, or in Python with `txl_tf.load_task`.",
        )


def export_fine_tuned(
    arguments: argparse.Namespace, model_card: Callable[..., dict[str, Any]]
) -> None:
    """Exports the model of a fine-tuned run with its head, and prints the folder.

    Args:
        arguments: `argparse.Namespace` of `txl export`.
        model_card: function that builds the card, see `pipelines.export`.
    """
    from txl_tf.causal_lm.text_task import load_task
    from txl_tf.export import ExportOptions, export_task, next_version

    source: ModelSource = arguments.source
    task = load_task(source.folder, source.step)
    version = next_version(arguments.out) if arguments.version is None else arguments.version
    options = ExportOptions(weights=arguments.weights, max_text_bytes=arguments.max_text_bytes)
    experiment = arguments.experiment
    card = model_card(experiment, arguments.data_identity, task.step)
    if arguments.license is not None:
        card = {"license": arguments.license, **card}
    folder = os.path.join(arguments.out, str(version))
    export_task(task.model, experiment.task, task.tokenizer, folder, card, options=options)
    print(f"SavedModel: {folder}")
