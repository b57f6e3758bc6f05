"""Converts models from and to other implementations: `txl convert`.

    txl convert --from official_tensorflow --source MODEL.CKPT --out DIR
    txl convert --to hugging_face --workdir DIR --out DIR

A converted model is a folder with `config.json` and one checkpoint, whose
files are verified when it is read. With `--data` or `--vocabulary` it holds the
tokenizer too.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from txl_tf.config.setting_values import parse_setting
from txl_tf.convert.python2_vocabulary import Python2Vocabulary
from txl_tf.data.corpora import CORPORA
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.data.vocabulary_training import WordTraining
from txl_tf.errors import InputMissingError, MismatchError, UsageError
from txl_tf.model_folder import (
    ModelFolder,
    build_model,
    open_model,
    tokenizer_from,
    write_model_folder,
)
from txl_tf.storage.staging import require_absent

from ..shell.arguments import add_override_argument, add_step_argument
from ..shell.progress import plain_table

# Functions of `txl_tf.convert` that load the weights of each system.
_LOADERS = {
    "official_tensorflow": "load_official_tensorflow",
    "hugging_face": "load_hugging_face",
    "official_pytorch": "load_official_pytorch",
    "nvidia": "load_nvidia_pytorch",
}
_SECTION = "model."
_TRAINING_ONLY = ("dropout", "attention_dropout", "variational_dropout", "init", "projection")
# Options of the two uses of the job; the first of each is required.
_OPTIONS = {
    "from_system": ("source", "set", "data", "vocabulary"),
    "to_system": ("workdir", "step"),
}
# Names here of the corpora that the official code names otherwise.
_CORPORA = {"ptb": "penn_treebank", "wt2": "wikitext2", "wt103": "wikitext103"}
# Hugging Face's names of the word for unknown words.
_UNKNOWN = frozenset({"<unk>", "<UNK>"})
# Logit of a byte that the model's vocabulary does not have.
_NEVER = -100.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument(
        "--from", choices=[*_LOADERS], dest="from_system", help="implementation to read weights of"
    )
    way.add_argument("--to", choices=["hugging_face"], dest="to_system", help="to write for")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to make")
    parser.add_argument("--source", metavar="PATH", help="weights: a file or folder")
    tokenizer = parser.add_mutually_exclusive_group()
    tokenizer.add_argument(
        "--data", metavar="DIR", help="prepared data set of the model, whose tokenizer is copied"
    )
    tokenizer.add_argument(
        "--vocabulary",
        metavar="FILE",
        help="cache.pkl of the official code, or vocab.pkl of Hugging Face",
    )
    parser.add_argument("--workdir", metavar="DIR", help="run, checkpoint, converted model, export")
    add_step_argument(parser)
    add_override_argument(
        parser,
        "model.FIELD=VALUE",
        "settings that the tensors do not tell, such as model.memory_length; may be repeated",
    )


def check_arguments(arguments: argparse.Namespace) -> Callable[[], None]:
    """Checks the arguments before TensorFlow is imported; returns the conversion to run."""
    way, own = next(each for each in _OPTIONS.items() if getattr(arguments, each[0]) is not None)
    use = f"--{way.partition('_')[0]}"
    names = ("source", "workdir", "step", "data", "vocabulary")
    values = {name: getattr(arguments, name) for name in names}
    values["set"] = arguments.overrides or None
    for name, value in values.items():
        if value is None and name in own[:1]:
            raise UsageError(f"{use} needs --{name}.", where=use, remedy=f"Add --{name}.")
        if value is not None and name not in own:
            raise UsageError(f"{use} does not use --{name}.", where=use, remedy=f"Omit --{name}.")
    require_absent(arguments.out)
    if way == "to_system":
        source = open_model(arguments.workdir, arguments.step)
        return functools.partial(_write_hugging_face, source, arguments.out)
    if not any(map(os.path.exists, (arguments.source, f"{arguments.source}.index"))):
        raise InputMissingError(
            "There is no such file or folder.", where=f"--source {arguments.source}"
        )
    if arguments.from_system != "official_tensorflow":
        _require_torch(arguments.source)
    return functools.partial(
        convert_weights,
        arguments.from_system,
        arguments.source,
        checked_settings(arguments.overrides),
        arguments.out,
        data=arguments.data,
        vocabulary=arguments.vocabulary,
    )


def _require_torch(source: str) -> None:
    """Raises InputMissingError if only PyTorch reads the weights, and it is not installed."""
    names = os.listdir(source) if os.path.isdir(source) else [source]
    is_readable = any(name.endswith((".safetensors", ".npz")) for name in names)
    is_of_torch = any(name.endswith((".bin", ".pt", ".pth")) for name in names)
    if is_of_torch and not is_readable and importlib.util.find_spec("torch") is None:
        raise InputMissingError(
            "The package torch, which reads this file, is not installed.",
            where=f"--source {source}",
            remedy="Install torch, or convert the file to safetensors on a machine that has torch.",
        )


def run(convert: Callable[[], None]) -> None:
    """Runs the conversion, which prints a summary."""
    convert()


def checked_settings(overrides: list[str]) -> dict[str, Any]:
    """Returns the settings of `--set model.FIELD=VALUE`; raises UsageError."""
    from txl_tf.convert.converted_config import check_settings

    where = " ".join(f"--set {text[:200]}" for text in overrides)
    settings = {}
    try:
        for text in overrides:
            name, equals, value = text.partition("=")
            if not equals or not name.strip().startswith(_SECTION):
                raise ValueError("A setting must have the form model.FIELD=VALUE.")
            settings[name.strip().removeprefix(_SECTION)] = parse_setting(value.strip())
        check_settings(settings)
    except ValueError as error:
        raise UsageError(f"{error}", where=where) from error
    return settings


def convert_weights(
    system: str,
    source: str,
    settings: dict[str, Any],
    out: str,
    *,
    data: str | None = None,
    vocabulary: str | None = None,
) -> None:
    """Writes a model of another system as a folder, with the tokenizer of `data` or a pickle."""
    from txl_tf import convert

    tokenizer = None if data is None else tokenizer_from(data)
    official = None if vocabulary is None else convert.read_python2_vocabulary(vocabulary)
    origins: dict[str, str] = {}
    try:
        model = getattr(convert, _LOADERS[system])(source, origins=origins, **settings)
    except ValueError as error:
        raise UsageError(
            f"{error}",
            where=f"--source {source}",
            remedy="Give a missing setting with --set model.FIELD=VALUE.",
        ) from error
    try:
        if official is not None:
            tokenizer = _official_tokenizer(official)
        if official is not None and isinstance(tokenizer, ByteTokenizer):
            model = _model_of_bytes(model, official.symbols)
            origins["vocabulary_size"] = "all bytes"
        write_model_folder(model, out, tokenizer)
    except ValueError as error:
        where = f"--vocabulary {vocabulary}" if data is None else f"--data {data}"
        raise MismatchError(f"{error}", where=where) from error
    rows = [
        (f"{_SECTION}{name}", json.dumps(getattr(model.config, name)), origin)
        for name, origin in origins.items()
        if not name.startswith(_TRAINING_ONLY)
    ]
    print(plain_table(sorted(rows, key=lambda row: row[2].startswith("assumed"))))
    _print_summary(model, out)
    beside = os.path.join(source, "vocab.pkl")
    if tokenizer is None and os.path.isfile(beside):
        print(f"no tokenizer: --vocabulary {beside} makes one")


def _write_hugging_face(source: ModelFolder, out: str) -> None:
    from txl_tf.convert import save_hugging_face

    model: Any = source.load_model()
    tokenizer = source.tokenizer()
    tokens = tokenizer.token_texts() if isinstance(tokenizer, WordTokenizer) else ()
    words = [token.decode() for token in tokens]
    # Hugging Face's tokenizer reads one word per line, and needs a word for unknown words.
    has_words = not _UNKNOWN.isdisjoint(words)
    try:
        save_hugging_face(model, out, words if has_words else ())
    except ValueError as error:
        raise UsageError(f"{error}", where="--to hugging_face") from error
    _print_summary(model, out)
    way = f"TransfoXLTokenizer(vocab_file='{out}/vocab.txt')"
    none = "none: Hugging Face's tokenizer has only words, with one for unknown words"
    print(f"vocabulary: {way if has_words else none}")


def _print_summary(model: Any, out: str) -> None:
    num_weights = sum(variable.value.shape.num_elements() for variable in model.weights)
    print(f"{num_weights} weights in {len(model.weights)} variables")
    print(f"written: {out}")


def _official_tokenizer(vocabulary: Python2Vocabulary) -> Tokenizer:
    """Returns the tokenizer with the ids of a vocabulary; raises ValueError for another corpus."""
    if vocabulary.dataset is None:
        rule = WordRule(add_eos="<eos>" in vocabulary.symbols)
        word = min(_UNKNOWN & set(vocabulary.symbols), default=None)
        return WordTokenizer(vocabulary.symbols, rule, unknown_token=word)
    name = _CORPORA.get(vocabulary.dataset, vocabulary.dataset)
    if name not in CORPORA:
        raise ValueError(f"The corpus must be one of {', '.join(CORPORA)}. Received: {name!r}")
    usual = CORPORA[name]().tokenizer
    if isinstance(usual, WordTraining):
        unknown = usual.unknown_token
        return WordTokenizer(vocabulary.symbols, usual.rule, unknown_token=unknown)
    if usual.kind == "bytes":
        return ByteTokenizer()
    return CharacterTokenizer([each.replace("_", " ") for each in vocabulary.symbols])


def _model_of_bytes(model: Any, symbols: Sequence[str]) -> Any:
    """Returns the model with 256 ids in the order of bytes; `symbols` are numbers of bytes."""
    weights = {variable.path: variable.numpy() for variable in model.weights}
    numbers = list(map(str, range(256)))
    if others := set(symbols) - set(numbers):
        raise ValueError(f"The symbols must be numbers of bytes. Received: {min(others)!r}")
    ids = list(map(numbers.index, symbols))
    for name, missing in (("embedding/table", 0.0), ("softmax/bias", _NEVER)):
        of_symbols = weights[name]
        weights[name] = np.full((256, *of_symbols.shape[1:]), missing, of_symbols.dtype)
        weights[name][ids] = of_symbols
    return build_model(dataclasses.replace(model.config, vocabulary_size=256), weights)
