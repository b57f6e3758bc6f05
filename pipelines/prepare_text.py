"""Text sources of `txl prepare`."""

import argparse
import contextlib
import os
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence

from txl_tf.data.corpora import PUBLISHED_CORPORA
from txl_tf.data.corpora.corpus import Corpus
from txl_tf.data.corpora.enwik8_text8 import Enwik8
from txl_tf.data.corpora.one_billion_word import OneBillionWord
from txl_tf.data.corpora.standard_library import python_standard_library_splits
from txl_tf.data.documents import (
    FileDocuments,
    JsonLinesDocuments,
    LineDocuments,
    SeparatedDocuments,
)
from txl_tf.data.downloads import Progress as DownloadProgress
from txl_tf.data.downloads import download
from txl_tf.data.splits import split_by_file, split_by_fraction
from txl_tf.data.text import Document
from txl_tf.data.text_files import text_blocks, text_files, validated_text
from txl_tf.errors import DataDamagedError, InputMissingError, UsageError

from .arguments import MAX_STEP, add_number

BUILT_IN = "python_standard_library"
_SPLITS = ("train", "valid", "test")
_DEFAULT_FRACTION = 0.05
_DEFAULT_FOLDER = "downloads"
_MAX_PASSES = 1000
_CORPORA = {corpus.name: corpus for corpus in PUBLISHED_CORPORA}


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that choose the text."""
    text = parser.add_argument_group("text")
    source = text.add_mutually_exclusive_group()
    source.add_argument(
        "--text", metavar="PATH", nargs="+", help="files, folders or patterns, to divide"
    )
    names = [BUILT_IN, *_CORPORA]
    source.add_argument("--corpus", choices=names, metavar="NAME", help=", ".join(names))
    for split in _SPLITS:
        text.add_argument(
            f"--{split}-file",
            metavar="PATH",
            action="append",
            help=f"text of the {split} split; may be repeated",
        )
    place = text.add_mutually_exclusive_group()
    place.add_argument("--archive", metavar="PATH", help="archive or folder of the corpus")
    place.add_argument(
        "--download-folder",
        metavar="DIR",
        help=f"where it is downloaded to (default: {_DEFAULT_FOLDER})",
    )
    meaning = "line ends of enwik8 (default: drop)"
    text.add_argument("--newlines", choices=["keep", "drop"], help=meaning)
    add_number(text, "--shuffle-seed", -MAX_STEP, MAX_STEP, "order of lm1b (default: 0)")
    add_number(text, "--passes", 1, _MAX_PASSES, "passes over lm1b (default: 1)")
    meaning = "format of the files (default: text)"
    text.add_argument("--format", choices=["text", "jsonl"], help=meaning)
    text.add_argument("--field", metavar="NAME", help="field of JSON Lines (default: text)")
    meaning = "file or line (default: file)"
    text.add_argument("--one-document-per", choices=["file", "line"], metavar="UNIT", help=meaning)
    text.add_argument(
        "--document-separator", metavar="LINE", help="line between documents; '' for a blank one"
    )
    for split in _SPLITS[1:]:
        text.add_argument(
            f"--{split}-fraction",
            type=float,
            metavar="PART",
            help=f"share of --text, 0 for none (default: {_DEFAULT_FRACTION})",
        )
    meaning = "seed of the division into splits (default: 0)"
    add_number(text, "--split-seed", -MAX_STEP, MAX_STEP, meaning)


def check_source_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments of `add_source_arguments`."""
    own_files = _own_files(arguments)
    if arguments.text is None and arguments.corpus is None and not own_files:
        remedy = "Give --text, --corpus, or --train-file."
        raise UsageError("There is no text.", where="txl prepare", remedy=remedy)
    _check_fitting(arguments)
    if arguments.text is not None:
        _check_fractions(arguments)
        text_files(arguments.text)
    elif own_files:
        split_by_file(own_files, text_files)
    elif arguments.archive is not None and not os.path.exists(arguments.archive):
        raise InputMissingError(
            "There is no such archive.", where=arguments.archive, remedy="Name an existing file."
        )


def corpus_of(arguments: argparse.Namespace) -> Corpus | None:
    """Returns the published corpus with its choices; `None` for other text."""
    kind = _CORPORA.get(arguments.corpus)
    if kind is None:
        return None
    if kind is Enwik8:
        return Enwik8(newlines=arguments.newlines or "drop")
    if kind is OneBillionWord:
        return OneBillionWord(seed=arguments.shuffle_seed or 0, num_passes=arguments.passes or 1)
    return kind()


def source_name(arguments: argparse.Namespace) -> str:
    """Returns the name of the corpus, or of the first file."""
    if arguments.corpus is not None:
        return arguments.corpus
    first = given_paths(arguments)[0]
    return os.path.basename(os.path.abspath(first.replace("\\", "/")))


def read_splits(
    arguments: argparse.Namespace, *, check_utf8: bool, progress: DownloadProgress | None = None
) -> Mapping[str, Iterable[Document]]:
    """Opens the text as documents by split.

    `check_utf8` refuses text that is not UTF-8; `progress` gets the bytes of a download.
    """
    if arguments.corpus == BUILT_IN:
        return python_standard_library_splits()
    corpus = corpus_of(arguments)
    if corpus is not None:
        path = arguments.archive or download(
            corpus.archive,
            arguments.download_folder or _DEFAULT_FOLDER,
            proxies=urllib.request.getproxies(),
            progress=progress,
        )
        return corpus.splits(path)

    def documents(paths: Sequence[str]) -> Iterable[Document]:
        return _documents(arguments, paths, check_utf8)

    if arguments.text is None:
        return split_by_file(_own_files(arguments), documents)
    return split_by_fraction(
        documents(arguments.text),
        *_fractions(arguments),
        seed=arguments.split_seed or 0,
        where=", ".join(arguments.text),
    )


def known_bytes(arguments: argparse.Namespace) -> int | None:
    """Returns the bytes of the text files; `None` for a corpus."""
    paths = given_paths(arguments)
    if not paths:
        return None
    with contextlib.suppress(OSError):
        return sum(os.path.getsize(path) for path in text_files(paths))
    return None


def given_paths(arguments: argparse.Namespace) -> list[str]:
    """Returns the paths of the text files, the train split's first; none for a corpus."""
    return arguments.text or [path for files in _own_files(arguments).values() for path in files]


def notes_on_text(arguments: argparse.Namespace, tokenizer_kind: str) -> Iterator[str]:
    """Yields notes on unusual text files, which are prepared nevertheless."""
    paths = given_paths(arguments)
    if not paths or arguments.format == "jsonl":
        return
    separator = arguments.document_separator
    if (
        separator is not None
        and not SeparatedDocuments(paths, os.fsencode(separator)).has_separator()
    ):
        yield f"no line is the separator {separator!r}: every file is one document"
    if tokenizer_kind == "bytes":
        files = text_files(paths)
        places = [place for path in files if (place := _place_of_no_utf8(path)) is not None]
        if places:
            yield (
                f"{len(places)} of {len(files)} files are not UTF-8, the first at {places[0]}: "
                "their bytes are taken as they are"
            )


def _place_of_no_utf8(path: str) -> str | None:
    try:
        for _ in validated_text(text_blocks(path), path):
            pass
    except DataDamagedError as error:
        return error.where
    return None


def _documents(
    arguments: argparse.Namespace, paths: Sequence[str], check_utf8: bool
) -> Iterable[Document]:
    if arguments.format == "jsonl":
        return JsonLinesDocuments(paths, arguments.field or "text")
    if arguments.document_separator is not None:
        separator = os.fsencode(arguments.document_separator)
        return SeparatedDocuments(paths, separator, check_utf8=check_utf8)
    kind = LineDocuments if arguments.one_document_per == "line" else FileDocuments
    return kind(paths, check_utf8=check_utf8)


def _own_files(arguments: argparse.Namespace) -> dict[str, list[str]]:
    named = {split: getattr(arguments, f"{split}_file") for split in _SPLITS}
    return {split: files for split, files in named.items() if files}


def _fractions(arguments: argparse.Namespace) -> tuple[float, float]:
    given = (arguments.valid_fraction, arguments.test_fraction)
    valid, test = (_DEFAULT_FRACTION if part is None else part for part in given)
    return valid, test


def _check_fractions(arguments: argparse.Namespace) -> None:
    valid_fraction, test_fraction = _fractions(arguments)
    # Negated, so that NaN is refused too.
    if not (valid_fraction >= 0 and test_fraction >= 0 and valid_fraction + test_fraction < 1):
        raise UsageError(
            "The parts for valid and test leave nothing to train on.",
            where=f"--valid-fraction {valid_fraction} --test-fraction {test_fraction}",
            remedy="Give parts from 0 up, together less than 1.",
        )


def _check_fitting(arguments: argparse.Namespace) -> None:
    """Refuses options without effect on the chosen text."""
    corpus, separator = arguments.corpus, arguments.document_separator
    is_jsonl = arguments.format == "jsonl"
    is_plain = corpus is None and not is_jsonl
    is_separated_line = separator is not None and arguments.one_document_per == "line"
    rules = {
        **dict.fromkeys(
            ("train_file", "valid_file", "test_file"), corpus is None and arguments.text is None
        ),
        **dict.fromkeys(
            ("valid_fraction", "test_fraction", "split_seed"), arguments.text is not None
        ),
        "format": corpus is None,
        "field": is_jsonl,
        "one_document_per": is_plain and not is_separated_line,
        "document_separator": is_plain,
        **dict.fromkeys(("archive", "download_folder"), corpus in _CORPORA),
        "newlines": corpus == Enwik8.name,
        **dict.fromkeys(("shuffle_seed", "passes"), corpus == OneBillionWord.name),
    }
    for name, fits in rules.items():
        if getattr(arguments, name) is not None and not fits:
            raise UsageError(
                "An option does not fit the other options.",
                where=f"--{name.replace('_', '-')} {getattr(arguments, name)}",
                remedy="Leave it out; `txl prepare --help` says what it is for.",
            )
    if separator is not None and ("\n" in separator or len(os.fsencode(separator)) > 1024):
        raise UsageError(
            "A separator must be one line of at most 1024 bytes.",
            where="--document-separator",
            remedy="Give the line without its end.",
        )
