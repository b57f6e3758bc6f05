"""Turns text into a prepared data set: `txl prepare`.

    txl prepare --text FILE --tokenizer bytes --out DIR
    txl prepare --corpus enwik8 --out DIR

The folder holds the token stream as TFRecord files, in order, and a manifest;
it is good for any batch size, segment length and number of hosts.
"""

import argparse
import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from txl_tf.config.limits import MAX_TOKEN_IDS
from txl_tf.data.corpora import CORPORA, SPLITS, Corpus, python_standard_library_splits
from txl_tf.data.preparation import SHARD_BYTES, prepare_dataset
from txl_tf.data.prepared_dataset import Manifest, PreparedDataset
from txl_tf.data.sources.downloads import download
from txl_tf.data.sources.id_files import IdDocuments
from txl_tf.data.sources.text_files import (
    TextDocuments,
    line_place,
    numbered_lines,
    text_blocks,
    text_files,
    validated_text,
)
from txl_tf.data.splits import split_by_fraction
from txl_tf.data.text import Document, Reread
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.data.vocabulary_training import (
    CharacterTraining,
    SentencePieceTraining,
    VocabularyTraining,
    WordTraining,
)
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError, UsageError
from txl_tf.storage.staging import require_absent
from txl_tf.storage.strict_json import parse_json_object
from txl_tf.tasks.record_files import read_records

from ..shell.arguments import MAX_STEP, add_number, option_of
from ..shell.byte_progress import byte_progress, download_progress

_BYTES_PER_MEGABYTE = 1_000_000
_MAX_WORKERS = 64
_READ_TOKENS = 1 << 20
_BUILT_IN = "python_standard_library"
_DEFAULT_FRACTION = 0.05
_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
_LABELS = "Write a label on each line, in the order of the ids."
_DEFAULT_FOLDER = "downloads"
_TOKENIZERS: dict[str, Tokenizer | VocabularyTraining] = {
    "bytes": ByteTokenizer(),
    # A single character, so that decoded text encodes to the same tokens.
    "characters": CharacterTraining(unknown_token="\ufffd"),
    "words": WordTraining(rule=WordRule(add_eos=True), unknown_token="<unk>"),
    "sentencepiece": SentencePieceTraining(),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    _add_text_arguments(parser.add_argument_group("text"))
    _add_tokenizer_arguments(parser.add_argument_group("tokenizer"))
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
    meaning = "processes (default: one per core; one for bytes and ids)"
    add_number(output, "--workers", 1, max(_MAX_WORKERS, 4 * _num_cores()), meaning)


def _add_text_arguments(text: Any) -> None:
    source = text.add_mutually_exclusive_group()
    source.add_argument(
        "--text", metavar="PATH", nargs="+", help="files, folders or patterns, divided into splits"
    )
    names = [_BUILT_IN, *CORPORA]
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
        help=f"folder of downloads (default: {_DEFAULT_FOLDER})",
    )
    meaning = "line ends of enwik8 (default: drop)"
    text.add_argument("--newlines", choices=["keep", "drop"], help=meaning)
    meaning = "format of the files (default: text)"
    text.add_argument("--format", choices=["text", "jsonl", "csv", "parquet", "ids"], help=meaning)
    meaning = "field or column with the text or ids (default: text)"
    text.add_argument("--field", metavar="NAME", help=meaning)
    meaning = "file or line (default: file)"
    text.add_argument("--one-document-per", choices=["file", "line"], metavar="UNIT", help=meaning)
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
    meaning = "seed of the division into splits (default: 0)"
    add_number(text, "--split-seed", -MAX_STEP, MAX_STEP, meaning)


def _add_tokenizer_arguments(group: Any) -> None:
    group.add_argument(
        "--tokenizer",
        choices=list(_TOKENIZERS),
        metavar="KIND",
        help=f"{', '.join(_TOKENIZERS)} (default: the corpus's, or bytes)",
    )
    meaning = "most token ids (default: 32000 pieces, or all words); required for ids"
    add_number(group, "--vocabulary-size", 1, MAX_TOKEN_IDS, meaning)
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


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    paths, vocabulary = _paths(arguments), arguments.vocabulary
    kind = _tokenizer_kind(arguments)
    if not paths and arguments.corpus is None:
        remedy = "Give --text, --corpus, or --train-file."
        raise UsageError("There is no text.", where="txl prepare", remedy=remedy)
    for name, fits in _fitting(arguments).items():
        if getattr(arguments, name) is not None and not fits:
            if name == "vocabulary":
                raise UsageError(
                    "Vocabularies of other tools are not read.",
                    where=f"--vocabulary {vocabulary}",
                    remedy="Write ids with that tool, for --format ids. A list of words needs "
                    "--tokenizer words.",
                )
            causes = " or ".join(_causes(arguments, name)) or "the other options"
            raise UsageError(
                f"This option has no effect with {causes}.",
                where=f"{option_of(name)} {getattr(arguments, name)}",
                remedy="Leave it out; `txl prepare --help` describes it.",
            )
    # A file in two splits would leak the test into training.
    text_files(paths)
    for path, what in ((arguments.archive, "archive"), (vocabulary, "vocabulary")):
        if path is not None and "://" not in path and not os.path.exists(path):
            remedy = "Name an existing file or folder."
            raise InputMissingError(f"There is no such {what}.", where=path, remedy=remedy)
    valid_fraction, test_fraction = _fractions(arguments)
    # Negated, so that NaN is refused too.
    if not (valid_fraction >= 0 and test_fraction >= 0 and valid_fraction + test_fraction < 1):
        raise UsageError(
            "The fractions for valid and test must be at least 0, and together less than 1.",
            where=f"--valid-fraction {valid_fraction} --test-fraction {test_fraction}",
            remedy="Give smaller fractions, so that text to train on is left.",
        )
    separator = arguments.document_separator or ""
    if "\n" in separator:
        remedy = "Give the line without its end."
        raise UsageError("A separator is one line.", where="--document-separator", remedy=remedy)
    has_train = arguments.train_file or arguments.text or arguments.corpus
    if kind == "ids" and vocabulary is None and arguments.vocabulary_size is None:
        remedy = "Give --vocabulary with a label per line, or --vocabulary-size."
        raise UsageError("The number of ids is missing.", where="--format ids", remedy=remedy)
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


def _causes(arguments: argparse.Namespace, name: str) -> list[str]:
    """Returns the options without which the option `name` would have an effect."""
    values = vars(arguments)
    return [
        f"{option_of(other)} {value}" if isinstance(value, str) else option_of(other)
        for other, value in values.items()
        if _fitting(argparse.Namespace(**{**values, other: None}))[name]
    ]


def _fitting(arguments: argparse.Namespace) -> dict[str, bool]:
    """Returns which options have an effect, with the other options as they are."""
    corpus, kind, vocabulary = arguments.corpus, _tokenizer_kind(arguments), arguments.vocabulary
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


def _tokenizer_kind(arguments: argparse.Namespace) -> str:
    """Returns the kind of tokens, such as `"words"`; a corpus has a kind of its own."""
    if arguments.tokenizer is not None:
        return arguments.tokenizer
    if arguments.format == "ids":
        return "ids"
    corpus = CORPORA.get(arguments.corpus)
    return "bytes" if corpus is None else corpus().tokenizer.kind


def _corpus(arguments: argparse.Namespace) -> Corpus | None:
    """Returns the published corpus with its choices; `None` for other text."""
    if arguments.corpus not in CORPORA:
        return None
    return CORPORA[arguments.corpus](**_without_none(newlines=arguments.newlines))


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _split_files(arguments: argparse.Namespace) -> dict[str, list[str]]:
    files_by_split = {split: getattr(arguments, f"{split}_file") for split in SPLITS}
    return {split: files for split, files in files_by_split.items() if files}


def _paths(arguments: argparse.Namespace) -> list[str]:
    """Returns the paths of the text files, the train split's first; none for a corpus."""
    return arguments.text or [path for files in _split_files(arguments).values() for path in files]


def _fractions(arguments: argparse.Namespace) -> tuple[float, float]:
    fractions = (arguments.valid_fraction, arguments.test_fraction)
    valid, test = (_DEFAULT_FRACTION if part is None else part for part in fractions)
    return valid, test


def run(arguments: argparse.Namespace) -> None:
    """Prepares the data set and prints what was written."""
    tokenizer = choose_tokenizer(arguments)
    splits = _splits(arguments, tokenizer)
    paths, corpus = _paths(arguments), _corpus(arguments)
    name = arguments.corpus or os.path.basename(os.path.abspath(paths[0].replace("\\", "/")))
    # Where there is nothing to tokenize, passing text to a worker would be slower.
    num_workers = 1 if tokenizer.kind in ("bytes", "ids") else _num_cores()
    # The total is not known of a corpus or of ids, nor where a part is read twice.
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
        _print_shares(manifest, *_fractions(arguments))


def _splits(
    arguments: argparse.Namespace, tokenizer: Tokenizer | VocabularyTraining
) -> Mapping[str, Iterable[Document]]:
    """Opens the text as documents by split."""
    if arguments.corpus == _BUILT_IN:
        return python_standard_library_splits()
    if (corpus := _corpus(arguments)) is not None:
        if arguments.archive is not None:
            return corpus.splits(arguments.archive)
        with download_progress("the corpus") as progress:
            folder = arguments.download_folder or _DEFAULT_FOLDER
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
        return {name: documents(paths) for name, paths in _split_files(arguments).items()}
    return split_by_fraction(
        documents(arguments.text),
        *_fractions(arguments),
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
            what = f"The data are ids, but the vocabulary is one of {tokenizer.kind}."
            remedy = f"Give --vocabulary-size {tokenizer.vocabulary_size} in place of --vocabulary."
            raise MismatchError(what, where=f"--vocabulary {path}", remedy=remedy)
        return tokenizer
    if arguments.format == "ids":
        if path is None:
            return IdTokenizer(arguments.vocabulary_size)
        return _labelled_ids(path)
    kind, corpus = _tokenizer_kind(arguments), _corpus(arguments)
    recipe = _TOKENIZERS[kind]
    if corpus is not None and corpus.tokenizer.kind == kind:
        recipe = corpus.tokenizer
    changes = _without_none(
        min_frequency=arguments.min_frequency,
        vocabulary_size=arguments.vocabulary_size,
        model_type=arguments.sentencepiece_model,
    )
    if isinstance(recipe, WordTraining):
        changes["rule"] = rule = _word_rule(arguments, recipe.rule)
        if path is not None:
            return _listed_words(path, rule)
    return recipe if isinstance(recipe, Tokenizer) else dataclasses.replace(recipe, **changes)


def _csv_texts(paths: Sequence[str], column: str) -> Iterator[bytes]:
    for path in text_files(paths):
        for record in read_records(path, [column]):
            yield record.text(column, may_be_empty=True).encode()


def _labelled_ids(path: str) -> IdTokenizer:
    """Reads a label per line, or the JSON of `vocab.json` or `tokenizer.json`: ids by label."""
    content = b"".join(validated_text(text_blocks(path), path)).decode()
    labels = content.removesuffix("\n").split("\n")
    if content.lstrip().startswith("{"):
        values = parse_json_object(content, where=path, remedy=_LABELS)
        model = values.get("model")
        added_tokens = values.get("added_tokens", []) if isinstance(model, dict) else []
        try:
            entries: Any = model["vocab"] if isinstance(model, dict) else values
            if isinstance(entries, list):  # pairs with a score, in the order of the ids
                entries = {label: number for number, (label, _) in enumerate(entries)}
            by_id = {number: label for label, number in entries.items()}
            by_id |= {each["id"]: each["content"] for each in added_tokens}
            if {*map(type, by_id)} != {int} or not 0 <= min(by_id) <= max(by_id) < MAX_TOKEN_IDS:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataDamagedError(
                "The JSON has no ids by label, as vocab.json and tokenizer.json have.",
                where=path,
                remedy=_LABELS,
            ) from error
        labels = [by_id.get(number, "") for number in range(max(by_id) + 1)]
    return IdTokenizer(len(labels), labels)


def _word_rule(arguments: argparse.Namespace, rule: WordRule) -> WordRule:
    changes = _without_none(lower_case=arguments.lower_case, add_eos=arguments.add_eos)
    if arguments.add_eos:
        changes["add_double_eos"] = False
    return dataclasses.replace(rule, **changes)


def _listed_words(path: str, rule: WordRule) -> WordTokenizer:
    """Reads a list of one word per line; a number after the word, such as its count, is ignored."""
    words: dict[str, None] = {}
    for number, offset, line in numbered_lines(path):
        try:
            word, *others = line.decode().split()
            is_entry = len(others) <= 1 and all(map(_NUMBER.fullmatch, others))
        except ValueError:  # not UTF-8, or nothing but white space
            is_entry = False
        if not is_entry:
            raise DataDamagedError(
                f"An entry must be a word in UTF-8, or a word and its count, not {line[:80]!r}.",
                where=line_place(path, number, offset),
                remedy="Write one word per line. Join a word's parts, in the text too: Note_On_60.",
            )
        words[word] = None
    unknown = next((token for token in ("<unk>", "<UNK>") if token in words), None)
    try:
        return WordTokenizer(list(words), rule, unknown_token=unknown)
    except ValueError as error:
        raise DataDamagedError(
            f"The list of words cannot be used: {' '.join(str(error).split())[:200]}",
            where=path,
            remedy="Correct the list.",
        ) from error


def _print_shares(manifest: Manifest, *fractions: float) -> None:
    """Prints the shares of valid and test that differ by half from those asked for."""
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
