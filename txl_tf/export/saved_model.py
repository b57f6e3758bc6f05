"""Export of a model as a SavedModel: one version of a folder that a server watches.

A server loads each version that appears under a number. So a version is written under another
name, flushed to disk, and renamed when complete.
"""

import contextlib
import importlib.util
import itertools
import logging
import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from txl_tf.config.base import DEFAULT_NEW_TOKENS
from txl_tf.config.experiment import SERVED_KINDS, TaskConfig
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer, excluded_tokens
from txl_tf.errors import StorageError
from txl_tf.export.served_model import ServedModel, ServedWeights
from txl_tf.export.signatures import (
    ExportOptions,
    GraphTexts,
    Input,
    TaskSignatures,
    TextSignatures,
    TokenSignatures,
    known_inputs,
)
from txl_tf.model_folder import EXTRA, GRAPH_FILE, ModelDescription
from txl_tf.models.headed import TransformerXLWithHead
from txl_tf.models.language_model import language_model_of
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.storage.files import (
    file_sha256,
    first_line,
    flush_tree_to_disk,
    is_remote,
    list_folder,
    make_folder,
    read_file,
    remove_file,
    write_file,
)
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.untrusted_files import CHECKSUMS_FILE, files_below

_LOGGER = logging.getLogger(__name__)
_DEFAULT = "serving_default"
_WARM_UP_FILE = f"{EXTRA}/tf_serving_warmup_requests"
_PROMPT = "Once upon a time"
_SAMPLE_TOKENS = 8
# Places of the vocabulary that are tried for tokens that are a text.
_MOST_SAMPLES = 64


def export_saved_model(
    model: TransformerXL | StatefulTransformerXL,
    folder: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | None = None,
    options: ExportOptions | None = None,
    completion: GenerationConfig | None = None,
    description: ModelDescription | None = None,
) -> str | os.PathLike[str]:
    """Exports a model with signatures that continue and score texts, or token ids.

    `complete` continues texts, with settings for each text or for all; `serving_default` takes
    nothing but texts. `perplexity` scores texts. `generate` and `score` take token ids and memory,
    and return the next memory. A model without memory has neither `complete` nor `generate`, and
    without a tokenizer there are no signatures of texts.

    Every input and output has the batch as its first axis, so that a server can join requests, and
    nothing is kept between requests. Memory, `lengths` and settings have defaults in the graph, for
    requests without them. Requests are checked in the graph: a bad value is an invalid argument,
    named with its index, on any server.

    The folder also has `config.json`, the vocabulary, a list `SHA256SUMS` of all files, and, with
    the extra `serving`, warm-up requests for a server. It appears when it is complete.

    Args:
        model: `TransformerXL`, or a `StatefulTransformerXL`, whose inner model is exported.
        folder: path of the SavedModel; for TensorFlow Serving its name is the
            version number, see `next_version`.
        tokenizer: optional `Tokenizer` with the model's vocabulary.
        options: optional `ExportOptions`.
        completion: optional `GenerationConfig`: the settings that a request need not give. Without
            a seed every row of every request has a new one. Defaults to `None`: the defaults of
            `GenerationConfig`, limited to the tokens that a request may ask for.
        description: optional `ModelDescription` of the run, for `config.json`; its model,
            tokenizer and storage are replaced.

    Returns:
        The folder.

    Raises:
        OutputExistsError: If the folder exists; it is left unchanged.
        StorageError: If it cannot be written.
        ValueError: If the tokenizer has another vocabulary than the model, or `completion`
            writes more tokens than a request may ask for.
    """
    options = ExportOptions() if options is None else options
    completion = _checked_completion(completion, options, tokenizer)
    model = language_model_of(model)
    files = _description_files(model, tokenizer, options, description)
    root = tf.Module()
    root.weights = ServedWeights(model.weights, options.weights)
    excluded = excluded_tokens(tokenizer, completion.allow_unknown)
    served = ServedModel(model, root.weights, excluded, completion.repetition_penalty)
    inputs = known_inputs(model.config, options.memory_dtype, completion)
    if tokenizer is None:
        signatures = TokenSignatures(served, inputs, options).functions()
    else:
        root.texts = GraphTexts(tokenizer, options.max_text_bytes)
        signatures = TextSignatures(served, inputs, options, root.texts).functions()
    files |= _warm_up_files(signatures, _example_text(tokenizer))
    write_version(os.fspath(folder), root, signatures, inputs, files)
    return folder


def _checked_completion(
    completion: GenerationConfig | None, options: ExportOptions, tokenizer: Tokenizer | None
) -> GenerationConfig:
    most = options.max_output_tokens
    if completion is None:
        return GenerationConfig(max_tokens=min(most, DEFAULT_NEW_TOKENS))
    if completion.max_tokens > most:
        raise ValueError(
            f"`completion.max_tokens` must be `options.max_output_tokens`, {most}, at most. "
            f"Received: {completion.max_tokens}"
        )
    if completion.stop and tokenizer is None:
        raise ValueError(f"`completion.stop` needs a tokenizer. Received: {completion.stop}")
    return completion


def export_task(
    model: TransformerXLWithHead,
    task: TaskConfig,
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    options: ExportOptions | None = None,
    description: ModelDescription | None = None,
) -> str | os.PathLike[str]:
    """Exports a fine-tuned model with the signature `classify`, which takes text.

    Requests are checked in the graph, and each row is answered as if it were alone. The folder
    has the layout of `export_saved_model`, and the language model in it can be loaded like any
    other.

    Args:
        model: `TransformerXLWithHead`.
        task: `TaskConfig` of one of `SERVED_KINDS`.
        tokenizer: `Tokenizer` of the model.
        folder: path of the SavedModel, see `export_saved_model`.
        options: optional `ExportOptions`; only the limit of a text and the storage of the weights
            are used.
        description: optional `ModelDescription`, as for `export_saved_model`.

    Returns:
        The folder.

    Raises:
        OutputExistsError: If the folder exists; it is left unchanged.
        StorageError: If it cannot be written.
        ValueError: If the task is of another kind.
    """
    if task.kind not in SERVED_KINDS:
        raise ValueError(
            f"A task of kind {task.kind!r} has no signature; load it with `load_task`. "
            f"Received: kind={task.kind!r}"
        )
    options = ExportOptions() if options is None else options
    language_model = model.language_model
    files = _description_files(language_model, tokenizer, options, description, task)
    root = tf.Module()
    root.weights = ServedWeights(language_model.weights, options.weights)
    root.head = ServedWeights(model.head.weights, "float32")
    root.texts = GraphTexts(tokenizer, options.max_text_bytes)
    served = ServedModel(language_model, root.weights)
    inputs = known_inputs(language_model.config, options.memory_dtype, GenerationConfig())
    signatures = TaskSignatures(served, inputs, root.texts, root.head, task).functions()
    files |= _warm_up_files(signatures, _example_text(tokenizer))
    write_version(os.fspath(folder), root, signatures, inputs, files)
    return folder


def _description_files(
    model: TransformerXL,
    tokenizer: Tokenizer | None,
    options: ExportOptions,
    description: ModelDescription | None,
    task: TaskConfig | None = None,
) -> dict[str, bytes]:
    """Returns `config.json` and the vocabulary; ValueError for a tokenizer of another size."""
    known: dict[str, Any] = {}
    if description is not None:
        kept = ("evaluation", "document_boundaries", "step")
        known = {name: getattr(description, name) for name in kept}
    described = ModelDescription.of_model(
        model, tokenizer, **known, task=task, stored_as=options.weights
    )
    return {f"{EXTRA}/{name}": each for name, each in described.files(tokenizer).items()}


def _example_text(tokenizer: Tokenizer | None) -> str:
    """Returns a text that a tokenizer can encode, of two tokens or more if possible."""
    if tokenizer is None:
        return _PROMPT
    samples = (
        tokenizer.decode_text(np.arange(start, stop))
        for start in range(min(_MOST_SAMPLES, tokenizer.vocabulary_size))
        for stop in [min(start + _SAMPLE_TOKENS, tokenizer.vocabulary_size)]
    )
    for text in itertools.chain([_PROMPT], samples):
        with contextlib.suppress(InvalidTextError):
            if len(tokenizer.encode_piece(text.encode(), True, False)) > 1:
                return text
    return _PROMPT


def _warm_up_files(signatures: dict[str, Any], text: str) -> dict[str, bytes]:
    """Returns a file with a request to each signature, which a server sends itself at its start.

    The first request of a program traces, compiles and allocates. The messages come from
    `tensorflow-serving-api`, in the extra `serving`, which requires the package `tensorflow`:
    wrong for a TPU VM, so an export without the extra only lacks these requests.
    """
    if importlib.util.find_spec("tensorflow_serving") is None:
        _LOGGER.warning("The export has no warm-up requests: the extra `serving` is not installed.")
        return {}
    from tensorflow_serving.apis import prediction_log_pb2

    token_ids, few = np.zeros([1, 4], np.int32), np.full([1], 4, np.int32)
    given = {"texts": np.array([text.encode()]), "token_ids": token_ids, "target_ids": token_ids}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records")
        with tf.io.TFRecordWriter(path) as writer:
            # A server knows the default signature by another name, and warms up each name.
            for name in dict.fromkeys([_DEFAULT, *signatures]):
                function = signatures.get(name, next(iter(signatures.values())))
                log = prediction_log_pb2.PredictionLog()
                request = log.predict_log.request
                request.model_spec.signature_name = name
                for spec in function.input_signature:
                    value = {**given, "max_tokens": few}.get(spec.name)
                    if value is not None:
                        request.inputs[spec.name].CopyFrom(tf.make_tensor_proto(value))
                # Otherwise the order of a map differs in every process.
                writer.write(log.SerializeToString(deterministic=True))
        return {_WARM_UP_FILE: read_file(path)}


def next_version(folder: str) -> int:
    """Returns the number after the highest in a folder of versions, which may not exist yet.

    Raises:
        StorageError: If the folder cannot be read.
    """
    try:
        names = list_folder(folder)
    except OSError as error:
        raise _storage_error(folder, error, "read") from error
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
    try:
        with StagingFolder(folder, last_file=GRAPH_FILE) as staging:
            traced = {name: each.get_concrete_function() for name, each in signatures.items()}
            traced = {_DEFAULT: next(iter(traced.values())), **traced}
            options = tf.saved_model.SaveOptions(save_debug_info=False)
            tf.saved_model.save(root, staging.path, traced, options)
            _describe_inputs(os.path.join(staging.path, GRAPH_FILE), inputs)
            # It identifies the graph as it was; the checksums identify all files.
            remove_file(os.path.join(staging.path, "fingerprint.pb"))
            for name, content in files.items():
                path = os.path.join(staging.path, name)
                make_folder(os.path.dirname(path))
                write_file(path, content)
            _write_checksums(staging.path)
            if not is_remote(folder):
                flush_tree_to_disk(staging.path)
            staging.publish()
    except (OSError, tf.errors.OpError) as error:
        raise _storage_error(folder, error, "written") from error


def _describe_inputs(path: str, inputs: dict[str, Input]) -> None:
    """Declares the shapes and defaults of the inputs.

    The graph itself leaves shapes open, so that its guards see every request unchanged. Clients
    and `saved_model_cli` read them from the signatures.
    """
    saved_model = saved_model_pb2.SavedModel.FromString(read_file(path))
    (graph,) = saved_model.meta_graphs
    for definition in graph.signature_def.values():
        for name in definition.inputs.keys() & inputs.keys():
            given, info = inputs[name], definition.inputs[name]
            sizes = [tensor_shape_pb2.TensorShapeProto.Dim(size=size) for size in given.shape]
            info.tensor_shape.CopyFrom(tensor_shape_pb2.TensorShapeProto(dim=sizes))
            if given.default is not None:
                default = tf.make_tensor_proto(given.default, given.dtype)
                definition.defaults[name].CopyFrom(default)
                _give_default(graph, info.name, default)
    write_file(path, saved_model.SerializeToString(deterministic=True))


def _give_default(graph: meta_graph_pb2.MetaGraphDef, tensor: str, value: Any) -> None:
    """Gives a placeholder a default value, for sessions of the graph."""
    (placeholder,) = (node for node in graph.graph_def.node if f"{node.name}:0" == tensor)
    constant = graph.graph_def.node.add(name=f"{placeholder.name}_default", op="Const")
    constant.attr["dtype"].type = value.dtype
    constant.attr["value"].tensor.CopyFrom(value)
    placeholder.op = "PlaceholderWithDefault"
    if "shape" not in placeholder.attr:  # an absent shape is open
        placeholder.attr["shape"].shape.unknown_rank = True
    placeholder.input.append(constant.name)


def _write_checksums(folder: str) -> None:
    lines = [f"{file_sha256(os.path.join(folder, name))}  {name}\n" for name in files_below(folder)]
    write_file(os.path.join(folder, CHECKSUMS_FILE), "".join(lines).encode())


def _storage_error(folder: str, error: Exception, done: str) -> StorageError:
    return StorageError(
        f"The SavedModel cannot be {done}: {first_line(error)}",
        where=folder,
        remedy="Make room, or choose another folder.",
    )
