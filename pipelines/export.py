"""Writes a trained model as a SavedModel for serving: `txl export`.

    txl export --workdir DIR --out DIR
    txl export --workdir DIR --out DIR --max-tokens 200 --temperature 0 --stop "."
    txl export --workdir DIR --out DIR --weights int8 --data DIR

The SavedModel is `OUT/VERSION`, one more than the highest version there is:
TensorFlow Serving takes the folder `OUT` and serves the highest number in it.
Existing versions are never changed. Its default signature takes texts and returns
their continuations, as the options of this command say.

The folder `--workdir` is that of a run, a checkpoint, a converted model, or another
export, whose weights are written anew. The card has the figures of the run's own
evaluations. With `--data`, it has the loss of the stored weights on the beginning of
a split too, and a model without a vocabulary gets the tokenizer of the data set.
"""

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txl_tf.config.base import DEFAULT_NEW_TOKENS
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.config.task import SERVED_KINDS
from txl_tf.errors import MismatchError, UsageError
from txl_tf.model_folder import ModelFolder, build_model, open_model
from txl_tf.storage.files import is_remote
from txl_tf.storage.untrusted_files import read_json_object

from .arguments import (
    MAX_COUNT,
    MAX_STEP,
    add_memory_length_argument,
    add_model_arguments,
    add_number,
)
from .checkpoint_watch import read_evaluations
from .generate import OF_DRAWING, add_generation_arguments, generation_config, option_of
from .memory_needs import reading_needs, require_memory_of
from .workdir import Workdir, open_dataset, with_chosen_step

if TYPE_CHECKING:
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.export import ExportOptions
    from txl_tf.models.transformer_xl import TransformerXL

# Limits of a request: default and help of each.
_LIMITS = {
    "max_text_bytes": (1 << 16, "most bytes of a text"),
    "max_input_tokens": (1 << 16, "most tokens of a row"),
    "max_output_tokens": (1024, "most tokens to write"),
    "num_candidates": (16, "tokens that next_token scores"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_memory_length_argument(add_model_arguments(parser))
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", required=True, help="folder of all versions")
    add_number(output, "--version", 1, MAX_STEP, "number of the version (default: the next)")
    output.add_argument(
        "--weights",
        choices=["float32", "bfloat16", "int8"],
        metavar="KIND",
        default="float32",
        help="float32, bfloat16 or int8 (default: float32)",
    )
    output.add_argument(
        "--memory-dtype",
        choices=["float32", "bfloat16"],
        default="float32",
        help="of the memory (default: float32)",
    )
    loss = parser.add_argument_group("measured loss")
    loss.add_argument("--data", metavar="DIR", help="prepared data set to measure the loss on")
    loss.add_argument("--split", default="valid", help="split of it (default: valid)")
    add_number(loss, "--sample-tokens", 2, MAX_STEP, "how much of the split", default=1 << 15)
    text = parser.add_argument_group("text")
    add_generation_arguments(text)
    output.add_argument(
        "--license", metavar="NAME", help="license of the weights (default: unknown)"
    )
    limits = parser.add_argument_group("limits of a request")
    for name, (default, meaning) in _LIMITS.items():
        add_number(limits, option_of(name), 1, MAX_COUNT, meaning, default=default)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    arguments.source = open_model(arguments.workdir, arguments.step)
    arguments.experiment = arguments.source.experiment
    if not isinstance(arguments.experiment.model, ModelConfig):
        raise UsageError(
            "Only models with attention are exported; this one is recurrent.",
            where=f"--workdir {arguments.workdir}",
        )
    if arguments.experiment.task is not None:
        check_task_options(arguments)
    _check_completion(arguments)
    model, memory_length = arguments.experiment.model, arguments.memory_length
    if memory_length is None:
        memory_length = model.memory_length
    where = f"--memory-length {memory_length}"
    require_memory_of(reading_needs(model, 1, 1, memory_length, where), "The export")
    out = arguments.out
    if not is_remote(out) and os.path.exists(out) and not os.path.isdir(out):
        raise UsageError("The output is not a folder.", where=f"--out {out}")


def _check_completion(arguments: argparse.Namespace) -> None:
    most = arguments.max_output_tokens
    config = generation_config(arguments, max_tokens=min(DEFAULT_NEW_TOKENS, most))
    if config.max_tokens > most:
        raise UsageError(
            f"A request may have {most} tokens written.",
            where=f"--max-tokens {config.max_tokens}",
            remedy="Give fewer, or raise --max-output-tokens.",
        )
    arguments.completion = config


def run(arguments: argparse.Namespace) -> None:
    """Exports, and prints the folder."""
    arguments.source = with_chosen_step(arguments.source)
    if arguments.experiment.task is not None:
        export_fine_tuned(arguments, model_card)
        return
    from txl_tf.export import ExportOptions, export_saved_model, next_version

    step, model = _read_model(arguments)
    experiment, described = arguments.experiment, arguments.source.description
    dataset = None
    if arguments.data is not None:
        dataset = open_dataset(arguments.data, experiment, described, arguments.split, verify=False)
    version = next_version(arguments.out) if arguments.version is None else arguments.version
    options = ExportOptions(
        weights=arguments.weights,
        memory_dtype=arguments.memory_dtype,
        **{name: getattr(arguments, name) for name in _LIMITS},
    )
    card = _card(arguments, model, step)
    if dataset is not None:
        card["sample"] = {"corpus": dataset.manifest.corpus_name, "split": arguments.split}
    folder = export_saved_model(
        model,
        os.path.join(arguments.out, str(version)),
        card,
        tokenizer=_required_tokenizer(arguments, dataset),
        options=options,
        completion=arguments.completion,
        sample_token_ids=None if dataset is None else _sample(arguments, dataset),
    )
    _report(os.fspath(folder), options)


def _report(folder: str, options: "ExportOptions") -> None:
    weights = read_json_object(os.path.join(folder, "assets.extra", "model_card.json"))
    weights = weights["serving"]["weights"]
    print(
        f"weights: {weights['num_parameters']} numbers as {options.weights}, "
        f"{weights['num_bytes']} bytes, {weights['share_of_float32']:.1%} of float32"
    )
    if "sample_nats_per_token" in weights:
        print(
            f"loss: {weights['sample_nats_per_token']:.6f} nats/token of "
            f"{weights['sample_tokens']} tokens, {weights['sample_loss_change']:+.4%} to float32"
        )
    print(f"SavedModel: {folder}")


def _read_model(arguments: argparse.Namespace) -> "tuple[int, TransformerXL]":
    config = arguments.experiment.model
    step, weights = arguments.source.read_weights()
    if arguments.memory_length is not None:
        config = config.replace(memory_length=arguments.memory_length)
    return step, build_model(config, weights)


def _sample(arguments: argparse.Namespace, dataset: "PreparedDataset") -> Any:
    length = min(arguments.sample_tokens, dataset.num_tokens(arguments.split))
    if length < 2:
        raise MismatchError(
            "The split has less than two tokens: there is nothing to measure.",
            where=f"--split {arguments.split}",
            remedy="Name a longer split, or no --data.",
        )
    return dataset.read_tokens(arguments.split, 0, length)


def _tokenizer(
    arguments: argparse.Namespace, dataset: "PreparedDataset | None"
) -> "Tokenizer | None":
    """Returns the tokenizer of the model, or else of the data."""
    from txl_tf.data.prepared_dataset import dataset_tokenizer

    found = arguments.source.tokenizer()
    if found is not None or dataset is None:
        return found
    return dataset_tokenizer(arguments.data, dataset.manifest)


def _required_tokenizer(
    arguments: argparse.Namespace, dataset: "PreparedDataset | None"
) -> "Tokenizer | None":
    tokenizer = _tokenizer(arguments, dataset)
    if tokenizer is None and arguments.stop:
        raise UsageError(
            "Without a vocabulary there are no texts to end before.",
            where=f"--stop {arguments.stop[0]}",
            remedy="Give --data, or leave it out.",
        )
    return tokenizer


def _card(arguments: argparse.Namespace, model: "TransformerXL", step: int) -> dict[str, Any]:
    experiment = arguments.experiment.replace(model=model.config)
    license_ = {} if arguments.license is None else {"license": arguments.license}
    source = arguments.source
    if source.run is None:
        card = model_card(experiment, {}, step)
        # The rest of the training is unknown.
        known = ("software", "model", "evaluation", "step")
        return license_ | {name: card[name] for name in known}
    quality = measured_quality(Workdir(source.folder), step)
    return license_ | model_card(experiment, source.run.data, step, **quality)


def measured_quality(workdir: Workdir, step: int) -> dict[str, Any]:
    """Reads the newest figures of the run's own evaluations of a checkpoint, by split.

    `txl evaluate --watch` stores all figures, `txl train` the losses.
    """
    from txl_tf.training.metrics import MetricsLog

    log = MetricsLog(workdir.metrics).read()
    shown = {} if log is None else log.evaluation_losses(step)
    return shown | {
        split: line["result"]
        for split, _, lines in read_evaluations(workdir.evaluations)
        for line in lines
        if line["result"]["step"] == step
    }


def model_card(
    experiment: ExperimentConfig, data: dict[str, Any], step: int, **quality: Any
) -> dict[str, Any]:
    """Builds the model card of an export as JSON values; `data` identifies the training data."""
    import txl_tf

    return {
        "software": f"txl-tf {txl_tf.__version__}",
        "model": experiment.model.to_dict(),
        "training": experiment.training.to_dict(),
        "optimizer": experiment.optimizer.to_dict(),
        "evaluation": experiment.evaluation.to_dict(),
        "data": data,
        "step": step,
        "quality": quality,
    }


# Options that change nothing for a task, which neither generates nor scores text.
_OF_LANGUAGE_MODELS = (
    *("data", "memory_length", "max_tokens", "repetition_penalty", "stop"),
    *OF_DRAWING,
)


def check_task_options(arguments: argparse.Namespace) -> None:
    """Raises UsageError for an option without effect on the run's task, or a task not served."""
    for name in _OF_LANGUAGE_MODELS:
        if getattr(arguments, name) not in (None, []):
            raise UsageError(
                "The run was fine-tuned for a task, whose export writes no text.",
                where=option_of(name),
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
    """Exports the model of a fine-tuned run with its head, and prints the folder."""
    from txl_tf.causal_lm.text_task import load_task
    from txl_tf.export import ExportOptions, export_task, next_version

    source: ModelFolder = arguments.source
    task = load_task(source.folder, source.step)
    version = next_version(arguments.out) if arguments.version is None else arguments.version
    options = ExportOptions(weights=arguments.weights, max_text_bytes=arguments.max_text_bytes)
    experiment = arguments.experiment
    data = {} if source.run is None else source.run.data
    card = model_card(experiment, data, task.step)
    if arguments.license is not None:
        card = {"license": arguments.license, **card}
    folder = os.path.join(arguments.out, str(version))
    export_task(task.model, experiment.task, task.tokenizer, folder, card, options=options)
    print(f"SavedModel: {folder}")
