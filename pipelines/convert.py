"""Brings models of other implementations in, and models out: `txl convert`.

    txl convert --from official_tensorflow --source MODEL.CKPT --out DIR
    txl convert --to hugging_face --workdir DIR --out DIR
    txl convert --vocabulary cache.pkl --out FILE

A converted model is a folder with `config.json` and one checkpoint, whose
files are verified when it is read. With `--data` it holds the tokenizer too.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl_tf.config.base import parse_setting
from txl_tf.config.model import ModelConfig
from txl_tf.errors import InputMissingError, MismatchError, UsageError
from txl_tf.model_folder import open_model, tokenizer_from, write_model_folder
from txl_tf.storage.staging import require_absent

from .arguments import add_override_argument, add_step_argument
from .progress import plain_table

if TYPE_CHECKING:
    from txl_tf.models.transformer_xl import TransformerXL

SOURCES = ("official_tensorflow", "hugging_face", "official_pytorch", "nvidia")

_SECTION = "model."
_TRAINING_ONLY = (
    "dropout",
    "attention_dropout",
    "variational_dropout",
    "initializer",
    "projection",
)
# Options of the three uses of the job; the first of each is required.
_OPTIONS = {
    "from_system": ("source", "set", "data"),
    "to_system": ("workdir", "step"),
    "vocabulary": (),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--from", choices=SOURCES, dest="from_system", help="whose weights to read")
    way.add_argument("--to", choices=["hugging_face"], dest="to_system", help="whose to write")
    way.add_argument("--vocabulary", metavar="FILE", help="the official code's cache.pkl")
    parser.add_argument("--out", metavar="PATH", required=True, help="folder or file to make")
    parser.add_argument("--source", metavar="PATH", help="checkpoint, file of tensors or folder")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="prepared data set of the model, whose tokenizer the folder is to hold",
    )
    parser.add_argument("--workdir", metavar="DIR", help="run, checkpoint, converted model, export")
    add_step_argument(parser)
    add_override_argument(
        parser,
        "model.FIELD=VALUE",
        "what the tensors do not tell, such as model.memory_length; may be repeated",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    way, own = next(each for each in _OPTIONS.items() if getattr(arguments, each[0]) is not None)
    values = {name: getattr(arguments, name) for name in ("source", "workdir", "step", "data")}
    values["set"] = arguments.overrides or None
    for name, value in values.items():
        if value is None and name in own[:1]:
            raise UsageError(f"This conversion needs --{name}.", where=f"--{name}")
        if value is not None and name not in own:
            raise UsageError(f"This conversion has no use for --{name}.", where=f"--{name}")
    require_absent(arguments.out)
    if way == "from_system":
        _require_source(arguments.source, arguments.from_system)
        arguments.settings = _settings(arguments.overrides)
    elif way == "to_system":
        arguments.source = open_model(arguments.workdir, arguments.step)
    elif not Path(arguments.vocabulary).is_file():
        where = f"--vocabulary {arguments.vocabulary}"
        raise InputMissingError("There is no such file.", where=where)


def run(arguments: argparse.Namespace) -> None:
    """Converts, and prints a summary."""
    if arguments.vocabulary is not None:
        _convert_vocabulary(arguments.vocabulary, arguments.out)
        return
    if arguments.from_system is not None:
        origins: dict[str, str] = {}
        model = _load(arguments.from_system, arguments.source, arguments.settings, origins)
        _write(model, arguments)
        print(_origin_table(model.config, origins))
    else:
        model = arguments.source.load_model()
        _save_hugging_face(model, arguments.out)
    num_weights = sum(variable.value.shape.num_elements() for variable in model.weights)
    print(f"{num_weights} weights in {len(model.weights)} variables")
    print(f"written: {arguments.out}")


def _write(model: "TransformerXL", arguments: argparse.Namespace) -> None:
    tokenizer = None if arguments.data is None else tokenizer_from(arguments.data)
    try:
        write_model_folder(model, arguments.out, tokenizer)
    except ValueError as error:
        raise MismatchError(f"{error}", where=f"--data {arguments.data}") from error


def _require_source(source: str, system: str) -> None:
    exists = os.path.exists(source)
    if system == "official_tensorflow":
        exists = exists or os.path.exists(f"{source}.index")
    if not exists:
        raise InputMissingError(
            "There is no such checkpoint, file or folder.", where=f"--source {source}"
        )


def _settings(overrides: list[str]) -> dict[str, Any]:
    from txl_tf.convert.model_sizes import check_settings

    settings = {}
    where = " ".join(f"--set {text}" for text in overrides)
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().startswith(_SECTION):
            raise UsageError("A setting is model.FIELD=VALUE.", where=f"--set {text}")
        try:
            settings[name.strip().removeprefix(_SECTION)] = parse_setting(value.strip())
        except ValueError as error:
            raise UsageError(f"{error}", where=f"--set {text[:200]}") from error
    try:
        check_settings(settings)
    except ValueError as error:
        raise UsageError(f"{error}", where=where) from error
    return settings


def _origin_table(config: ModelConfig, origins: dict[str, str]) -> str:
    """Formats the settings that were found, given or assumed; others matter in training only."""
    fields = [name for name in origins if not name.startswith(_TRAINING_ONLY)]
    rows = [(f"model.{name}", json.dumps(getattr(config, name)), origins[name]) for name in fields]
    return plain_table(sorted(rows, key=lambda row: row[2].startswith("assumed")))


def _load(
    system: str, source: str, settings: dict[str, Any], origins: dict[str, str]
) -> "TransformerXL":
    from txl_tf import convert

    loaders: dict[str, Callable[..., TransformerXL]] = {
        "official_tensorflow": convert.load_official_tensorflow,
        "hugging_face": convert.load_hugging_face,
        "official_pytorch": convert.load_official_pytorch,
        "nvidia": convert.load_nvidia_pytorch,
    }
    try:
        return loaders[system](source, origins=origins, **settings)
    except ValueError as error:
        raise UsageError(
            f"{error}", where=f"--source {source}", remedy="Give it with --set model.FIELD=VALUE."
        ) from error


def _save_hugging_face(model: "TransformerXL", folder: str) -> None:
    from txl_tf.convert import save_hugging_face

    try:
        save_hugging_face(model, folder)
    except ValueError as error:
        raise UsageError(f"{error}", where="--to hugging_face") from error


def _convert_vocabulary(path: str, out: str) -> None:
    from txl_tf.convert import read_python2_vocabulary, write_symbols

    vocabulary = read_python2_vocabulary(path)
    write_symbols(vocabulary, out)
    print(f"{len(vocabulary.symbols)} symbols of {vocabulary.dataset or 'a corpus without a name'}")
    if vocabulary.cutoffs:
        print(f"cutoffs: {', '.join(map(str, vocabulary.cutoffs))}")
    print(f"written: {out}")
