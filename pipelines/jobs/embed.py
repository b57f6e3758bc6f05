"""Writes features of texts, the hidden states of a layer: `txl embed`.

    txl embed --workdir DIR --text FILE --out features.npz
    txl embed --workdir DIR --text FILE.jsonl --field text --layer 6 --out features.npz

Each line of the file is one text; with `--field` each line is a JSON object. Texts of any length
are read segment by segment with memory.

The `.npz` file has `features`, float32: a row for each text. By token or segment, the rows of all
texts follow each other, and `lengths` has the number of rows of each text.
"""

import argparse
import dataclasses
import io
from typing import TYPE_CHECKING, Any

from txl_tf.data.text_files import line_place, numbered_lines, text_of_json
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.errors import DataDamagedError, NonFiniteError, UsageError
from txl_tf.model_folder import ModelFolder, open_model, required_tokenizer
from txl_tf.models.features import POOLINGS, hidden_layer
from txl_tf.storage.files import write_file
from txl_tf.storage.untrusted_files import storage_errors

from ..run.memory_needs import require_reading_memory
from ..shell.arguments import MAX_COUNT, add_model_arguments, add_number, check_text_file
from ..shell.progress import with_chosen_step

if TYPE_CHECKING:
    import numpy as np

    from txl_tf.data.tokenizers.tokenizer import Tokenizer

_MOST_ROWS = 1 << 16
_REMEDY = "Correct the line, or take it out."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_model_arguments(parser)
    text = parser.add_argument_group("text")
    text.add_argument("--text", metavar="FILE", required=True, help="file with one text per line")
    text.add_argument("--field", metavar="NAME", help="the text is in this field of JSON lines")
    features = parser.add_argument_group("features")
    features.add_argument("--out", metavar="FILE", required=True, help="file to write: .npz")
    meaning = "0: the embeddings, 1: the first block, -1: the last block"
    add_number(features, "--layer", -MAX_COUNT, MAX_COUNT, meaning, default=-1)
    meaning = f"{', '.join(POOLINGS)} (default: mean)"
    features.add_argument(
        "--pooling", choices=POOLINGS, default="mean", metavar="KIND", help=meaning
    )
    meaning = "texts read side by side; the features do not depend on it"
    add_number(features, "--batch-size", 1, _MOST_ROWS, meaning, default=8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedJob:
    """Checked arguments of the job."""

    source: ModelFolder
    tokenizer: "Tokenizer"
    layer: int
    arguments: argparse.Namespace


def check_arguments(arguments: argparse.Namespace) -> EmbedJob:
    """Checks the arguments before TensorFlow is imported."""
    if not arguments.out.endswith(".npz"):
        what = "The name of the output must end in .npz."
        raise UsageError(what, where=f"--out {arguments.out}", remedy="Add .npz to the name.")
    source = open_model(arguments.workdir, arguments.step)
    model = source.description.model
    try:
        layer = hidden_layer(model, arguments.layer)
    except ValueError as error:
        raise UsageError(f"{error}", where=f"--layer {arguments.layer}") from error
    rows = f"--batch-size {arguments.batch_size}"
    lengths = model.segment_length, model.effective_memory_length
    require_reading_memory("Reading", model, arguments.batch_size, *lengths, rows)
    check_text_file(arguments.text)
    return EmbedJob(
        source=source,
        tokenizer=required_tokenizer(source, f"--workdir {arguments.workdir}"),
        layer=layer,
        arguments=arguments,
    )


def run(job: EmbedJob) -> None:
    """Reads the texts, and writes their features."""
    import numpy as np

    from txl_tf.causal_lm.layer_reader import LayerReader, text_features

    arguments, (lines, rows) = job.arguments, _read_texts(job)
    model = with_chosen_step(job.source).load_model()
    reader = LayerReader(model, min(arguments.batch_size, len(rows)), job.layer)
    features = text_features(reader, rows, arguments.pooling)
    for line, each in zip(lines, features, strict=True):
        if not np.isfinite(each).all():
            raise NonFiniteError(
                "The features of a text are not finite.",
                where=f"{arguments.text}, line {line}",
                remedy="Choose another checkpoint with --step.",
            )
    arrays: dict[str, Any] = {"features": np.vstack(features)}
    if features[0].ndim > 1:
        arrays["lengths"] = np.array([len(each) for each in features], np.int64)
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **arrays)
    remedy = "Check the folder, the disk and the permissions."
    with storage_errors("The features cannot be written", arguments.out, remedy):
        write_file(arguments.out, archive.getvalue())
    shape = " x ".join(map(str, features[0].shape))
    print(f"{len(features):,} texts, {shape} numbers in the first: {arguments.out}")


def _read_texts(job: EmbedJob) -> tuple[list[int], list["np.ndarray"]]:
    """Returns the number and the tokens of every line."""
    path, field = job.arguments.text, job.arguments.field
    lines, rows = [], []
    for number, offset, line in numbered_lines(path, may_be_json=field is not None):
        place = line_place(path, number, offset)
        if field is None:
            text = line.removesuffix(b"\n").removesuffix(b"\r")
        else:
            text = text_of_json(line, field, place)
        try:
            token_ids = job.tokenizer.encode(text).astype("int32")
        except InvalidTextError as error:
            raise DataDamagedError(error.reason, where=place, remedy=_REMEDY) from error
        if not text or not len(token_ids):
            raise DataDamagedError("The text has no token.", where=place, remedy=_REMEDY)
        lines.append(number)
        rows.append(token_ids)
    if not rows:
        what = "The file has no text to embed."
        raise DataDamagedError(what, where=path, remedy="Write one text on each line.")
    return lines, rows
