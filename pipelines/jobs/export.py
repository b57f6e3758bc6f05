"""Writes a trained model as a SavedModel for serving: `txl export`.

    txl export --workdir DIR --out DIR
    txl export --workdir DIR --out DIR --max-tokens 200 --temperature 0 --stop "."
    txl export --workdir DIR --out DIR --weights int8

The SavedModel is `OUT/VERSION`, with the number after the highest version in `OUT`; existing
versions do not change. TensorFlow Serving takes the folder `OUT` and serves the highest version. It
continues texts; the options of a text are the defaults of a request.

`--workdir` is a run, a checkpoint, a converted model, or another export. A model without a
vocabulary gets the vocabulary of `--data`. `txl evaluate --workdir OUT` measures what
`--weights int8` loses.
"""

import argparse
import dataclasses
import os
from typing import Any

from txl_tf.config.generation import DEFAULT_NEW_TOKENS, GenerationConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.prepared_dataset import dataset_tokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import UsageError
from txl_tf.model_folder import ModelFolder, build_model, open_dataset, open_model
from txl_tf.storage.files import is_remote

from ..run.memory_needs import require_reading_memory
from ..shell.arguments import (
    MAX_COUNT,
    MAX_STEP,
    NUMBERS_OF_TEXT,
    add_generation_arguments,
    add_memory_length_argument,
    add_model_arguments,
    add_number,
    generation_config,
    option_of,
)
from ..shell.step_choice import with_chosen_step

# Limits of a request: default and help of each.
_LIMITS = {
    "max_text_bytes": (1 << 16, "most bytes of a text"),
    "max_input_tokens": (1 << 16, "most tokens of a row"),
    "max_output_tokens": (1024, "most tokens to write"),
}
# Options that change nothing for a task, which neither generates nor scores text.
_OF_LANGUAGE_MODELS = (
    "data",
    "memory_length",
    "stop",
    "logit_bias",
    *NUMBERS_OF_TEXT,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_memory_length_argument(add_model_arguments(parser))
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", required=True, help="folder of the versions")
    add_number(output, "--version", 1, MAX_STEP, "number of the version (default: the next)")
    output.add_argument(
        "--weights",
        choices=["float32", "bfloat16", "int8"],
        metavar="KIND",
        default="float32",
        help="float32, bfloat16 or int8 (default: float32)",
    )
    output.add_argument("--data", metavar="DIR", help="prepared data set with the vocabulary")
    add_generation_arguments(parser.add_argument_group("text"))
    limits = parser.add_argument_group("limits of a request")
    for name, (default, meaning) in _LIMITS.items():
        add_number(limits, option_of(name), 1, MAX_COUNT, meaning, default=default)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportJob:
    """Checked arguments of the job; `options` are the arguments of `ExportOptions`."""

    source: ModelFolder
    arguments: argparse.Namespace
    completion: GenerationConfig
    options: dict[str, Any]


def check_arguments(arguments: argparse.Namespace) -> ExportJob:
    """Checks the arguments before TensorFlow is imported."""
    source = open_model(arguments.workdir, arguments.step)
    model, memory_length = source.description.model, arguments.memory_length
    if not isinstance(model, ModelConfig):
        raise UsageError(
            "The model must be a Transformer-XL; a recurrent model cannot be exported.",
            where=f"--workdir {arguments.workdir}",
        )
    if source.description.task is not None:
        _check_task(arguments)
    job = ExportJob(
        source=source,
        arguments=arguments,
        completion=_completion(arguments, model.vocabulary_size),
        options={name: getattr(arguments, name) for name in ("weights", *_LIMITS)},
    )
    if memory_length is None:
        memory_length = model.memory_length
    require_reading_memory(
        "The export", model, 1, 1, memory_length, f"--memory-length {memory_length}"
    )
    out = arguments.out
    if not is_remote(out) and os.path.exists(out) and not os.path.isdir(out):
        raise UsageError("The output is not a folder.", where=f"--out {out}")
    return job


def _check_task(arguments: argparse.Namespace) -> None:
    for name in _OF_LANGUAGE_MODELS:
        if getattr(arguments, name) not in (None, []):
            raise UsageError(
                f"The export of a fine-tuned task does not use {option_of(name)}.",
                where=option_of(name),
                remedy="Leave it out.",
            )


def _completion(arguments: argparse.Namespace, vocabulary_size: int) -> GenerationConfig:
    most = arguments.max_output_tokens
    max_tokens = min(DEFAULT_NEW_TOKENS, most)
    config = generation_config(arguments, vocabulary_size, max_tokens=max_tokens)
    if config.max_tokens > most:
        raise UsageError(
            f"--max-tokens must be at most --max-output-tokens, which is {most}.",
            where=f"--max-tokens {config.max_tokens}",
            remedy="Lower --max-tokens, or raise --max-output-tokens.",
        )
    return config


def run(job: ExportJob) -> None:
    """Exports, and prints the folder."""
    from txl_tf.export import ExportOptions, export_saved_model, next_version

    source, arguments = with_chosen_step(job.source), job.arguments
    version = next_version(arguments.out) if arguments.version is None else arguments.version
    folder = os.path.join(arguments.out, str(version))
    model: Any
    tokenizer: Tokenizer | None
    if source.description.task is not None:
        from txl_tf.causal_lm.text_task import load_task

        task = load_task(source.folder, source.step)
        model, tokenizer, step = task.model, task.tokenizer, task.step
    else:
        tokenizer = _tokenizer(job)
        step, weights = source.read_weights()
        config = source.description.model
        if arguments.memory_length is not None:
            config = config.replace(memory_length=arguments.memory_length)
        model = build_model(config, weights)
    export_saved_model(
        model,
        folder,
        tokenizer=tokenizer,
        options=ExportOptions(**job.options),
        completion=job.completion,
        description=dataclasses.replace(source.description, step=step),
    )
    print(f"SavedModel: {folder}")


def _tokenizer(job: ExportJob) -> Tokenizer | None:
    """Returns the tokenizer of the model, or else of the data."""
    tokenizer, data = job.source.tokenizer(), job.arguments.data
    if data is not None:
        dataset = open_dataset(data, job.source.description, None, verify=False)
        tokenizer = tokenizer or dataset_tokenizer(data, dataset.manifest)
    if tokenizer is None and job.completion.stop:
        raise UsageError(
            "The model has no vocabulary, which a stop text needs.",
            where=f"--stop {job.completion.stop[0]}",
            remedy="Give --data, or leave --stop out.",
        )
    return tokenizer
