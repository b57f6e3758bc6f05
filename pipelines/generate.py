"""Writes text with a trained model: `txl generate`.

txl generate --workdir DIR --prompt "def " --max-tokens 200
txl generate --workdir DIR --session story.npz
echo "Once" | txl generate --workdir DIR

Without a prompt it reads one from a pipe. On a terminal it asks for one after the other.
"""

import argparse
import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txl_tf.config.model import ModelConfig
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.storage.files import path_exists, read_file
from txl_tf.storage.untrusted_files import storage_errors

from .arguments import add_memory_length_argument, add_model_arguments, add_number
from .generation_arguments import (
    OF_DRAWING,
    add_generation_arguments,
    generation_config,
    is_utf8,
    option_of,
)
from .memory_needs import MemoryNeed, reading_needs, require_memory_of
from .progress import say
from .trained_model import open_source, with_chosen_step

if TYPE_CHECKING:
    from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
    from txl_tf.causal_lm.text_session import TextSession
    from txl_tf.generation import SessionFile

_MAX_PROMPT_BYTES = 16 << 20
_REMEDY = "Give --prompt, --prompt-file or a pipe, continue a --session, or use a terminal."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_memory_length_argument(add_model_arguments(parser))
    text = parser.add_argument_group("text")
    prompt = text.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="text to continue (default: the standard input)")
    prompt.add_argument("--prompt-file", metavar="FILE", help="file with the text to continue")
    add_number(text, "--num-samples", 1, 1 << 20, "texts to write", default=1)
    text.add_argument(
        "--join-marks",
        action="store_true",
        help="join words at WikiText's @-@, @,@ and @.@; such text is not read back the same",
    )
    text.add_argument(
        "--session", metavar="FILE", help="continue the text of this file, and keep it up to date"
    )
    sampling = parser.add_argument_group("sampling")
    add_generation_arguments(sampling)
    add_number(sampling, "--beams", 1, 1 << 16, "search with N beams instead of sampling")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    source = open_source(arguments)
    if source.data is None and source.tokenizer() is None:
        raise InputMissingError(
            "The model has no tokenizer, which turns text into tokens.",
            where=f"--workdir {arguments.workdir}",
            remedy="Convert or export it again with --data, which keeps the tokenizer.",
        )
    if arguments.join_marks and not getattr(source.tokenizer(), "has_marks", False):
        what = "The vocabulary of the model has no marks like @-@."
        raise UsageError(what, where="--join-marks", remedy="Leave it out.")
    arguments.prompt = _prompt(arguments)
    _check_combinations(arguments)
    require_memory_of(_needs(arguments), "Writing")


def _needs(arguments: argparse.Namespace) -> list[MemoryNeed]:
    model = arguments.experiment.model
    num_rows = max(arguments.num_samples, arguments.beams or 1)
    memory_length = arguments.memory_length
    if memory_length is None:
        memory_length = model.memory_length
    rows = f"--num-samples {arguments.num_samples}"
    if arguments.beams is not None:
        rows = f"--beams {arguments.beams}"
    where = f"{rows}, --memory-length {memory_length}"
    needs = reading_needs(model, num_rows, 1, memory_length, where)
    # A float32 per row and token of the vocabulary, and an int32 per row and written token.
    logits = MemoryNeed("what may come next", 4 * num_rows * model.vocabulary_size, rows)
    if num_rows == 1:
        return [*needs, logits]
    tokens = 4 * num_rows * arguments.generation.max_tokens
    where = f"{rows}, --max-tokens {arguments.generation.max_tokens}"
    return [*needs, logits, MemoryNeed("the tokens", tokens, where)]


def _prompt(arguments: argparse.Namespace) -> str | None:
    prompt, where = arguments.prompt, arguments.prompt_file
    try:
        if where is not None:
            with storage_errors("The prompt cannot be read", where, ""):
                prompt = _read_prompt(where).decode("utf-8")
        elif prompt is None and sys.stdin is not None and not sys.stdin.isatty():
            where = "standard input"
            prompt = _read_pipe().decode("utf-8") or None
    except UnicodeDecodeError as error:
        raise UsageError("The prompt is no UTF-8.", where=where) from error
    if prompt is not None and not is_utf8(prompt):
        raise UsageError("The prompt is no UTF-8.", where=f"--prompt {prompt[:80]!a}")
    if prompt == "":
        raise UsageError("There must be something to go on from.", where="--prompt")
    return prompt


def _read_prompt(path: str) -> bytes:
    try:
        return read_file(path, max_bytes=_MAX_PROMPT_BYTES)
    except FileNotFoundError as error:
        where = f"--prompt-file {path}"
        raise InputMissingError("There is no such file.", where=where) from error


def _read_pipe() -> bytes:
    """Reads the standard input, without the last line end."""
    content = sys.stdin.buffer.read(_MAX_PROMPT_BYTES + 1)
    if len(content) > _MAX_PROMPT_BYTES:
        raise UsageError(
            f"A prompt has at most {_MAX_PROMPT_BYTES:,} bytes.", where="standard input"
        )
    return content.removesuffix(b"\n").removesuffix(b"\r")


def _check_combinations(arguments: argparse.Namespace) -> None:
    has_several = arguments.num_samples > 1
    if arguments.session is not None and (has_several or arguments.beams is not None):
        where = "--session with --num-samples or --beams"
        raise UsageError("A session is of one text that is drawn.", where=where)
    if has_several and arguments.beams is not None:
        raise UsageError("Beams find one text.", where="--beams with --num-samples")
    is_recurrent = not isinstance(arguments.experiment.model, ModelConfig)
    if arguments.memory_length is not None and is_recurrent:
        raise UsageError("A recurrent model has no memory length.", where="--memory-length")
    for name in OF_DRAWING:
        if arguments.beams is not None and getattr(arguments, name) is not None:
            raise UsageError("Beams draw nothing.", where=f"--beams with {option_of(name)}")
    arguments.generation = generation_config(arguments)
    if arguments.prompt is not None:
        return
    goes_on = arguments.session is not None and path_exists(arguments.session)
    is_conversation = sys.stdin.isatty() and not has_several and arguments.beams is None
    if not (is_conversation or goes_on):
        raise UsageError("There is nothing to go on from.", where="--prompt", remedy=_REMEDY)


def run(arguments: argparse.Namespace) -> None:
    """Generates, and prints the text piece by piece."""
    from txl_tf.generation import SessionFile

    if arguments.session is None:
        _write(arguments, None)
        return
    # Locked from the beginning, so that a second process fails before it generates.
    with SessionFile(arguments.session) as file:
        _write(arguments, file)


def _write(arguments: argparse.Namespace, file: "SessionFile | None") -> None:
    from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM

    source = with_chosen_step(arguments.source)
    tokenizer = source.tokenizer()
    if tokenizer is not None and arguments.join_marks:
        tokenizer.joins_marks = True
    lm = TransformerXLCausalLM(source.load_model(), tokenizer)
    words = arguments.generation.to_dict() | {"memory_length": arguments.memory_length}
    if arguments.num_samples > 1 or arguments.beams is not None:
        _write_at_once(lm, words, arguments)
        return
    max_tokens = words.pop("max_tokens")
    session = lm.session(**words)
    goes_on = file is not None and file.exists()
    if file is not None and goes_on:
        session.load(file)
    _say_seed(session.seed, arguments)
    if arguments.prompt is None and sys.stdin.isatty():
        converse(session, max_tokens, can_go_on=goes_on, after_turn=lambda: _save(session, file))
        return
    shown = arguments.prompt or ""
    for piece in session.stream(arguments.prompt, max_tokens=max_tokens):
        # The prompt comes with the first piece, after the messages about it.
        sys.stdout.write(shown + piece)
        sys.stdout.flush()
        shown = ""
    sys.stdout.write(shown + "\n")
    _save(session, file)


def _write_at_once(
    lm: "TransformerXLCausalLM", words: dict[str, Any], arguments: argparse.Namespace
) -> None:
    """Writes texts that are complete only at the end: several samples, or the result of beams."""
    if arguments.beams is not None:
        from txl_tf.samplers import BeamSampler

        words = {name: each for name, each in words.items() if name not in OF_DRAWING}
        words["sampler"] = BeamSampler(arguments.beams)
    # A list of prompts, so that the result is a list.
    texts = lm.generate([arguments.prompt], num_samples=arguments.num_samples, **words)
    _say_seed(lm.last_seed, arguments)
    for index, text in enumerate(texts):
        if len(texts) > 1:
            sys.stdout.write(f"--- {index + 1} of {len(texts)}\n")
        sys.stdout.write(f"{text}\n")


def _say_seed(seed: int | None, arguments: argparse.Namespace) -> None:
    if arguments.generation.temperature and arguments.beams is None:
        say(f"seed {seed}")


def _save(session: "TextSession", file: "SessionFile | None") -> None:
    if file is None:
        return
    remedy = "Check the folder and the space on the disk."
    with storage_errors("The session cannot be written", file.path, remedy):
        session.save(file)


_INVITATION = "> "
_HELP = "A line is continued; an empty line asks for more. Ctrl-C stops, Ctrl-D ends."


def converse(
    session: "TextSession", max_tokens: int, *, can_go_on: bool, after_turn: Callable[[], None]
) -> None:
    """Reads lines and writes their continuations until the input ends.

    With `can_go_on`, the session has a text that an empty line continues. `after_turn` runs after
    every text.
    """
    print(_HELP, file=sys.stderr)
    while (line := _next_line()) is not None:
        if not line and not can_go_on:
            continue
        with _interruption() as is_interrupted:
            try:
                for piece in session.stream(line or None, max_tokens=max_tokens):
                    sys.stdout.write(piece)
                    sys.stdout.flush()
                    if is_interrupted():
                        break
            except UsageError as error:
                print(error, file=sys.stderr)
                continue
        sys.stdout.write("\n")
        can_go_on = True
        after_turn()


def _next_line() -> str | None:
    try:
        # Not the prompt of `input`, so that the standard output has only text.
        print(_INVITATION, end="", file=sys.stderr, flush=True)
        return input()
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None


@contextlib.contextmanager
def _interruption() -> Iterator[Callable[[], bool]]:
    """Yields a test for Ctrl-C: the session can stop only between two tokens."""
    signals: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: signals.append(number))
    try:
        yield lambda: bool(signals)
    finally:
        signal.signal(signal.SIGINT, previous)
