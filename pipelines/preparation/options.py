"""Options of `txl prepare` for text and tokenizer, and functions that read their values."""

import argparse
from typing import Any

from txl_tf.config.limits import MAX_TOKEN_IDS
from txl_tf.data.corpora import CORPORA, SPLITS, Corpus
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import (
    CharacterTraining,
    SentencePieceTraining,
    VocabularyTraining,
    WordTraining,
)

from ..shell.arguments import MAX_STEP, add_number

DEFAULT_FOLDER = "downloads"
BUILT_IN_CORPUS = "python_standard_library"
"""Name of the corpus that needs no download."""
_DEFAULT_FRACTION = 0.05

TOKENIZERS: dict[str, Tokenizer | VocabularyTraining] = {
    "bytes": ByteTokenizer(),
    # A single character, so that decoded text encodes to the same tokens.
    "characters": CharacterTraining(unknown_token="\ufffd"),
    "words": WordTraining(rule=WordRule(add_eos=True), unknown_token="<unk>"),
    "sentencepiece": SentencePieceTraining(),
}
"""Values of `--tokenizer`: tokenizers, or the training of their vocabularies."""


def add_text_arguments(text: Any) -> None:
    """Adds the options that name the text and divide it into documents and splits."""
    source = text.add_mutually_exclusive_group()
    source.add_argument(
        "--text", metavar="PATH", nargs="+", help="files, folders or patterns, divided into splits"
    )
    names = [BUILT_IN_CORPUS, *CORPORA]
    source.add_argument("--corpus", choices=names, metavar="NAME", help=", ".join(names))
    for split in SPLITS:
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
        help=f"folder of downloads (default: {DEFAULT_FOLDER})",
    )
    text.add_argument(
        "--newlines", choices=["keep", "drop"], help="line ends of enwik8 (default: drop)"
    )
    text.add_argument(
        "--format",
        choices=["text", "jsonl", "csv", "parquet", "ids"],
        help="format of the files (default: text)",
    )
    text.add_argument(
        "--field", metavar="NAME", help="field or column with the text or ids (default: text)"
    )
    text.add_argument(
        "--one-document-per",
        choices=["file", "line"],
        metavar="UNIT",
        help="file or line (default: file)",
    )
    text.add_argument(
        "--document-separator", metavar="LINE", help="line between documents; '' is a blank line"
    )
    for split in SPLITS[1:]:
        text.add_argument(
            f"--{split}-fraction",
            type=float,
            metavar="PART",
            help=f"share of --text, 0 for none (default: {_DEFAULT_FRACTION})",
        )
    add_number(
        text, "--split-seed", -MAX_STEP, MAX_STEP, "seed of the division into splits (default: 0)"
    )


def add_tokenizer_arguments(group: Any) -> None:
    """Adds the options of the tokenizer and its vocabulary."""
    group.add_argument(
        "--tokenizer",
        choices=list(TOKENIZERS),
        metavar="KIND",
        help=f"{', '.join(TOKENIZERS)} (default: the corpus's, or bytes)",
    )
    add_number(
        group,
        "--vocabulary-size",
        1,
        MAX_TOKEN_IDS,
        "most token ids (default: 32000 pieces, or all words); required for ids",
    )
    add_number(group, "--min-frequency", 0, MAX_STEP, "least count of a listed word or character")
    for option, meaning in (
        ("--lower-case", "words in lower case"),
        ("--add-eos", "add a token after each line (default for words)"),
    ):
        group.add_argument(option, action=argparse.BooleanOptionalAction, help=meaning)
    group.add_argument(
        "--sentencepiece-model",
        choices=["bpe", "unigram"],
        metavar="KIND",
        help="bpe or unigram (default: unigram)",
    )
    group.add_argument(
        "--vocabulary",
        metavar="PATH",
        help="data set or model with the tokenizer, or file of words or labels",
    )


def tokenizer_kind(arguments: argparse.Namespace) -> str:
    """Returns the kind of tokens, such as `"words"`; a corpus has a kind of its own."""
    if arguments.tokenizer is not None:
        return arguments.tokenizer
    if arguments.format == "ids":
        return "ids"
    corpus = CORPORA.get(arguments.corpus)
    return "bytes" if corpus is None else corpus().tokenizer.kind


def published_corpus(arguments: argparse.Namespace) -> Corpus | None:
    """Returns the published corpus with its choices; `None` for other text."""
    if arguments.corpus not in CORPORA:
        return None
    return CORPORA[arguments.corpus](**without_none(newlines=arguments.newlines))


def split_files(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the files of `--train-file`, `--valid-file` and `--test-file` by split."""
    files_by_split = {split: getattr(arguments, f"{split}_file") for split in SPLITS}
    return {split: files for split, files in files_by_split.items() if files}


def text_paths(arguments: argparse.Namespace) -> list[str]:
    """Returns the paths of the text files, the train split's first; none for a corpus."""
    return arguments.text or [path for files in split_files(arguments).values() for path in files]


def split_fractions(arguments: argparse.Namespace) -> tuple[float, float]:
    """Returns the shares of `--text` for the splits `valid` and `test`."""
    fractions = (arguments.valid_fraction, arguments.test_fraction)
    valid, test = (_DEFAULT_FRACTION if part is None else part for part in fractions)
    return valid, test


def without_none(**values: Any) -> dict[str, Any]:
    """Returns the values that are not `None`, by name."""
    return {name: value for name, value in values.items() if value is not None}
