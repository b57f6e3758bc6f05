"""Writes text with a trained model: `txl generate`.

    txl generate --workdir DIR --prompt "def " --max-tokens 200
    echo "Once" | txl generate --workdir DIR

Without `--prompt` it reads the prompt from a pipe, or asks for prompts on a terminal.
"""

import argparse
import dataclasses
import signal
import sys
from typing import TYPE_CHECKING, Any

from txl_tf.config.generation import GenerationConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.sources.file_kinds import check_text
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.errors import UsageError
from txl_tf.model_folder import ModelFolder, open_model, required_tokenizer

from ..run.memory_needs import require_reading_memory
from ..shell.arguments import (
    OF_DRAWING,
    add_generation_arguments,
    add_memory_length_argument,
    add_model_arguments,
    add_number,
    generation_config,
    is_utf8,
    option_of,
)
from ..shell.progress import say
from ..shell.step_choice import with_chosen_step

if TYPE_CHECKING:
    from txl_tf.causal_lm.text_session import TextSession


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_memory_length_argument(add_model_arguments(parser))
    text = parser.add_argument_group("text")
    text.add_argument("--prompt", help="text to continue (default: the standard input)")
    text.add_argument(
        "--ids", action="store_true", help="read the prompt and write the text as token ids"
    )
    add_number(text, "--num-samples", 1, 1 << 20, "texts to write", default=1)
    text.add_argument(
        "--join-marks",
        action="store_true",
        help="join words at WikiText's @-@, @,@ and @.@; joined text encodes to other tokens",
    )
    sampling = parser.add_argument_group("sampling")
    add_generation_arguments(sampling)
    add_number(sampling, "--beams", 1, 1 << 16, "search with N beams instead of drawing")
    meaning = "auto rounds weights and memory where that is faster (default: auto)"
    choices = ("auto", "float32")
    sampling.add_argument("--storage-dtype", choices=choices, default="auto", help=meaning)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateJob:
    """Checked arguments of the job."""

    source: ModelFolder
    settings: GenerationConfig
    prompt: str | None
    arguments: argparse.Namespace


def check_arguments(arguments: argparse.Namespace) -> GenerateJob:
    """Checks the arguments before TensorFlow is imported."""
    source = open_model(arguments.workdir, arguments.step)
    tokenizer = (
        None if arguments.ids else required_tokenizer(source, f"--workdir {arguments.workdir}")
    )
    if arguments.join_marks and not getattr(tokenizer, "has_marks", False):
        raise UsageError(
            "The vocabulary of the model has no marks like @-@, or --ids is given.",
            where="--join-marks",
            remedy="Leave --join-marks out.",
        )
    job = GenerateJob(
        source=source,
        settings=generation_config(arguments, source.description.model.vocabulary_size),
        prompt=_prompt(arguments.prompt),
        arguments=arguments,
    )
    _check_combinations(job)
    model, memory_length = source.description.model, arguments.memory_length
    memory_length = model.effective_memory_length if memory_length is None else memory_length
    num_rows = arguments.beams or arguments.num_samples
    where = f"--num-samples {num_rows}" if arguments.beams is None else f"--beams {num_rows}"
    require_reading_memory(
        "Writing", model, num_rows, 1, memory_length, f"{where}, --memory-length {memory_length}"
    )
    return job


def _prompt(prompt: str | None) -> str | None:
    """Returns the prompt of the option, or of a pipe without the last line end."""
    if prompt == "":
        raise UsageError("The prompt is empty.", where="--prompt")
    if prompt is None and sys.stdin is not None and not sys.stdin.isatty():
        content = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
        check_text(content, "standard input")
        prompt = content.decode("utf-8", "surrogateescape") or None
    if prompt is not None and not is_utf8(prompt):
        raise UsageError("The prompt is not valid UTF-8.", where=f"prompt {prompt[:80]!a}")
    return prompt


def _check_combinations(job: GenerateJob) -> None:
    """Refuses options that exclude each other."""
    arguments, model = job.arguments, job.source.description.model
    others = ["--num-samples"] * (arguments.num_samples > 1)
    others += [option_of(name) for name in OF_DRAWING if getattr(arguments, name) is not None]
    if arguments.beams is not None and others:
        raise UsageError(
            f"--beams excludes {others[0]}: beam search writes one text and draws no tokens.",
            where=f"--beams with {others[0]}",
            remedy="Leave one of them out.",
        )
    if arguments.memory_length is not None and not isinstance(model, ModelConfig):
        raise UsageError(
            "The model is recurrent: its memory has no length to set.",
            where="--memory-length",
            remedy="Leave the option out.",
        )
    is_conversation = arguments.num_samples == 1 and arguments.beams is None
    if job.prompt is None and not (is_conversation and sys.stdin.isatty()):
        raise UsageError(
            "There is no text to continue.",
            where="--prompt",
            remedy="Give --prompt or a pipe, or use a terminal.",
        )


def run(job: GenerateJob) -> None:
    """Generates, and prints the text piece by piece."""
    from txl_tf.causal_lm.text_generator import TextGenerator
    from txl_tf.samplers import BeamSampler

    arguments, source = job.arguments, with_chosen_step(job.source)
    tokenizer = source.tokenizer()
    if arguments.ids:
        tokenizer = IdTokenizer(source.description.model.vocabulary_size)
    if tokenizer is not None and arguments.join_marks:
        tokenizer.joins_marks = True
    lm = TextGenerator(source.load_model(), tokenizer)
    draws = job.settings.temperature > 0 and arguments.beams is None  # by the seed
    words: dict[str, Any] = job.settings.to_dict()
    words |= {"memory_length": arguments.memory_length, "storage_dtype": arguments.storage_dtype}
    if arguments.num_samples > 1 or arguments.beams is not None:
        if arguments.beams is not None:
            words = {name: each for name, each in words.items() if name not in OF_DRAWING}
            words["sampler"] = BeamSampler(arguments.beams)
        # A list of prompts, so that the result is a list.
        texts = lm.generate([job.prompt], num_samples=arguments.num_samples, **words)
        if draws:
            say(f"seed {lm.last_seed}")
        for index, text in enumerate(texts):
            if len(texts) > 1:
                print(f"--- {index + 1} of {len(texts)}")
            print(text)
        return
    session = lm.session(**words)
    if draws:
        say(f"seed {session.seed}")
    if job.prompt is None:
        _converse(session)
        return
    echo = job.prompt
    for piece in session.stream(job.prompt):
        # The prompt comes with the first piece, after the messages about it.
        print(echo + piece, end="", flush=True)
        echo = ""
    print(echo)


def _converse(session: "TextSession") -> None:
    """Reads lines and writes their continuations until the input ends."""
    # The session can stop only between two tokens.
    signals: list[int] = []
    can_continue = False
    print(
        "Enter a text to continue, or nothing for more. Ctrl-C stops, Ctrl-D ends.", file=sys.stderr
    )
    while (line := _next_line()) is not None:
        if not line and not can_continue:
            continue
        signals.clear()
        previous = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
        try:
            for piece in session.stream(line or None):
                print(piece, end="", flush=True)
                if signals:
                    break
        except UsageError as error:
            print(error, file=sys.stderr)
            continue
        finally:
            signal.signal(signal.SIGINT, previous)
        print()
        can_continue = True


def _next_line() -> str | None:
    try:
        # Not the prompt of `input`, so that the standard output has only text.
        print("> ", end="", file=sys.stderr, flush=True)
        return input()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None
