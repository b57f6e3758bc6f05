"""The tokenizer that a prepared data set keeps."""

import os

from txl_tf.data.manifest import Manifest
from txl_tf.data.tokenizer import Tokenizer
from txl_tf.data.tokenizers.load_tokenizer import load_tokenizer
from txl_tf.data.vocabularies.vocabulary_files import read_vocabulary_files
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.file_storage import first_line

_PREFIX = "vocabulary."


def dataset_tokenizer(folder: str, manifest: Manifest) -> Tokenizer:
    """Builds the tokenizer from the vocabulary of a data set.

    Args:
        folder: str. The folder of the data set.
        manifest: `Manifest`. Its manifest.

    Returns:
        The tokenizer.

    Raises:
        DataDamagedError: If the vocabulary is not the one of the manifest.
        StorageError: If it cannot be read.
    """
    try:
        files = read_vocabulary_files(folder, _PREFIX)
    except OSError as error:
        what = f"The vocabulary cannot be read: {first_line(error)}"
        raise StorageError(what, where=folder, remedy="Check the storage.") from error
    tokenizer = load_tokenizer(manifest.tokenizer_kind, files, where=folder)
    if tokenizer.fingerprint != manifest.tokenizer_sha256:
        raise DataDamagedError(
            f"The vocabulary has SHA-256 {tokenizer.fingerprint}; the manifest says "
            f"{manifest.tokenizer_sha256}.",
            where=", ".join(os.path.join(folder, name) for name in files) or folder,
            remedy="Restore the vocabulary, or prepare the data set again.",
        )
    if tokenizer.vocabulary_size != manifest.vocabulary_size:
        raise DataDamagedError(
            f"The vocabulary has {tokenizer.vocabulary_size} tokens; the manifest says "
            f"{manifest.vocabulary_size}.",
            where=folder,
            remedy="Prepare the data set again.",
        )
    return tokenizer
