"""Check that every option of `txl prepare` has an effect together with the other options.

`_effects` is the table of all dependencies between options: a new option gets an entry in it.
"""

import argparse
import os

from txl_tf.data.corpora import CORPORA, SPLITS
from txl_tf.errors import UsageError

from ..shell.arguments import option_of
from .options import tokenizer_kind


def require_effects(arguments: argparse.Namespace) -> None:
    """Raises UsageError for the first option that has no effect beside the others."""
    for name, has_effect in _effects(arguments).items():
        if getattr(arguments, name) is None or has_effect:
            continue
        if name == "vocabulary":
            raise UsageError(
                "Vocabularies of other tools are not read.",
                where=f"--vocabulary {arguments.vocabulary}",
                remedy="Write ids with that tool, for --format ids. A list of words needs "
                "--tokenizer words.",
            )
        causes = " or ".join(_causes(arguments, name)) or "the other options"
        raise UsageError(
            f"This option has no effect with {causes}.",
            where=f"{option_of(name)} {getattr(arguments, name)}",
            remedy="Leave it out; `txl prepare --help` describes it.",
        )


def _causes(arguments: argparse.Namespace, name: str) -> list[str]:
    """Returns the options without which the option `name` would have an effect."""
    values = vars(arguments)
    return [
        f"{option_of(other)} {value}" if isinstance(value, str) else option_of(other)
        for other, value in values.items()
        if _effects(argparse.Namespace(**{**values, other: None}))[name]
    ]


def _effects(arguments: argparse.Namespace) -> dict[str, bool]:
    """Returns by option whether it has an effect if all other options stay as they are."""
    corpus, kind, vocabulary = arguments.corpus, tokenizer_kind(arguments), arguments.vocabulary
    is_plain = corpus is None and arguments.format in (None, "text")
    is_folder = vocabulary is not None and not os.path.isfile(vocabulary)
    splits_words = kind == "words" and not is_folder
    return {
        **{f"{split}_file": corpus is None and arguments.text is None for split in SPLITS},
        **dict.fromkeys(
            ("valid_fraction", "test_fraction", "split_seed"), arguments.text is not None
        ),
        "format": corpus is None,
        "field": arguments.format in ("jsonl", "csv", "parquet", "ids"),
        "one_document_per": is_plain and arguments.document_separator is None,
        "document_separator": is_plain,
        **dict.fromkeys(("archive", "download_folder"), corpus in CORPORA),
        "newlines": corpus == "enwik8",
        # A data set has a tokenizer; a file is a list of words.
        "tokenizer": not is_folder and arguments.format != "ids",
        "vocabulary": is_folder or kind in ("words", "ids"),
        "vocabulary_size": vocabulary is None and kind != "bytes",
        "min_frequency": vocabulary is None and kind in ("characters", "words"),
        **dict.fromkeys(("lower_case", "add_eos"), splits_words),
        "sentencepiece_model": vocabulary is None and kind == "sentencepiece",
    }
