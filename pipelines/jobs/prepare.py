"""Turns text into a prepared data set: `txl prepare`.

    txl prepare --text FILE --tokenizer bytes --out DIR
    txl prepare --corpus enwik8 --out DIR

The folder holds the token stream as TFRecord files, in order, and a manifest;
it can be read with any batch size, segment length and number of hosts.
"""

import argparse
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from txl_tf.data.corpora import SPLITS
from txl_tf.data.preparation import SHARD_BYTES, prepare_dataset
from txl_tf.data.prepared_dataset import Manifest, PreparedDataset
from txl_tf.data.sources.downloads import download
from txl_tf.data.sources.id_files import IdDocuments
from txl_tf.data.sources.text_files import TextDocuments
from txl_tf.data.sources.text_paths import text_files
from txl_tf.data.splits import split_by_fraction
from txl_tf.data.standard_library import python_standard_library_splits
from txl_tf.data.text import Document, Reread
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.vocabulary_files import labelled_ids, listed_words
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import VocabularyTraining, WordTraining
from txl_tf.errors import InputMissingError, MismatchError, UsageError
from txl_tf.storage.staging import require_absent
from txl_tf.tasks.record_files import read_records

from ..preparation.option_effects import require_effects
from ..preparation.options import (
    BUILT_IN_CORPUS,
    DEFAULT_FOLDER,
    TOKENIZERS,
    add_text_arguments,
    add_tokenizer_arguments,
    published_corpus,
    split_files,
    split_fractions,
    text_paths,
    tokenizer_kind,
    without_none,
)
from ..shell.arguments import add_number
from ..shell.byte_progress import byte_progress, download_progress

_BYTES_PER_MEGABYTE = 1_000_000
_MAX_WORKERS = 64
_READ_TOKENS = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_text_arguments(parser.add_argument_group("text"))
    add_tokenizer_arguments(parser.add_argument_group("tokenizer"))
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
    add_number(
        output,
        "--workers",
        1,
        max(_MAX_WORKERS, 4 * _num_cores()),
        "processes (default: one per core; one for bytes and ids)",
    )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    paths, vocabulary = text_paths(arguments), arguments.vocabulary
    kind = tokenizer_kind(arguments)
    if not paths and arguments.corpus is None:
        raise UsageError(
            "There is no text.",
            where="txl prepare",
            remedy="Give --text, --corpus, or --train-file.",
        )
    require_effects(arguments)
    # A file in two splits would leak the test into training.
    text_files(paths)
    for path, what in ((arguments.archive, "archive"), (vocabulary, "vocabulary")):
        if path is not None and "://" not in path and not os.path.exists(path):
            raise InputMissingError(
                f"There is no such {what}.", where=path, remedy="Name an existing file or folder."
            )
    valid_fraction, test_fraction = split_fractions(arguments)
    # Negated, so that NaN is refused too.
    if not (valid_fraction >= 0 and test_fraction >= 0 and valid_fraction + test_fraction < 1):
        raise UsageError(
            "The fractions for valid and test must be at least 0, and together less than 1.",
            where=f"--valid-fraction {valid_fraction} --test-fraction {test_fraction}",
            remedy="Give smaller fractions, so that text to train on is left.",
        )
    separator = arguments.document_separator or ""
    if "\n" in separator:
        raise UsageError(
            "A separator is one line.",
            where="--document-separator",
            remedy="Give the line without its end.",
        )
    has_train = arguments.train_file or arguments.text or arguments.corpus
    if kind == "ids" and vocabulary is None and arguments.vocabulary_size is None:
        raise UsageError(
            "The number of ids is missing.",
            where="--format ids",
            remedy="Give --vocabulary with a label per line, or --vocabulary-size.",
        )
    if kind not in ("bytes", "ids") and vocabulary is None and not has_train:
        raise UsageError(
            "The vocabulary is made from train text, and no train text is given.",
            where=f"--tokenizer {arguments.tokenizer}",
            remedy="Give --train-file, --text or --corpus, or --vocabulary with the data that a "
            "model was trained on.",
        )
    # Object stores need TensorFlow; preparation checks them when it begins.
    if "://" not in arguments.out:
        require_absent(arguments.out)


def run(arguments: argparse.Namespace) -> None:
    """Prepares the data set and prints what was written."""
    tokenizer = choose_tokenizer(arguments)
    splits = _splits(arguments, tokenizer)
    paths, corpus = text_paths(arguments), published_corpus(arguments)
    name = arguments.corpus or os.path.basename(os.path.abspath(paths[0].replace("\\", "/")))
    # Where there is nothing to tokenize, passing text to a worker would be slower.
    num_workers = 1 if tokenizer.kind in ("bytes", "ids") else _num_cores()
    # The total is unknown for a corpus or ids, and if training a vocabulary reads text twice.
    total_bytes = None
    if paths and isinstance(tokenizer, Tokenizer) and arguments.format != "ids":
        total_bytes = sum(map(os.path.getsize, text_files(paths)))
    with byte_progress(total_bytes, "preparing") as progress:
        manifest = prepare_dataset(
            splits,
            tokenizer,
            arguments.out,
            name,
            shard_bytes=max(1, round(arguments.shard_megabytes * _BYTES_PER_MEGABYTE)),
            num_workers=arguments.workers or num_workers,
            check=functools.partial(corpus.check_counts, tokenizer) if corpus else None,
            progress=progress,
        )
    _print_manifest(manifest, arguments.out)
    if arguments.text is not None:
        _print_shares(manifest, *split_fractions(arguments))


def _splits(
    arguments: argparse.Namespace, tokenizer: Tokenizer | VocabularyTraining
) -> Mapping[str, Iterable[Document]]:
    """Opens the text as documents by split."""
    if arguments.corpus == BUILT_IN_CORPUS:
        return python_standard_library_splits()
    if (corpus := published_corpus(arguments)) is not None:
        if arguments.archive is not None:
            return corpus.splits(arguments.archive)
        with download_progress("the corpus") as progress:
            folder = arguments.download_folder or DEFAULT_FOLDER
            return corpus.splits(download(corpus.archive, folder, progress=progress))

    def documents(paths: Sequence[str]) -> Any:
        if isinstance(tokenizer, IdTokenizer) and arguments.format == "ids":
            return IdDocuments(paths, tokenizer.vocabulary_size, arguments.field)
        field = arguments.field or "text"
        if arguments.format == "csv":
            return Reread(_csv_texts, paths, field)
        separator = arguments.document_separator
        return TextDocuments(
            paths,
            one_per=arguments.one_document_per or "file",
            separator=None if separator is None else os.fsencode(separator),
            json_field=field if arguments.format == "jsonl" else None,
            parquet_column=field if arguments.format == "parquet" else None,
            may_be_json=arguments.format == "text",
            check_utf8=tokenizer.kind != "bytes",
        )

    if arguments.text is None:
        return {name: documents(paths) for name, paths in split_files(arguments).items()}
    return split_by_fraction(
        documents(arguments.text),
        *split_fractions(arguments),
        seed=arguments.split_seed or 0,
        where=", ".join(arguments.text),
    )


def choose_tokenizer(arguments: argparse.Namespace) -> Tokenizer | VocabularyTraining:
    """Returns the tokenizer, or the way to train one."""
    path = arguments.vocabulary
    if path is not None and not os.path.isfile(path):
        from txl_tf.model_folder import tokenizer_from

        tokenizer = tokenizer_from(path)
        if arguments.format == "ids" and tokenizer.kind != "ids":
            raise MismatchError(
                f"The data are ids, but the vocabulary is one of {tokenizer.kind}.",
                where=f"--vocabulary {path}",
                remedy=f"Give --vocabulary-size {tokenizer.vocabulary_size}, not --vocabulary.",
            )
        return tokenizer
    if arguments.format == "ids":
        if path is None:
            return IdTokenizer(arguments.vocabulary_size)
        return labelled_ids(path)
    kind, corpus = tokenizer_kind(arguments), published_corpus(arguments)
    recipe = TOKENIZERS[kind]
    if corpus is not None and corpus.tokenizer.kind == kind:
        recipe = corpus.tokenizer
    changes = without_none(
        min_frequency=arguments.min_frequency,
        vocabulary_size=arguments.vocabulary_size,
        model_type=arguments.sentencepiece_model,
    )
    if isinstance(recipe, WordTraining):
        changes["rule"] = rule = _word_rule(arguments, recipe.rule)
        if path is not None:
            return listed_words(path, rule)
    return recipe if isinstance(recipe, Tokenizer) else dataclasses.replace(recipe, **changes)


def _csv_texts(paths: Sequence[str], column: str) -> Iterator[bytes]:
    for path in text_files(paths):
        for record in read_records(path, [column]):
            yield record.text(column, may_be_empty=True).encode()


def _word_rule(arguments: argparse.Namespace, rule: WordRule) -> WordRule:
    changes = without_none(lower_case=arguments.lower_case, add_eos=arguments.add_eos)
    if arguments.add_eos:
        changes["add_double_eos"] = False
    return dataclasses.replace(rule, **changes)


def _print_shares(manifest: Manifest, *fractions: float) -> None:
    """Prints the shares of valid and test that differ from their fraction by over a half."""
    total = sum(split.tokens for split in manifest.splits)
    for name, fraction in zip(SPLITS[1:], fractions, strict=True):
        if fraction and abs(manifest.split(name).tokens / total - fraction) > fraction / 2:
            share = 100 * manifest.split(name).tokens / total
            print(
                f"note: {name} has {share:.2g} % of the tokens, not {100 * fraction:.2g} %, as "
                f"documents stay whole. Divide them, or give --{name}-file."
            )


def _print_manifest(manifest: Manifest, folder: str) -> None:
    dataset = PreparedDataset.open(folder, verify=False)
    for split in manifest.splits:
        unknown = ""
        if dataset.unknown_id is not None:
            count = sum(
                int((dataset.read_tokens(split.name, start, stop) == dataset.unknown_id).sum())
                for start in range(0, split.tokens, _READ_TOKENS)
                for stop in [min(start + _READ_TOKENS, split.tokens)]
            )
            unknown = f" ({100 * count / split.tokens:.2g} % unknown)"
        in_bytes = f", {split.bytes} bytes" if split.bytes else ""
        print(
            f"{split.name}: {split.tokens} tokens{unknown}{in_bytes}, "
            f"{split.documents} documents, {len(split.shards)} shards"
        )
    kind = "" if manifest.tokenizer_kind == "ids" else f" of {manifest.tokenizer_kind}"
    print(f"vocabulary: {manifest.vocabulary_size} ids{kind}")
    print(f"fingerprint: {manifest.fingerprint}")
    print(f"written: {folder}")
