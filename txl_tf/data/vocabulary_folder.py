"""Vocabulary of a tokenizer in a model folder: written, and verified when read."""

import json
import os

from txl_tf.data.prepared_dataset import read_vocabulary_files
from txl_tf.data.tokenizers import load_tokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.storage.files import first_line, path_exists
from txl_tf.storage.untrusted_files import read_json_object, storage_errors

TOKENIZER_FILE = "tokenizer.json"
VOCABULARY = "vocabulary"
_FORMAT_VERSION = 1


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Returns the files that `read_tokenizer` needs: content by path in a folder."""
    description = {
        "format_version": _FORMAT_VERSION,
        "kind": tokenizer.kind,
        "sha256": tokenizer.fingerprint,
    }
    files = {f"{VOCABULARY}/{name}": each for name, each in tokenizer.vocabulary_files.items()}
    return {TOKENIZER_FILE: (json.dumps(description, indent=1) + "\n").encode(), **files}


def read_tokenizer(folder: str) -> Tokenizer | None:
    """Reads the tokenizer that a folder describes; `None` if it describes none.

    Raises JobError like `vocabulary_tokenizer`, and DataDamagedError for a malformed description.
    """
    path = os.path.join(folder, TOKENIZER_FILE)
    if not path_exists(path):
        return None
    try:
        values = read_json_object(path, remedy="Convert the model again.")
    except (OSError, ValueError) as error:
        raise DataDamagedError(
            f"The description of the tokenizer cannot be read: {first_line(error)}", where=path
        ) from error
    if values.get("format_version") != _FORMAT_VERSION or not all(
        isinstance(values.get(name), str) for name in ("kind", "sha256")
    ):
        raise DataDamagedError(
            "The description of the tokenizer is not of a known form.",
            where=path,
            remedy="Convert the model again.",
        )
    return vocabulary_tokenizer(folder, values["kind"], values["sha256"])


def vocabulary_tokenizer(folder: str, tokenizer_kind: str, sha256: str) -> Tokenizer:
    """Builds a tokenizer from the subfolder `vocabulary` and verifies its fingerprint.

    Raises InputMissingError without a vocabulary, MismatchError if this version reads another
    vocabulary for that kind, DataDamagedError or StorageError.
    """
    vocabulary = os.path.join(folder, VOCABULARY)
    with storage_errors("The vocabulary cannot be read", vocabulary, "Check the storage."):
        files = read_vocabulary_files(vocabulary)
    if not files and tokenizer_kind != "bytes":
        raise InputMissingError(
            f"The vocabulary of the model's tokenizer ({tokenizer_kind}) is missing.",
            where=vocabulary,
            remedy="Run the command again that wrote the folder: training writes it and resumes.",
        )
    tokenizer = load_tokenizer(tokenizer_kind, files, where=vocabulary)
    if sha256 == tokenizer.fingerprint:
        return tokenizer
    if not files:
        raise MismatchError(
            f"The model has a tokenizer that is not known: {tokenizer_kind}.",
            where=folder,
            remedy="Use the version of txl-tf that wrote it.",
        )
    raise DataDamagedError(
        f"The vocabulary has SHA-256 {tokenizer.fingerprint}; the model needs {sha256}.",
        where=vocabulary,
        remedy="Restore it from a copy, or from the data set that the model was trained on.",
    )
