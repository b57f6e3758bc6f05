"""Brings models of other implementations in, and models out: `txl convert`.

    txl convert --from official_tensorflow --source MODEL.CKPT --out DIR
    txl convert --to hugging_face --workdir DIR --out DIR
    txl convert --vocabulary cache.pkl --out FILE

A converted model is a folder with `config.json` and one checkpoint, whose
files are verified when it is read. With `--data` it holds the tokenizer too.
"""

import argparse
import functools
import json
import os
from collections.abc import Callable
from typing import Any

from txl_tf.config.base import parse_setting
from txl_tf.errors import InputMissingError, MismatchError, UsageError
from txl_tf.model_folder import ModelFolder, open_model, tokenizer_from, write_model_folder
from txl_tf.storage.staging import require_absent

from .arguments import add_override_argument, add_step_argument
from .progress import plain_table

# Names of systems, and of their loaders in `txl_tf.convert`.
_LOADERS = {
    "official_tensorflow": "load_official_tensorflow",
    "hugging_face": "load_hugging_face",
    "official_pytorch": "load_official_pytorch",
    "nvidia": "load_nvidia_pytorch",
}
_SECTION = "model."
_TRAINING_ONLY = ("dropout", "attention_dropout", "variational_dropout", "init", "projection")
# Options of the three uses of the job; the first of each is required.
_OPTIONS = {
    "from_system": ("source", "set", "data"),
    "to_system": ("workdir", "step"),
    "vocabulary": (),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    way = parser.add_mutually_exclusive_group(required=True)
    meaning = "whose weights to read"
    way.add_argument("--from", choices=[*_LOADERS], dest="from_system", help=meaning)
    way.add_argument("--to", choices=["hugging_face"], dest="to_system", help="whose to write")
    way.add_argument("--vocabulary", metavar="FILE", help="the official code's cache.pkl")
    parser.add_argument("--out", metavar="PATH", required=True, help="folder or file to make")
    parser.add_argument("--source", metavar="PATH", help="checkpoint, file of tensors or folder")
    meaning = "prepared data set of the model, whose tokenizer the folder is to hold"
    parser.add_argument("--data", metavar="DIR", help=meaning)
    parser.add_argument("--workdir", metavar="DIR", help="run, checkpoint, converted model, export")
    add_step_argument(parser)
    meaning = "what the tensors do not tell, such as model.memory_length; may be repeated"
    add_override_argument(parser, "model.FIELD=VALUE", meaning)


def check_arguments(arguments: argparse.Namespace) -> Callable[[], None]:
    """Checks the arguments before TensorFlow is imported; returns the conversion to run."""
    way, own = next(each for each in _OPTIONS.items() if getattr(arguments, each[0]) is not None)
    values = {name: getattr(arguments, name) for name in ("source", "workdir", "step", "data")}
    values["set"] = arguments.overrides or None
    for name, value in values.items():
        if value is None and name in own[:1]:
            raise UsageError(f"This conversion needs --{name}.", where=f"--{name}")
        if value is not None and name not in own:
            raise UsageError(f"This conversion has no use for --{name}.", where=f"--{name}")
    require_absent(arguments.out)
    if way == "to_system":
        source = open_model(arguments.workdir, arguments.step)
        return functools.partial(_write_hugging_face, source, arguments.out)
    if way == "vocabulary":
        _require_input("--vocabulary", arguments.vocabulary, arguments.vocabulary)
        return functools.partial(_convert_vocabulary, arguments.vocabulary, arguments.out)
    _require_input("--source", arguments.source, arguments.source, f"{arguments.source}.index")
    settings = _settings(arguments.overrides)
    return functools.partial(
        _read, arguments.from_system, arguments.source, settings, arguments.data, arguments.out
    )


def run(convert: Callable[[], None]) -> None:
    """Converts, and prints a summary."""
    convert()


def _require_input(option: str, given: str, *paths: str) -> None:
    if not any(map(os.path.exists, paths)):
        what = "There is no such file or folder."
        raise InputMissingError(what, where=f"{option} {given}")


def _settings(overrides: list[str]) -> dict[str, Any]:
    from txl_tf.convert.model_sizes import check_settings

    where = " ".join(f"--set {text[:200]}" for text in overrides)
    settings = {}
    try:
        for text in overrides:
            name, equals, value = text.partition("=")
            if not equals or not name.strip().startswith(_SECTION):
                raise ValueError("A setting is model.FIELD=VALUE.")
            settings[name.strip().removeprefix(_SECTION)] = parse_setting(value.strip())
        check_settings(settings)
    except ValueError as error:
        raise UsageError(f"{error}", where=where) from error
    return settings


def _read(system: str, source: str, settings: dict[str, Any], data: str | None, out: str) -> None:
    from txl_tf import convert

    origins: dict[str, str] = {}
    try:
        model = getattr(convert, _LOADERS[system])(source, origins=origins, **settings)
    except ValueError as error:
        remedy = "Give it with --set model.FIELD=VALUE."
        raise UsageError(f"{error}", where=f"--source {source}", remedy=remedy) from error
    try:
        write_model_folder(model, out, None if data is None else tokenizer_from(data))
    except ValueError as error:
        raise MismatchError(f"{error}", where=f"--data {data}") from error
    rows = [
        (f"{_SECTION}{name}", json.dumps(getattr(model.config, name)), origin)
        for name, origin in origins.items()
        if not name.startswith(_TRAINING_ONLY)
    ]
    print(plain_table(sorted(rows, key=lambda row: row[2].startswith("assumed"))))
    _print_summary(model, out)


def _write_hugging_face(source: ModelFolder, out: str) -> None:
    from txl_tf.convert import save_hugging_face

    model: Any = source.load_model()
    try:
        save_hugging_face(model, out)
    except ValueError as error:
        raise UsageError(f"{error}", where="--to hugging_face") from error
    _print_summary(model, out)


def _print_summary(model: Any, out: str) -> None:
    num_weights = sum(variable.value.shape.num_elements() for variable in model.weights)
    print(f"{num_weights} weights in {len(model.weights)} variables")
    print(f"written: {out}")


def _convert_vocabulary(path: str, out: str) -> None:
    from txl_tf.convert import read_python2_vocabulary, write_symbols

    vocabulary = read_python2_vocabulary(path)
    write_symbols(vocabulary, out)
    print(f"{len(vocabulary.symbols)} symbols of {vocabulary.dataset or 'a corpus without a name'}")
    if vocabulary.cutoffs:
        print(f"cutoffs: {', '.join(map(str, vocabulary.cutoffs))}")
    print(f"written: {out}")
