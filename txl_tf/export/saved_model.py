"""Export of a model as a SavedModel with signatures, model card and warm-up requests.

The first request of a program traces, compiles and allocates. TensorFlow Serving
does that while it loads a version, with the requests in `assets.extra`. They are
written with the messages of `tensorflow-serving-api`, in the extra `serving`. It
requires the package `tensorflow`, which is the wrong one on a TPU VM; an export
without the extra has no warm-up requests and is otherwise the same.
"""

import importlib.util
import json
import logging
import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from txl_tf.data.vocabulary_folder import tokenizer_files
from txl_tf.export.served_model import ExportOptions, Sampling, ServedModel
from txl_tf.export.served_weights import ServedWeights
from txl_tf.export.text_signatures import TextSignatures
from txl_tf.export.token_signatures import STATES, VALID_LENGTH, TokenSignatures, WireMemory
from txl_tf.export.version_folder import card_page, write_version
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.storage.files import read_file

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer


_LOGGER = logging.getLogger(__name__)
EXTRA = "assets.extra"
"""Folder of what a server does not read: cards and the vocabulary; and of the warm-up."""
CARD_FILE = f"{EXTRA}/model_card.json"
WARM_UP_FILE = f"{EXTRA}/tf_serving_warmup_requests"
_NUM_TOKENS = 4
# Every tokenizer can take it, and a token before it is something to go on from.
_TEXT = b""


def warm_up_requests(
    memory: WireMemory, names: list[str]
) -> list[tuple[str, dict[str, tf.Tensor]]]:
    """Returns a small request for every signature, of one row.

    Args:
        memory: `WireMemory`.
        names: list of signature names.

    Returns:
        List of tuples of signature name and inputs.
    """
    ids = tf.zeros([1, _NUM_TOKENS], tf.int32)
    rows: dict[str, tf.Tensor] = {"token_ids": ids, "lengths": tf.constant([_NUM_TOKENS])}
    state = {
        STATES: tf.zeros([1, 0, 0, 0], memory.dtype),  # the short form of nothing read yet
        VALID_LENGTH: tf.constant([0]),
    }
    text = {"texts": tf.constant([_TEXT])}
    text_state = {**state, "previous_token_ids": tf.constant([0])}
    sampling = Sampling(
        num_tokens=tf.constant([_NUM_TOKENS]),
        temperature=tf.constant([1.0]),
        top_k=tf.constant([2]),
        top_p=tf.constant([0.9]),
        seed=tf.constant([0]),
        stop_token_id=tf.constant([-1]),
    )._asdict()
    requests: dict[str, dict[str, Any]] = {
        "score": {**rows, "target_ids": ids, **state},
        "next_token": {**rows, **state},
        "generate": {**rows, **sampling, **state},
        "tokenize": text,
        "detokenize": rows,
        "score_text": {**text, **text_state},
        "next_token_text": {**text, **text_state},
        "generate_text": {**text, **sampling, **text_state},
    }
    return [(name, requests[name]) for name in names]


def warm_up_file(requests: list[tuple[str, dict[str, tf.Tensor]]]) -> bytes:
    """Returns a TFRecord file with each request as a `PredictionLog`.

    Needs the extra `serving`.

    Args:
        requests: list of tuples of signature name and inputs.

    Returns:
        The content of the file.
    """
    from tensorflow_serving.apis import prediction_log_pb2

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records")
        with tf.io.TFRecordWriter(path) as writer:
            for signature_name, inputs in requests:
                log = prediction_log_pb2.PredictionLog()
                request = log.predict_log.request
                request.model_spec.signature_name = signature_name
                for name, tensor in inputs.items():
                    request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
                # The order of a map is otherwise another one in every process.
                writer.write(log.SerializeToString(deterministic=True))
        return read_file(path)


_SAMPLE_ROWS = 8


def export_saved_model(
    model: TransformerXL,
    folder: str | os.PathLike[str],
    model_card: dict[str, Any],
    *,
    tokenizer: "Tokenizer | None" = None,
    options: ExportOptions | None = None,
    sample_token_ids: np.ndarray | None = None,
) -> str | os.PathLike[str]:
    """Exports a model with signatures that take memory and give memory.

    Every input and output has the batch as its first axis, so that a server
    can join requests, and nothing is kept between requests. Requests are
    checked in the graph: a bad value is an invalid argument, named with its
    place, on any server.

    Signatures `score`, `next_token` and `generate` take token ids, see
    `TokenSignatures`. With a tokenizer there are `tokenize`, `detokenize`,
    `score_text`, `next_token_text` and `generate_text`, see `TextSignatures`.
    Memory is `memory_states` `(B, L, M, D)` and `memory_valid_length` `(B,)`; a
    new text has valid length 0 and a tensor of that shape or `(B, 0, 0, 0)`.

    The folder also has a model card, the vocabulary, a list `SHA256SUMS` of all files,
    and, with the extra `serving`, requests to warm a server up. It appears when it is
    complete.

    Args:
        model: `TransformerXL`.
        folder: path of the SavedModel; for TensorFlow Serving its name is the
            version number, see `next_version`.
        model_card: dict of JSON values, written with what is known of the
            export itself under the name `"serving"`.
        tokenizer: optional `Tokenizer` with the model's vocabulary.
        options: optional `ExportOptions`.
        sample_token_ids: optional int vector of token ids in the order of a
            text. With it, the card has the loss of this text, and what it is
            with weights in float32.

    Returns:
        The folder.

    Raises:
        OutputExistsError: If the folder exists; it is left alone.
        StorageError: If it cannot be written.
        ValueError: If the tokenizer has another vocabulary than the model.
    """
    options = ExportOptions() if options is None else options
    config = model.config
    if tokenizer is not None and tokenizer.vocabulary_size != config.vocabulary_size:
        raise ValueError(
            f"`tokenizer` must have {config.vocabulary_size} tokens. "
            f"Received: a tokenizer of {tokenizer.vocabulary_size}"
        )
    json.dumps(model_card)  # raises before anything takes time
    weights = ServedWeights(model.weights, options.weights)
    served = ServedModel(model, weights, options.num_candidates)
    memory = WireMemory(config, tf.as_dtype(options.memory_dtype))
    root = tf.Module()
    root.weights = weights
    signatures = _signatures(root, served, memory, options, tokenizer)
    stored = _weights_card(model, weights, served, options, sample_token_ids)
    card = {**model_card, "serving": _serving_card(signatures, memory, options, stored)}
    write_version(
        os.fspath(folder),
        root,
        signatures,
        _input_shapes(memory),
        _files(card, memory, list(signatures), tokenizer),
    )
    return folder


def _signatures(
    root: tf.Module,
    served: ServedModel,
    memory: WireMemory,
    options: ExportOptions,
    tokenizer: "Tokenizer | None",
) -> dict[str, Any]:
    """Returns all signatures by name; `root` comes to own what they need besides weights."""
    tokens = TokenSignatures(served, memory, options)
    if tokenizer is None:
        return tokens.functions()
    root.tokenizer = tokenizer.graph_tokenizer()
    only_utf8 = tokenizer.kind != "bytes"
    texts = TextSignatures(served, tokens, memory, root.tokenizer, options, only_utf8=only_utf8)
    return {**tokens.functions(), **texts.functions()}


def _input_shapes(memory: WireMemory) -> dict[str, list[int]]:
    """Returns the shapes of all inputs by name, -1 where they are open."""
    rows = ("lengths", "texts", "previous_token_ids", VALID_LENGTH, *Sampling._fields)
    return {
        **{name: [-1] for name in rows},
        "token_ids": [-1, -1],
        "target_ids": [-1, -1],
        STATES: [-1, *memory.shape],
    }


def _weights_card(
    model: TransformerXL,
    weights: ServedWeights,
    served: ServedModel,
    options: ExportOptions,
    sample_token_ids: np.ndarray | None,
) -> dict[str, Any]:
    num_parameters = sum(variable.value.shape.num_elements() for variable in model.weights)
    card = {
        "stored_as": options.weights,
        "num_parameters": num_parameters,
        "num_bytes": weights.num_bytes,
        "share_of_float32": weights.num_bytes / (4 * num_parameters),
    }
    if sample_token_ids is None:
        return card
    loss = exact_loss = mean_loss(served, sample_token_ids)
    if options.weights != "float32":
        exact = ServedModel(model, ServedWeights(model.weights, "float32"), options.num_candidates)
        exact_loss = mean_loss(exact, sample_token_ids)
    return {
        **card,
        "sample_tokens": len(sample_token_ids),
        "sample_nats_per_token_float32": exact_loss,
        "sample_nats_per_token": loss,
        "sample_loss_change": loss / exact_loss - 1.0,
    }


def mean_loss(served: ServedModel, token_ids: np.ndarray) -> float:
    """Returns the loss of a text, read in a few rows with memory.

    Args:
        served: `ServedModel`.
        token_ids: int vector, the text.

    Returns:
        Nats per token.
    """
    num_rows = min(_SAMPLE_ROWS, len(token_ids) - 1)
    length = (len(token_ids) - 1) // num_rows
    places = np.arange(num_rows)[:, None] * length + np.arange(length)
    token_ids = np.asarray(token_ids, np.int32)
    lengths = tf.fill([num_rows], length)
    memory = served.initial_memory(num_rows)
    nll, _ = served.score(
        tf.constant(token_ids[places]), tf.constant(token_ids[places + 1]), lengths, memory
    )
    return float(np.mean(nll, dtype=np.float64))


def _serving_card(
    signatures: dict[str, Any], memory: WireMemory, options: ExportOptions, stored: dict[str, Any]
) -> dict[str, Any]:
    row_elements = int(np.prod(memory.shape))
    return {
        "signatures": list(signatures),
        "tensorflow": tf.version.VERSION,
        "weights": stored,
        "memory": {
            "shape": ["rows", *memory.shape],
            "dtype": memory.dtype.name,
            "bytes_per_row": row_elements * memory.dtype.size,
        },
        "limits": {
            "max_text_bytes": options.max_text_bytes,
            "max_tokens": options.max_tokens,
            "max_new_tokens": options.max_new_tokens,
        },
    }


def _files(
    card: dict[str, Any], memory: WireMemory, names: list[str], tokenizer: "Tokenizer | None"
) -> dict[str, bytes]:
    files = {
        CARD_FILE: (json.dumps(card, indent=1) + "\n").encode(),
        f"{EXTRA}/model_card.md": card_page(card).encode(),
    }
    if tokenizer is not None:
        files |= {f"{EXTRA}/{name}": each for name, each in tokenizer_files(tokenizer).items()}
    if importlib.util.find_spec("tensorflow_serving") is None:
        _LOGGER.warning("The export has no warm-up requests: the extra `serving` is not installed.")
    else:
        files[WARM_UP_FILE] = warm_up_file(warm_up_requests(memory, names))
    return files
