"""Turns text into a prepared data set: `txl prepare`.

    txl prepare --text FILE --tokenizer bytes --out DIR
    txl prepare --corpus enwik8 --out DIR

The folder holds the token stream as TFRecord files, in order, and a manifest;
it is good for any batch size, segment length and number of hosts.
"""

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from txl_tf.data.records import SHARD_BYTES
from txl_tf.data.vocabulary_training import VocabularyTraining
from txl_tf.errors import UsageError
from txl_tf.storage.staging import require_absent

from .arguments import add_number
from .prepare_text import (
    add_source_arguments,
    check_source_arguments,
    corpus_of,
    known_bytes,
    notes_on_text,
    read_splits,
    source_name,
)
from .prepare_tokenizer import (
    add_tokenizer_arguments,
    check_tokenizer_arguments,
    choose_tokenizer,
    is_official,
    tokenizer_kind,
)
from .progress import ReportBytes, byte_progress, download_progress

if TYPE_CHECKING:
    from txl_tf.data.manifest import Manifest, SplitManifest
    from txl_tf.data.preparation import Check
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.data.text import Document
    from txl_tf.data.tokenizers.tokenizer import Tokenizer

_BYTES_PER_MEGABYTE = 1_000_000
_MAX_WORKERS = 64
_READ_TOKENS = 1 << 20
# File names have five digits.
_MAX_SHARDS = 99_999


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_source_arguments(parser)
    add_tokenizer_arguments(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", required=True, help="folder to make")
    add_number(
        output,
        "--shard-megabytes",
        1 / _BYTES_PER_MEGABYTE,
        1e9,
        "size of a file in 10^6 bytes",
        default=SHARD_BYTES / _BYTES_PER_MEGABYTE,
        metavar="MB",
    )
    meaning = "processes (default: one per core; for bytes one)"
    add_number(output, "--workers", 1, max(_MAX_WORKERS, 4 * _num_cores()), meaning)
    meaning = "what runs it (default: local)"
    output.add_argument("--runner", choices=["local", "beam"], default="local", help=meaning)
    output.add_argument(
        "--beam-options",
        nargs=argparse.REMAINDER,
        metavar="OPTION",
        help="last of all: options of Apache Beam",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    check_source_arguments(arguments)
    check_tokenizer_arguments(arguments, corpus_of(arguments))
    is_trained = tokenizer_kind(arguments, corpus_of(arguments)) != "bytes"
    has_train = arguments.train_file or arguments.text or arguments.corpus
    if is_trained and arguments.vocabulary is None and not has_train:
        raise UsageError(
            "A vocabulary is made of the train split, and there is none.",
            where=f"--tokenizer {arguments.tokenizer}",
            remedy="Give --train-file, or --vocabulary with the data that a model was trained on.",
        )
    _check_number_of_shards(arguments)
    if arguments.runner == "beam" and arguments.workers is not None:
        raise UsageError(
            "With Beam, its own options say how many workers there are.",
            where=f"--workers {arguments.workers}",
            remedy="Give --beam-options --direct_num_workers=N, for one.",
        )
    if arguments.runner != "beam" and arguments.beam_options is not None:
        raise UsageError(
            "Options of Beam need Beam.", where="--beam-options", remedy="Give --runner beam."
        )
    if not arguments.out.strip("/"):
        raise UsageError(
            "The output must be a new folder.", where=f"--out {arguments.out!r}", remedy="Name one."
        )
    # Object stores need TensorFlow; preparation checks them when it begins.
    if "://" not in arguments.out:
        require_absent(arguments.out)


def _check_number_of_shards(arguments: argparse.Namespace) -> None:
    num_bytes = known_bytes(arguments) or 0
    # Estimated with one stored byte per byte of text.
    num_shards = num_bytes / (arguments.shard_megabytes * _BYTES_PER_MEGABYTE)
    if num_shards > _MAX_SHARDS:
        raise UsageError(
            f"The text has {num_bytes:,} bytes: that would be {num_shards:,.0f} files or more.",
            where=f"--shard-megabytes {arguments.shard_megabytes}",
            remedy=f"At most {_MAX_SHARDS:,} files can be numbered; give more megabytes.",
        )


def run(arguments: argparse.Namespace) -> None:
    """Prepares the data set and prints what was written."""
    corpus = corpus_of(arguments)
    tokenizer = choose_tokenizer(arguments, corpus)
    # A tokenizer of an earlier data set knows its kind.
    kind = getattr(tokenizer, "kind", tokenizer_kind(arguments, corpus))
    with download_progress() as report_download:
        splits = read_splits(arguments, check_utf8=kind != "bytes", progress=report_download)
    for note in notes_on_text(arguments, kind):
        print(f"note: {note}")
    total_bytes = known_bytes(arguments)
    if isinstance(tokenizer, VocabularyTraining):
        # Training reads part of the text twice, so the total is unknown.
        total_bytes = None
    with byte_progress(total_bytes, "preparing") as report_bytes:
        manifest = _prepare(arguments, splits, tokenizer, _check_of(arguments), report_bytes)
    _print_manifest(manifest, arguments.out)


def _prepare(
    arguments: argparse.Namespace,
    splits: "Mapping[str, Iterable[Document]]",
    tokenizer: "Tokenizer | VocabularyTraining",
    check: "Check | None",
    report_bytes: ReportBytes,
) -> "Manifest":
    shard_bytes = max(1, round(arguments.shard_megabytes * _BYTES_PER_MEGABYTE))
    common = (splits, tokenizer, arguments.out, source_name(arguments))
    options = {"shard_bytes": shard_bytes, "check": check}
    if arguments.runner == "beam":
        from txl_tf.data.beam import prepare_with_beam

        pipeline_options = arguments.beam_options or []
        return prepare_with_beam(*common, pipeline_options, num_workers=_num_cores(), **options)
    from txl_tf.data.preparation import prepare_dataset

    # Bytes need no tokenization; passing them to a worker would be slower.
    is_bytes = getattr(tokenizer, "kind", None) == "bytes"
    num_workers = arguments.workers or (1 if is_bytes else _num_cores())
    return prepare_dataset(*common, num_workers=num_workers, progress=report_bytes, **options)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def _check_of(arguments: argparse.Namespace) -> "Check | None":
    corpus = corpus_of(arguments)
    if corpus is None:
        return None
    official = is_official(arguments, corpus)
    is_bytes = tokenizer_kind(arguments, corpus) == "bytes"

    def check(splits: "list[SplitManifest]", vocabulary_size: int, num_used_ids: int) -> None:
        # Bytes always have 256 ids; published counts are of distinct bytes in the text.
        size = num_used_ids if is_bytes else vocabulary_size
        corpus.check_counts(splits, vocabulary_size=size if official else None)

    return check


def _print_manifest(manifest: "Manifest", folder: str) -> None:
    from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer

    tokenizer = dataset_tokenizer(folder, manifest)
    dataset = PreparedDataset.open(folder, verify=False)
    for split in manifest.splits:
        share = _unknown_share(dataset, split, tokenizer.unknown_id)
        unknown = "" if share is None else f" ({100 * share:.2g} % unknown)"
        print(
            f"{split.name}: {split.tokens} tokens{unknown}, {split.bytes} bytes, "
            f"{split.documents} documents, {len(split.shards)} shards"
        )
    print(f"vocabulary: {manifest.vocabulary_size} ids of {manifest.tokenizer_kind}")
    print(f"fingerprint: {manifest.fingerprint}")
    print(f"written: {folder}")


def _unknown_share(
    dataset: "PreparedDataset", split: "SplitManifest", unknown_id: int | None
) -> float | None:
    """Returns the share of tokens that stand for text outside the vocabulary."""
    import numpy as np

    if unknown_id is None:
        return None
    count = 0
    for start in range(0, split.tokens, _READ_TOKENS):
        stop = min(start + _READ_TOKENS, split.tokens)
        token_ids = dataset.read_tokens(split.name, start, stop)
        count += int(np.count_nonzero(token_ids == unknown_id))
    return count / split.tokens
