"""Export of a model as a SavedModel: one version of a folder that a server watches.

A server loads each version that appears under a number. So a version is written under another
name, flushed to disk, and renamed when it is complete.
"""

import os
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2
from tensorflow.core.protobuf import saved_model_pb2

from txl_tf.config.generation import DEFAULT_NEW_TOKENS, GenerationConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer, excluded_tokens
from txl_tf.errors import StorageError, errors_as, storage_errors
from txl_tf.export.graph_texts import GraphTexts
from txl_tf.export.served_model import ServedModel, ServedWeights
from txl_tf.export.signatures import ExportOptions, Input, Signatures, known_inputs
from txl_tf.model_folder import EXTRA, GRAPH_FILE, ModelDescription
from txl_tf.models.headed import TransformerXLWithHead
from txl_tf.models.language_model import language_model_of
from txl_tf.models.plain_weights import plain_weights
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.storage.files import (
    file_sha256,
    list_folder,
    make_folder,
    read_file,
    remove_file,
    write_file,
)
from txl_tf.storage.listed_files import CHECKSUMS_FILE, files_below
from txl_tf.storage.staging import StagingFolder


def export_saved_model(
    model: TransformerXL | StatefulTransformerXL | TransformerXLWithHead,
    folder: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | None = None,
    options: ExportOptions | None = None,
    completion: GenerationConfig | None = None,
    description: ModelDescription | None = None,
) -> str | os.PathLike[str]:
    """Exports a model with signatures that continue and score texts, or token ids.

    `complete` continues texts, with settings for each text or for all. `perplexity` scores texts.
    `generate` and `score` take token ids and memory, and return the next memory. A model without
    memory has neither `complete` nor `generate`, and without a tokenizer there are no signatures of
    texts. A model with a head only has `classify`, which takes texts.

    `serving_default` is `complete` with texts alone. Without `complete` it is the first that the
    model has of `classify`, `perplexity`, `generate` and `score`.

    Every input and output has the batch as its first axis, so that a server can join requests.
    Each row is answered as if it were alone, and nothing is kept between requests. Memory,
    `lengths` and settings have defaults in the signatures. The graph checks each request: a wrong
    value is an invalid argument, named with its index.

    The folder also has `config.json`, the vocabulary, and a list `SHA256SUMS` of all files. It
    appears when it is complete.

    Args:
        model: `TransformerXL`; or a `StatefulTransformerXL`, whose inner model is exported; or a
            `TransformerXLWithHead`.
        folder: path of the SavedModel; for TensorFlow Serving its name is the
            version number, see `next_version`.
        tokenizer: optional `Tokenizer` with the model's vocabulary. A model with a head needs it.
        options: optional `ExportOptions`.
        completion: optional `GenerationConfig`: the defaults of a request. Without a seed every
            row of every request has a new one. Defaults to `None`: the defaults of
            `GenerationConfig`, limited to the tokens that a request may ask for.
        description: optional `ModelDescription` of the run, for `config.json`; its model,
            tokenizer and storage are replaced. For a model with a head it must have a task.

    Returns:
        The folder.

    Raises:
        OutputExistsError: If the folder exists; it is left unchanged.
        StorageError: If it cannot be written.
        ValueError: If the tokenizer has another vocabulary than the model, `completion` writes
            more tokens than a request may ask for or has stop texts without a tokenizer, or a model
            with a head has no task or no tokenizer.
    """
    options = ExportOptions() if options is None else options
    completion = _checked_completion(completion, options, tokenizer)
    head = model.head if isinstance(model, TransformerXLWithHead) else None
    language_model = language_model_of(model) if head is None else model.language_model
    fields: dict[str, Any] = {}
    if description is not None:
        field_names = ("evaluation", "document_boundaries", "step", *(["task"] if head else []))
        fields = {name: getattr(description, name) for name in field_names}
    weights = plain_weights(language_model, "A SavedModel")
    model_description = ModelDescription.of_model(
        language_model, tokenizer, **fields, stored_as=options.weights
    )
    files = {f"{EXTRA}/{name}": each for name, each in model_description.files(tokenizer).items()}
    task = model_description.task
    if head is not None and (task is None or tokenizer is None):
        raise ValueError(
            "A model with a head needs a tokenizer and a `description` with a task. "
            f"Received: tokenizer={tokenizer}, task={task}"
        )
    root = tf.Module()
    root.weights = ServedWeights(weights, options.weights)
    excluded_ids = excluded_tokens(tokenizer, completion.allow_unknown)
    root.texts = None if tokenizer is None else GraphTexts(tokenizer, options.max_text_bytes)
    served_model = ServedModel(language_model, root.weights, excluded_ids, completion, root.texts)
    inputs = known_inputs(language_model.config, completion)
    root.head = None
    if head is not None:
        head_weights = {variable.path: variable.numpy() for variable in head.weights}
        root.head = ServedWeights(head_weights, "float32")
    signatures = Signatures(served_model, inputs, options, root.texts, root.head, task)
    write_version(os.fspath(folder), root, signatures.functions(), inputs, files)
    return folder


def _checked_completion(
    completion: GenerationConfig | None, options: ExportOptions, tokenizer: Tokenizer | None
) -> GenerationConfig:
    most = options.max_output_tokens
    if completion is None:
        return GenerationConfig(max_tokens=min(most, DEFAULT_NEW_TOKENS))
    if completion.max_tokens > most:
        raise ValueError(
            f"`completion.max_tokens` must be at most `options.max_output_tokens`, {most}. "
            f"Received: {completion.max_tokens}"
        )
    if completion.stop and tokenizer is None:
        raise ValueError(f"`completion.stop` needs a tokenizer. Received: {completion.stop}")
    return completion


def next_version(folder: str) -> int:
    """Returns the number after the highest in a folder of versions, which may not exist yet.

    Raises:
        StorageError: If the folder cannot be read.
    """
    with storage_errors("The folder of the exports cannot be read", folder):
        names = list_folder(folder)
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def write_version(
    folder: str,
    root: tf.Module,
    signatures: dict[str, Any],
    inputs: dict[str, Input],
    files: dict[str, bytes],
) -> None:
    """Writes a SavedModel, further files by path, and the checksums of all of them.

    The first signature is the default. Raises OutputExistsError if the folder exists or is being
    written.
    """
    with (
        errors_as(
            StorageError,
            (OSError, tf.errors.OpError),
            "The SavedModel cannot be written",
            folder,
            "Make room, or choose another folder.",
        ),
        StagingFolder(folder, last_file=GRAPH_FILE) as staging,
    ):
        functions = {name: each.get_concrete_function() for name, each in signatures.items()}
        functions = {
            tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: next(iter(functions.values())),
            **functions,
        }
        options = tf.saved_model.SaveOptions(save_debug_info=False)
        tf.saved_model.save(root, staging.path, functions, options)
        _describe_inputs(os.path.join(staging.path, GRAPH_FILE), inputs)
        # The fingerprint identifies the graph before its inputs were described. The checksums
        # identify all files.
        remove_file(os.path.join(staging.path, "fingerprint.pb"))
        for name, content in files.items():
            path = os.path.join(staging.path, name)
            make_folder(os.path.dirname(path))
            write_file(path, content)
        lines = [
            f"{file_sha256(os.path.join(staging.path, name))}  {name}\n"
            for name in files_below(staging.path)
        ]
        write_file(os.path.join(staging.path, CHECKSUMS_FILE), "".join(lines).encode())
        staging.publish()


def _describe_inputs(path: str, inputs: dict[str, Input]) -> None:
    """Declares the shapes and defaults of the inputs in the signatures, for servers and clients.

    The graph itself leaves shapes open, so that its guards see every request unchanged.
    """
    saved_model = saved_model_pb2.SavedModel.FromString(read_file(path))
    (graph,) = saved_model.meta_graphs
    for definition in graph.signature_def.values():
        for name in definition.inputs.keys() & inputs.keys():
            source, info = inputs[name], definition.inputs[name]
            sizes = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in source.shape]
            info.tensor_shape.CopyFrom(tensor_shape_pb2.TensorShapeProto(dim=sizes))
            if source.default is not None:
                default = tf.make_tensor_proto(source.default, source.dtype)
                definition.defaults[name].CopyFrom(default)
    write_file(path, saved_model.SerializeToString(deterministic=True))
