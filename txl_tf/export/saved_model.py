"""Export of a model as a SavedModel with signatures, model card and warm-up requests."""

import importlib.util
import json
import logging
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from txl_tf.config.base import DEFAULT_NEW_TOKENS
from txl_tf.config.generation import GenerationConfig
from txl_tf.config.task import TaskConfig
from txl_tf.data.tokenizers.tokenizer import excluded_tokens
from txl_tf.export.completion import CompletionSignatures
from txl_tf.export.export_verification import CARD_FILE
from txl_tf.export.model_card import card_page, hub_page
from txl_tf.export.sampling import Sampling
from txl_tf.export.served_model import ExportOptions, ServedModel
from txl_tf.export.served_weights import ServedWeights
from txl_tf.export.text_signatures import GraphTexts, TextSignatures
from txl_tf.export.token_signatures import STATES, VALID_LENGTH, TokenSignatures, WireMemory
from txl_tf.export.version_folder import write_version
from txl_tf.export.warm_up import PROMPT, example_prompt, warm_up_file, warm_up_requests
from txl_tf.model_folder import EXTRA, ModelDescription
from txl_tf.models.language_model import language_model_of
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer


_LOGGER = logging.getLogger(__name__)
WARM_UP_FILE = f"{EXTRA}/tf_serving_warmup_requests"
_SAMPLE_ROWS = 8


def export_saved_model(
    model: TransformerXL | StatefulTransformerXL,
    folder: str | os.PathLike[str],
    model_card: dict[str, Any],
    *,
    tokenizer: "Tokenizer | None" = None,
    options: ExportOptions | None = None,
    completion: GenerationConfig | None = None,
    sample_token_ids: np.ndarray | None = None,
) -> str | os.PathLike[str]:
    """Exports a model with signatures that continue and score texts, or token ids.

    `serving_default` is `complete`: texts in, their continuations out, with the settings
    of `completion`. `perplexity` scores texts. Without a tokenizer `serving_default` is
    `complete_ids`: token ids in, token ids out. A model without memory cannot continue
    texts; its default is `perplexity`, or `score`. See `CompletionSignatures`.

    The other signatures take memory and return memory. Every input and output has the
    batch as its first axis, so that a server can join requests, and nothing is kept
    between requests. Requests are checked in the graph: a bad value is an invalid
    argument, named with its index, on any server.

    Signatures `score`, `next_token` and `generate` take token ids, see
    `TokenSignatures`. With a tokenizer there are `tokenize`, `detokenize`,
    `score_text`, `next_token_text` and `generate_text`, see `TextSignatures`.
    Memory is `memory_states` `(B, L, M, D)` and `memory_valid_length` `(B,)`; a
    new text has valid length 0 and a tensor of that shape or `(B, 0, 0, 0)`. Memory,
    `lengths` and settings have defaults in the graph, for requests without them.

    The folder also has a model card, its page for model hubs (`README.md`), the
    vocabulary, a list `SHA256SUMS` of all files, and, with the extra `serving`, warm-up
    requests for a server. The folder appears when it is complete.

    Args:
        model: `TransformerXL`, or a `StatefulTransformerXL`, whose inner model is exported.
        folder: path of the SavedModel; for TensorFlow Serving its name is the
            version number, see `next_version`.
        model_card: dict of JSON values. The facts of the export are added to it as
            `"serving"`.
        tokenizer: optional `Tokenizer` with the model's vocabulary.
        options: optional `ExportOptions`.
        completion: optional `GenerationConfig`: how a text is continued where a request
            gives nothing but the text. Without a seed every row of every request has a
            new one. Defaults to `None`: the defaults of `GenerationConfig`, limited to
            the tokens that a request may ask for.
        sample_token_ids: optional int vector of token ids in the order of a
            text. With it, the card has the loss of this text, as exported and with
            weights in float32.

    Returns:
        The folder.

    Raises:
        OutputExistsError: If the folder exists; it is left unchanged.
        StorageError: If it cannot be written.
        ValueError: If the tokenizer has another vocabulary than the model, or `completion`
            writes more tokens than a request may ask for.
    """
    options = ExportOptions() if options is None else options
    completion = _completion(completion, options, tokenizer)
    model = language_model_of(model)
    config = model.config
    described = description(model, model_card, tokenizer, options)
    json.dumps(model_card)  # fails before the slow work
    weights = ServedWeights(model.weights, options.weights)
    excluded = excluded_tokens(tokenizer, completion.allow_unknown)
    served = ServedModel(model, weights, options.num_candidates, excluded)
    memory = WireMemory(config, tf.as_dtype(options.memory_dtype))
    root = tf.Module()
    root.weights = weights
    signatures = create_signatures(root, served, memory, options, completion, tokenizer)
    stored = weights_card(model, weights, served, options, sample_token_ids)
    serving = _serving_card(signatures, memory, options, stored)
    serving |= _completion_card(completion, next(iter(signatures)), tokenizer)
    card = {**model_card, "serving": serving}
    write_version(
        os.fspath(folder),
        root,
        signatures,
        _input_shapes(memory),
        export_files(card, described, memory, list(signatures), tokenizer),
        _defaults(memory, completion),
    )
    return folder


def _completion(
    completion: GenerationConfig | None, options: ExportOptions, tokenizer: "Tokenizer | None"
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


def create_signatures(
    root: tf.Module,
    served: ServedModel,
    memory: WireMemory,
    options: ExportOptions,
    completion: GenerationConfig,
    tokenizer: "Tokenizer | None",
) -> dict[str, Any]:
    """Creates all signatures of an export by name, the default first.

    `root` comes to own everything they need besides weights.
    """
    tokens = TokenSignatures(served, memory, options)
    texts = None
    if tokenizer is not None:
        graph_texts = GraphTexts(tokenizer, options, served.config.vocabulary_size)
        root.tokenizer = graph_texts.tokenizer
        texts = TextSignatures(served, tokens, memory, graph_texts)
    simple = CompletionSignatures(served, memory, completion, tokens, texts, tokenizer)
    of_texts = {} if texts is None else texts.functions()
    return {**simple.functions(), **tokens.functions(), **of_texts}


def _defaults(memory: WireMemory, completion: GenerationConfig) -> dict[str, np.ndarray]:
    """Returns the values of inputs that a request omits; a scalar stands for all rows."""
    numbers = {
        "max_tokens": np.int32(completion.max_tokens),
        "temperature": np.float32(1.0),
        "top_k": np.int32(0),
        "top_p": np.float32(1.0),
        "seed": np.int32(0),
        "stop_token_id": np.int32(-1),
        "previous_token_ids": np.int32(-1),
        "lengths": np.int32(-1),  # all tokens of each row
        VALID_LENGTH: np.int32(0),
    }
    nothing = np.zeros([0, 0, 0, 0], memory.dtype.as_numpy_dtype)
    return {**{name: np.asarray(number) for name, number in numbers.items()}, STATES: nothing}


def _input_shapes(memory: WireMemory) -> dict[str, list[int]]:
    """Returns the shapes of all inputs by name, -1 where they are open."""
    rows = ("lengths", "texts", "previous_token_ids", VALID_LENGTH, *Sampling._fields)
    return {
        **{name: [-1] for name in rows},
        "token_ids": [-1, -1],
        "target_ids": [-1, -1],
        STATES: [-1, *memory.shape],
    }


def weights_card(
    model: TransformerXL,
    weights: ServedWeights,
    served: ServedModel,
    options: ExportOptions,
    sample_token_ids: np.ndarray | None,
) -> dict[str, Any]:
    """Returns the card's entries on the weights, and on the loss of a sample if there is one."""
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
    """Returns the nats per token of an int vector, read in a few rows with memory."""
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
            "max_input_tokens": options.max_input_tokens,
            "max_output_tokens": options.max_output_tokens,
        },
    }


def _completion_card(
    completion: GenerationConfig, default: str, tokenizer: "Tokenizer | None"
) -> dict[str, Any]:
    """Describes the default signature, with an example request."""
    if default == "complete_ids":
        example: list[Any] = [[0]]
    elif tokenizer is not None:
        example = [example_prompt(tokenizer)]
    else:
        return {}
    written = completion.to_dict() if default != "perplexity" else {}
    return {"completion": {"signature": default, **written, "example": example}}


def description(
    model: TransformerXL,
    card: dict[str, Any],
    tokenizer: "Tokenizer | None",
    options: ExportOptions,
    task: TaskConfig | None = None,
) -> ModelDescription:
    """Returns the contents of `config.json`; ValueError if the card or tokenizer do not fit."""
    known = {name: card[name] for name in ("evaluation", "step") if name in card}
    if "training" in card:
        known["document_boundaries"] = card["training"]["document_boundaries"]
    known |= {"stored_as": options.weights, "task": task}
    return ModelDescription.of_model(model, tokenizer, **known)


def export_files(
    card: dict[str, Any],
    described: ModelDescription,
    memory: WireMemory,
    names: list[str],
    tokenizer: "Tokenizer | None",
) -> dict[str, bytes]:
    """Returns card, settings, vocabulary and warm-up requests by path in an export."""
    files = {
        CARD_FILE: (json.dumps(card, indent=1) + "\n").encode(),
        f"{EXTRA}/model_card.md": card_page(card).encode(),
        f"{EXTRA}/README.md": hub_page(card).encode(),
        **{f"{EXTRA}/{name}": each for name, each in described.files(tokenizer).items()},
    }
    if importlib.util.find_spec("tensorflow_serving") is None:
        _LOGGER.warning("The export has no warm-up requests: the extra `serving` is not installed.")
    else:
        prompt = PROMPT if tokenizer is None else example_prompt(tokenizer)
        files[WARM_UP_FILE] = warm_up_file(warm_up_requests(memory, names, prompt))
    return files
