"""Tokenizer arguments of `txl prepare`."""

import argparse
import dataclasses
import os
from typing import Any

from txl_tf.config.base import MAX_TOKEN_IDS
from txl_tf.data.corpora.corpus import Corpus, TokenizerOptions
from txl_tf.data.text_files import text_blocks
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.data.tokenizers.word_splitting import WordRule
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer
from txl_tf.data.vocabulary_training import (
    CharacterTraining,
    SentencePieceTraining,
    VocabularyTraining,
    WordPieceTraining,
    WordTraining,
)
from txl_tf.errors import DataDamagedError, InputMissingError, UsageError

from .arguments import MAX_STEP, add_number

TRAINED_WITHOUT_EXTRA = ("bytes", "characters", "words", "wordpiece")
"""Kinds of tokens that need nothing but a text."""
_KINDS = (*TRAINED_WITHOUT_EXTRA, "sentencepiece")
_UNKNOWN_TOKENS = ("<unk>", "<UNK>")
# A single character, so that decoded text encodes to the same tokens.
_UNKNOWN_CHARACTER = "\ufffd"
# Kinds of tokens that read each option.
_READ_BY = {
    "vocabulary_size": ("characters", "words", "wordpiece", "sentencepiece"),
    "lower_case": ("words", "wordpiece"),
    "min_frequency": ("characters", "words"),
    "add_eos": ("words", "wordpiece"),
    "add_double_eos": ("words", "wordpiece"),
    "sentencepiece_model": ("sentencepiece",),
}


def add_tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that choose the tokens."""
    group = parser.add_argument_group("tokenizer")
    group.add_argument(
        "--tokenizer",
        choices=_KINDS,
        metavar="KIND",
        help=f"{', '.join(_KINDS)} (default: the corpus's, or bytes)",
    )
    meaning = "most ids (default: 32000 pieces, or all words)"
    add_number(group, "--vocabulary-size", 1, MAX_TOKEN_IDS, meaning)
    add_number(group, "--min-frequency", 0, MAX_STEP, "least count of a word or character")
    for option, meaning in (
        ("--lower-case", "words in lower case"),
        ("--add-eos", "a token after each line (default for words)"),
        ("--add-double-eos", "a token before and after each line"),
    ):
        group.add_argument(option, action=argparse.BooleanOptionalAction, help=meaning)
    group.add_argument(
        "--sentencepiece-model",
        choices=["bpe", "unigram"],
        metavar="KIND",
        help="bpe or unigram (default: unigram)",
    )
    group.add_argument(
        "--vocabulary", metavar="PATH", help="data set with the tokenizer, or file of words"
    )


def check_tokenizer_arguments(arguments: argparse.Namespace, corpus: Corpus | None) -> None:
    """Checks the arguments of `add_tokenizer_arguments`."""
    kind = tokenizer_kind(arguments, corpus)
    path = arguments.vocabulary
    if path is not None and "://" not in path and not os.path.exists(path):
        remedy = "Name a prepared data set or a list of words."
        raise InputMissingError("There is no such vocabulary.", where=path, remedy=remedy)
    is_folder = path is not None and not os.path.isfile(path)
    if path is not None and not is_folder and kind != "words":
        where = f"--vocabulary {path}"
        remedy = "Give --tokenizer words, or the folder of a data set."
        raise UsageError("A file is a vocabulary of words.", where=where, remedy=remedy)
    for name, kinds in _READ_BY.items():
        fixed = is_folder or (path is not None and name in ("vocabulary_size", "min_frequency"))
        if getattr(arguments, name) is not None and (kind not in kinds or fixed):
            raise UsageError(
                "An option does not fit the tokenizer.",
                where=f"--{name.replace('_', '-')} with --tokenizer {kind}",
                remedy="Leave it out, or choose another tokenizer.",
            )
    if is_folder and arguments.tokenizer is not None:
        what = "A data set says itself which tokenizer it has."
        raise UsageError(what, where=f"--vocabulary {path}", remedy="Leave out --tokenizer.")
    if arguments.add_eos and arguments.add_double_eos:
        what = "A line has one token after it, or one at both ends."
        raise UsageError(what, where="--add-eos --add-double-eos", remedy="Give one of them.")


def tokenizer_kind(arguments: argparse.Namespace, corpus: Corpus | None) -> str:
    """Returns the kind of tokens, such as `"words"`; a corpus has a kind of its own."""
    own = "bytes" if corpus is None else corpus.tokenizer_options.kind
    return arguments.tokenizer or own


def is_official(arguments: argparse.Namespace, corpus: Corpus) -> bool:
    """Returns true if the tokens are as in the published results of a corpus."""
    return arguments.vocabulary is None and corpus.tokenizer_options == _options(arguments, corpus)


def choose_tokenizer(
    arguments: argparse.Namespace, corpus: Corpus | None
) -> Tokenizer | VocabularyTraining:
    """Returns the tokenizer, or the way to train one."""
    if arguments.vocabulary is not None and not os.path.isfile(arguments.vocabulary):
        from txl_tf.data.manifest import Manifest
        from txl_tf.data.prepared_dataset import dataset_tokenizer

        return dataset_tokenizer(arguments.vocabulary, Manifest.read(arguments.vocabulary))
    options = _options(arguments, corpus)
    rule = WordRule(
        lower_case=options.lower_case,
        add_eos=options.add_eos,
        add_double_eos=options.add_double_eos,
    )
    if arguments.vocabulary is not None:
        return _listed_words(arguments.vocabulary, rule)
    kind = options.kind
    if kind == "bytes":
        return ByteTokenizer()
    if kind == "wordpiece":
        return WordPieceTraining(rule=rule, vocabulary_size=arguments.vocabulary_size or 32_000)
    if kind == "sentencepiece":
        return SentencePieceTraining(
            vocabulary_size=arguments.vocabulary_size or 32_000,
            model_type=arguments.sentencepiece_model or "unigram",
        )
    counting: dict[str, Any] = {
        "counted_splits": options.counted_splits,
        "unknown_token": options.unknown_token,
        "min_frequency": options.min_frequency,
        "vocabulary_size": options.vocabulary_size,
    }
    if kind == "characters":
        return CharacterTraining(**counting)
    return WordTraining(
        rule=rule,
        special_tokens=options.special_tokens,
        eos_token=options.eos_token if rule.marks_lines else None,
        **counting,
    )


def _options(arguments: argparse.Namespace, corpus: Corpus | None) -> TokenizerOptions:
    kind = tokenizer_kind(arguments, corpus)
    if corpus is not None and corpus.tokenizer_options.kind == kind:
        options = corpus.tokenizer_options
    else:
        options = TokenizerOptions(
            kind=kind,
            add_eos=kind in ("words", "wordpiece") and not arguments.add_double_eos,
            unknown_token=_UNKNOWN_CHARACTER if kind == "characters" else _UNKNOWN_TOKENS[0],
            counted_splits=("train",),
        )
    given = {
        "lower_case": arguments.lower_case,
        "add_eos": arguments.add_eos,
        "add_double_eos": arguments.add_double_eos,
        "min_frequency": arguments.min_frequency,
        "vocabulary_size": arguments.vocabulary_size,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if changes.get("add_eos"):
        changes["add_double_eos"] = False
    elif changes.get("add_double_eos"):
        changes["add_eos"] = False
    return dataclasses.replace(options, **changes)


def _listed_words(path: str, rule: WordRule) -> WordTokenizer:
    content = b"".join(text_blocks(path))
    listed = {line.split()[0] for line in content.splitlines() if line.split()}
    unknown = next((token for token in _UNKNOWN_TOKENS if token.encode() in listed), None)
    try:
        return WordTokenizer.from_word_list(
            content, rule, eos_token=rule.default_eos_token, unknown_token=unknown
        )
    except InvalidTextError as error:
        remedy = "Write UTF-8, a word per line. Join its parts, also in the text: Note_On_60."
        raise error.damaged(path, remedy) from error
    except ValueError as error:
        what = f"The list of words cannot be used: {' '.join(str(error).split())[:200]}"
        raise DataDamagedError(what, where=path, remedy="Correct the list.") from error
