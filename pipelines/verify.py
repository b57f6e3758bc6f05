"""`txl verify`: checks data sets, runs, checkpoints, converted models, exports, sessions.

    txl verify PATH

The path is a prepared data set, a checkpoint, the folder of a run or its
checkpoints, a converted model, an exported SavedModel, or a session of
`txl generate`. Everything that another job relies on is read, and a line printed
for each part: what was verified, and what is not covered. The exit code is 65
where something differs, or 78 where parts are not of one run, and the message
names the file and the record or field.
"""

import argparse
import errno
import os
import re
from collections.abc import Callable

from txl_tf.errors import DataDamagedError, InputMissingError, StorageError
from txl_tf.export.export_verification import verify_export
from txl_tf.model_folder import CONFIG_FILE, GRAPH_FILE
from txl_tf.run import CHECKPOINTS, RUN_FILE
from txl_tf.storage.files import (
    file_bytes,
    first_line,
    is_remote,
    list_folder,
    open_regular_file,
    path_exists,
)
from txl_tf.storage.untrusted_files import (
    files_below,
)

from .progress import ReportBytes, byte_progress
from .run_verification import verify_checkpoints, verify_model, verify_run

_MANIFEST_FILE = "manifest.json"
_ARCHIVE = b"PK\x03\x04"
_STEP = re.compile(r"step-\d+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="data set, checkpoint, folder of a run, converted model, export, or session",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    if not is_remote(arguments.path):
        _verification_of(arguments.path)


def run(arguments: argparse.Namespace) -> None:
    """Verifies the path, and prints a line for each part."""
    path = arguments.path.rstrip("/") or "/"
    verify = _verification_of(path)
    with byte_progress(_total_bytes(path), "verifying") as report:
        lines = verify(path, report)
    for line in lines:
        print(line)


def _verification_of(path: str) -> Callable[[str, ReportBytes], list[str]]:
    if _is_archive(path):
        return _verify_session
    if _exports(path):
        return _verify_exports
    if _exists(path, RUN_FILE):
        return verify_run
    if _exists(path, _MANIFEST_FILE):
        if _exists(path, CONFIG_FILE):
            return verify_model
        is_checkpoint = any(name.startswith("state.") for name in list_folder(path))
        return _verify_checkpoint if is_checkpoint else _verify_dataset
    if _steps(path):
        return _verify_checkpoints
    if _steps(os.path.join(path, CHECKPOINTS)):
        return verify_run
    raise InputMissingError(
        "There is nothing here that could be verified.",
        where=path,
        remedy="Name a prepared data set, a checkpoint, the folder of a run, a converted model "
        "or an export.",
    )


def _is_archive(path: str) -> bool:
    if is_remote(path) or not os.path.isfile(path):
        return False
    with open_regular_file(path) as file:
        return file.read(len(_ARCHIVE)) == _ARCHIVE


def _verify_session(path: str, report: ReportBytes) -> list[str]:
    from txl_tf.generation.session_file import check_session

    with open_regular_file(path) as file:
        num_arrays = check_session(file, path)
    report("session", file_bytes(path))
    return [
        f"verified: session {path}, {num_arrays} arrays",
        "not covered: whether it is of a run; `txl generate` refuses one that is not",
    ]


def _verify_dataset(path: str, report: ReportBytes) -> list[str]:
    from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer

    dataset = PreparedDataset.open(path, verify=False)
    manifest = dataset.manifest
    tokenizer = dataset_tokenizer(path, manifest)
    name = os.path.basename(path)
    dataset.verify(progress=lambda done: report(name, done), with_checksums=True)
    lines = [
        f"{split.name}: {split.tokens} tokens in {len(split.shards)} shards"
        for split in manifest.splits
    ]
    lines.append(f"fingerprint: {manifest.fingerprint}")
    if tokenizer.vocabulary_files:
        size = tokenizer.vocabulary_size
        lines.append(f"verified: vocabulary of {manifest.tokenizer_kind}, {size} tokens")
    return [*lines, f"verified: data set {path}"]


def _verify_checkpoints(path: str, report: ReportBytes) -> list[str]:
    lines = verify_checkpoints(path, None, report)
    return [*lines, "not covered: the rest of the run; name its folder for that"]


def _verify_checkpoint(path: str, report: ReportBytes) -> list[str]:
    from txl_tf.training.checkpoint_format import ARRAYS_PREFIX, read_arrays, verified_manifest

    manifest = verified_manifest(path)
    read_arrays(os.path.join(path, ARRAYS_PREFIX), manifest["arrays"])
    report(os.path.basename(path), _total_bytes(path))
    step, arrays = manifest["step"], manifest["arrays"]
    return [f"verified: checkpoint {path}, step {step}, {len(arrays)} arrays"]


def _verify_exports(path: str, report: ReportBytes) -> list[str]:
    lines = []
    for folder in _exports(path):
        num_files = verify_export(folder, lambda done: report("export", done))
        lines.append(f"verified: export {folder}, {num_files} files")
    return lines


def _exports(path: str) -> list[str]:
    """Lists the exported versions in a folder; a server expects one folder per version."""
    below = [os.path.join(path, name) for name in _names(path)]
    return [folder for folder in (path, *below) if _exists(folder, GRAPH_FILE)]


def _steps(folder: str) -> list[str]:
    return [name for name in _names(folder) if _STEP.fullmatch(name)]


def _names(folder: str) -> list[str]:
    try:
        return list_folder(folder)
    except NotADirectoryError:
        return []
    except OSError as error:
        if error.errno == errno.ELOOP:
            what = "A link to itself is where a file or folder must be."
            raise DataDamagedError(what, where=folder, remedy="Remove it.") from error
        what = f"The folder cannot be read: {first_line(error)}"
        raise StorageError(what, where=folder, remedy="Check the storage.") from error


def _exists(folder: str, name: str) -> bool:
    return path_exists(os.path.join(folder, name))


def _total_bytes(path: str) -> int:
    """Sums the bytes of all files below a folder."""
    try:
        if is_remote(path):
            return sum(file_bytes(os.path.join(path, name)) for name in files_below(path))
        # Links are not followed, as they can form a cycle.
        return sum(
            os.lstat(os.path.join(folder, name)).st_size
            for folder, _, names in os.walk(path)
            for name in names
        )
    except OSError as error:
        what = f"A file cannot be looked at: {first_line(error)}"
        raise DataDamagedError(what, where=path, remedy="Restore it from a copy.") from error
