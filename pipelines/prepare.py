"""Turns text into a prepared data set: `txl prepare`.

    txl prepare --text FILE --tokenizer bytes --out DIR
    txl prepare --corpus python_standard_library --out DIR

The folder holds the token stream as TFRecord files, in order, and a manifest;
it is good for any batch size, segment length and number of hosts.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from txl_tf.data.corpora.python_standard_library import python_standard_library_splits
from txl_tf.data.corpora.text_file import read_text_splits, text_file_bytes
from txl_tf.data.staging_folder import require_absent
from txl_tf.errors import UsageError

if TYPE_CHECKING:
    from txl_tf.data.manifest import Manifest

_BYTES_PER_MEGABYTE = 1_000_000
_SECONDS_BETWEEN_LINES = 10.0
_DEFAULT_FRACTION = 0.05

ReportBytes = Callable[[str, int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job.

    Args:
        parser: `argparse.ArgumentParser`. The parser of the job.
    """
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="FILE", help="text file to prepare")
    source.add_argument(
        "--corpus", choices=["python_standard_library"], help="built-in corpus to prepare"
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to make")
    parser.add_argument(
        "--tokenizer", choices=["bytes"], default="bytes", help="kind of tokens (default: bytes)"
    )
    for split in ("valid", "test"):
        parser.add_argument(
            f"--{split}-fraction",
            type=float,
            metavar="PART",
            help=f"part of the text file for {split}; 0 for none (default: 0.05)",
        )
    parser.add_argument(
        "--shard-megabytes",
        type=float,
        default=100.0,
        metavar="MB",
        help="size of one file, in megabytes of 10^6 bytes (default: 100)",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported.

    Args:
        arguments: `argparse.Namespace`. The parsed arguments.

    Raises:
        UsageError: If a value is out of range.
        InputMissingError: If there is no such text file.
        OutputExistsError: If the output folder exists.
    """
    valid_fraction, test_fraction = _fractions(arguments)
    where = f"--valid-fraction {valid_fraction} --test-fraction {test_fraction}"
    # Written so that not-a-number fails as well.
    if not (valid_fraction >= 0 and test_fraction >= 0 and valid_fraction + test_fraction < 1):
        raise UsageError(
            "The parts for valid and test leave nothing to train on.",
            where=where,
            remedy="Give parts from 0 up, together less than 1.",
        )
    fractions_given = (arguments.valid_fraction, arguments.test_fraction) != (None, None)
    if arguments.corpus and fractions_given:
        raise UsageError(
            "A built-in corpus has splits of its own.",
            where=where,
            remedy="Leave out --valid-fraction and --test-fraction.",
        )
    if not 0 < arguments.shard_megabytes < float("inf"):
        raise UsageError(
            "The size of a file must be positive.",
            where=f"--shard-megabytes {arguments.shard_megabytes}",
            remedy="Give a number of megabytes, such as 100.",
        )
    if not arguments.out.strip("/"):
        raise UsageError(
            "The output must be a new folder.", where=f"--out {arguments.out!r}", remedy="Name one."
        )
    if arguments.text is not None:
        text_file_bytes(arguments.text)
    # Looking into an object store needs TensorFlow; there, writing checks it first thing.
    if "://" not in arguments.out:
        require_absent(arguments.out)


def run(arguments: argparse.Namespace) -> None:
    """Prepares the data set and prints what was written.

    Args:
        arguments: `argparse.Namespace`. The checked arguments.
    """
    if arguments.text is not None:
        splits = read_text_splits(arguments.text, *_fractions(arguments))
        corpus_name = arguments.text.replace("\\", "/").rsplit("/", 1)[-1]
        total_bytes = text_file_bytes(arguments.text)
    else:
        splits = python_standard_library_splits()
        corpus_name = arguments.corpus
        total_bytes = None

    from txl_tf.data.preparation import prepare_dataset
    from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer

    with _progress(total_bytes) as report_bytes:
        manifest = prepare_dataset(
            splits,
            ByteTokenizer(),
            arguments.out,
            corpus_name,
            shard_bytes=max(1, round(arguments.shard_megabytes * _BYTES_PER_MEGABYTE)),
            progress=report_bytes,
        )
    _print_manifest(manifest, arguments.out)


def _fractions(arguments: argparse.Namespace) -> tuple[float, float]:
    valid_fraction = _or_default(arguments.valid_fraction)
    return valid_fraction, _or_default(arguments.test_fraction)


def _or_default(fraction: float | None) -> float:
    return _DEFAULT_FRACTION if fraction is None else fraction


def _print_manifest(manifest: "Manifest", folder: str) -> None:
    for split in manifest.splits:
        print(
            f"{split.name}: {split.tokens} tokens, {split.bytes} bytes, "
            f"{split.documents} documents, {len(split.shards)} shards"
        )
    print(f"fingerprint: {manifest.fingerprint}")
    print(f"written: {folder}")


@contextlib.contextmanager
def _progress(total_bytes: int | None) -> Iterator[ReportBytes]:
    if not sys.stderr.isatty():
        yield _line_printer(total_bytes)
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("preparing", total=total_bytes)
        yield lambda split, num_bytes: bar.update(task, advance=num_bytes, description=split)


def _line_printer(total_bytes: int | None) -> ReportBytes:
    done_bytes = 0
    next_time = time.monotonic() + _SECONDS_BETWEEN_LINES
    of_total = f" of {total_bytes / _BYTES_PER_MEGABYTE:.1f}" if total_bytes else ""

    def report(split: str, num_bytes: int) -> None:
        nonlocal done_bytes, next_time
        done_bytes += num_bytes
        if time.monotonic() >= next_time:
            next_time = time.monotonic() + _SECONDS_BETWEEN_LINES
            megabytes = f"{done_bytes / _BYTES_PER_MEGABYTE:.1f}{of_total}"
            print(f"preparing {split}: {megabytes} MB", file=sys.stderr, flush=True)

    return report


if __name__ == "__main__":
    from pipelines.command_line import run_job

    raise SystemExit(run_job("prepare"))
