"""Folder of a model with its tokenizer: reads a run's, writes and reads converted ones."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl_tf.config.model import ModelConfig
from txl_tf.converted_folder import CONFIG_FILE, write_converted
from txl_tf.data.manifest import Manifest
from txl_tf.data.prepared_dataset import dataset_tokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.vocabulary_folder import tokenizer_files, vocabulary_tokenizer
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.writable_folder import WritableFolder

if TYPE_CHECKING:
    import keras


def write_model_folder(
    model: "keras.Model", folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None
) -> None:
    """Writes a model as a separate folder, completely or not at all, as `txl convert` does.

    The folder has `config.json`, one checkpoint and, with a tokenizer, `tokenizer.json` and its
    vocabulary files. Raises OutputExistsError if the folder exists, and ValueError for another
    kind of model or a tokenizer with another vocabulary.
    """
    from txl_tf.convert.tensors import named_variables

    if not isinstance(model.config, ModelConfig):
        raise ValueError(
            "Only a `TransformerXL` is written as a folder of its own. "
            f"Received: {type(model).__name__}"
        )
    check_vocabulary_size(model, tokenizer)
    arrays = {name: variable.numpy() for name, variable in named_variables(model).items()}
    with StagingFolder(os.fspath(folder), last_file=CONFIG_FILE) as staging:
        path = Path(staging.path)
        if tokenizer is not None:
            for name, content in tokenizer_files(tokenizer).items():
                (path / name).parent.mkdir(exist_ok=True)
                (path / name).write_bytes(content)
        write_converted(WritableFolder.at(path), model.config, arrays)
        staging.publish()


def check_vocabulary_size(model: "keras.Model", tokenizer: Tokenizer | None) -> None:
    """Raises ValueError for a tokenizer with another vocabulary size than the model."""
    size = model.config.vocabulary_size
    if tokenizer is not None and tokenizer.vocabulary_size != size:
        raise ValueError(
            f"`tokenizer` must have {size} tokens, as the model has. "
            f"Received: a tokenizer of {tokenizer.vocabulary_size}"
        )


def run_tokenizer(folder: str, data: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer that a run was trained with, from the identity of the run's data."""
    return vocabulary_tokenizer(folder, data["tokenizer"], data["tokenizer_sha256"])


def tokenizer_from(source: Tokenizer | str | os.PathLike[str]) -> Tokenizer:
    """Returns the given tokenizer, or reads it from the path of a prepared data set."""
    if isinstance(source, Tokenizer):
        return source
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "`tokenizer` must be a `Tokenizer` or the folder of a prepared data set. "
            f"Received: {type(source).__name__}"
        )
    folder = os.fspath(source)
    return dataset_tokenizer(folder, Manifest.read(folder))
