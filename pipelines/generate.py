"""Writes text with a trained model: `txl generate`.

txl generate --workdir DIR --prompt "def " --num-tokens 200
"""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipelines.workdir import Workdir, add_workdir_argument
from txl_tf.errors import UsageError

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
    from txl_tf.generation import Sampler
    from txl_tf.models.transformer_xl import TransformerXL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_workdir_argument(parser)
    parser.add_argument("--prompt", required=True, help="text to go on from")
    parser.add_argument(
        "--num-tokens", type=int, default=400, metavar="N", help="tokens to write (default: 400)"
    )
    parser.add_argument(
        "--sampler",
        choices=["greedy", "random", "top_k", "top_p"],
        default="top_p",
        help="how the next token is picked (default: top_p)",
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="default: 1")
    parser.add_argument("--k", type=int, default=40, help="candidates of top_k (default: 40)")
    parser.add_argument("--p", type=float, default=0.9, help="probability of top_p (default: 0.9)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same text")
    parser.add_argument("--memory-length", type=int, help="tokens remembered; default: the model's")
    parser.add_argument("--step", type=int, help="checkpoint to use (default: the newest)")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    arguments.experiment, arguments.data_identity = Workdir(arguments.workdir).read()
    if not arguments.prompt:
        raise UsageError("There must be something to go on from.", where="--prompt")
    rules = {
        "num_tokens": arguments.num_tokens > 0,
        "temperature": arguments.temperature > 0,
        "k": arguments.k > 0,
        "p": 0 < arguments.p <= 1,
        "seed": 0 <= arguments.seed < 2**31,
        "memory_length": arguments.memory_length is None or arguments.memory_length >= 0,
    }
    for name, is_right in rules.items():
        if not is_right:
            option = "--" + name.replace("_", "-")
            raise UsageError(
                "The value is out of range.", where=f"{option} {getattr(arguments, name)}"
            )


def run(arguments: argparse.Namespace) -> None:
    """Generates, and prints the text as it comes."""
    from pipelines.trained_model import build_model, read_weights, tokenizer_of

    _, weights = read_weights(Workdir(arguments.workdir), arguments.step)
    tokenizer = tokenizer_of(arguments.data_identity, arguments.workdir)
    config = arguments.experiment.model
    if arguments.memory_length is not None:
        config = config.replace(memory_length=arguments.memory_length)
    pieces = write_text(
        build_model(config, weights),
        tokenizer,
        arguments.prompt,
        num_tokens=arguments.num_tokens,
        sampler=_sampler(arguments),
        seed=arguments.seed,
    )
    sys.stdout.write(arguments.prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")


def write_text(
    model: "TransformerXL",
    tokenizer: "ByteTokenizer",
    prompt: str,
    *,
    num_tokens: int,
    sampler: "Sampler",
    seed: int,
) -> Iterator[str]:
    """Continues a prompt.

    Args:
        model: `TransformerXL`.
        tokenizer: the tokenizer it was trained with.
        prompt: str. At least one token.
        num_tokens: int. Tokens to write.
        sampler: see `txl_tf.generation.generate`.
        seed: int.

    Yields:
        Pieces of text. A byte that is no UTF-8 becomes the replacement sign.
    """
    import codecs

    import numpy as np

    from txl_tf.generation import TokenStream

    prompt_ids = np.asarray(tokenizer.encode(prompt.encode()))[None]
    stream = TokenStream(model, prompt_ids, sampler=sampler, seed=seed)
    # A character may take several tokens, so decoding has to wait for the last.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for _, token_ids in zip(range(num_tokens), stream, strict=False):
        yield decoder.decode(tokenizer.decode(token_ids))
    yield decoder.decode(b"", final=True)


def _sampler(arguments: argparse.Namespace) -> "Sampler":
    from txl_tf.samplers.greedy_sampler import GreedySampler
    from txl_tf.samplers.random_sampler import RandomSampler
    from txl_tf.samplers.top_k_sampler import TopKSampler
    from txl_tf.samplers.top_p_sampler import TopPSampler

    if arguments.sampler == "greedy":
        return GreedySampler()
    if arguments.sampler == "top_k":
        return TopKSampler(arguments.k, arguments.temperature)
    if arguments.sampler == "top_p":
        return TopPSampler(arguments.p, arguments.temperature)
    return RandomSampler(arguments.temperature)


if __name__ == "__main__":
    from pipelines.command_line import run_job

    sys.exit(run_job("generate"))
