"""Writes a model as a SavedModel that needs TensorFlow alone.

Shape letters used in this module:
  B rows, T segment length, M memory length, D hidden width, L layers.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from txl_tf.durability import flush_to_disk, flush_tree_to_disk
from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


def export_saved_model(
    model: TransformerXL, folder: str | Path, model_card: dict[str, Any]
) -> Path:
    """Exports a model with signatures that take memory and give memory.

    Every input and output has the batch as its first axis, so that a server
    can join requests. Memory is one tensor `(B, L, M, D)` with a valid length
    `(B,)`; zeros with valid length 0 begin a new text.

    Signatures:

    - `score`: `token_ids`, `target_ids` int32 `(B, T)`, `memory_states`,
      `memory_valid_length` -> `nll` float32 `(B, T)` in nats, and the next
      memory under the same two names.
    - `next_token`: `token_ids`, `memory_states`, `memory_valid_length` ->
      `log_probs` float32 `(B, V)` of the token after the last, and the next
      memory.

    Args:
        model: `TransformerXL`.
        folder: path of the SavedModel; for TensorFlow Serving its name is the
            version number.
        model_card: dict of JSON values, written as `model_card.json`.

    Returns:
        The folder.

    Raises:
        OutputExistsError: If the folder exists; it is left alone.
        StorageError: If it cannot be written.
    """
    folder = Path(folder)
    if folder.exists():
        raise OutputExistsError(
            "The export folder exists.",
            where=str(folder),
            remedy="Choose another folder, or remove this one.",
        )
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _archive(model).write_out(str(temporary), verbose=False)
        (temporary / "model_card.json").write_text(json.dumps(model_card, indent=1) + "\n")
        flush_tree_to_disk(temporary)
        temporary.rename(folder)
        flush_to_disk(folder.parent)
    except (OSError, tf.errors.OpError) as error:
        raise StorageError(
            f"The SavedModel cannot be written: {error}".splitlines()[0],
            where=str(folder),
            remedy="Make room, or choose another folder.",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _archive(model: TransformerXL) -> keras.export.ExportArchive:
    config = model.config

    def ids(name: str) -> tf.TensorSpec:
        return tf.TensorSpec([None, None], tf.int32, name)

    memory_specs = [
        tf.TensorSpec(
            [None, config.num_layers, config.memory_length, config.hidden_dim],
            tf.float32,
            "memory_states",
        ),
        tf.TensorSpec([None], tf.int32, "memory_valid_length"),
    ]

    def score(token_ids, target_ids, memory_states, memory_valid_length):
        memory = _unstack(memory_states, memory_valid_length, model.compute_dtype)
        nll, memory = model.score(token_ids, target_ids, memory)
        return {"nll": nll, **_stack(memory)}

    def next_token(token_ids, memory_states, memory_valid_length):
        memory = _unstack(memory_states, memory_valid_length, model.compute_dtype)
        log_probs, memory = model.log_probs(token_ids, memory)
        return {"log_probs": log_probs[:, -1], **_stack(memory)}

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint(
        "score", score, input_signature=[ids("token_ids"), ids("target_ids"), *memory_specs]
    )
    archive.add_endpoint(
        "next_token", next_token, input_signature=[ids("token_ids"), *memory_specs]
    )
    return archive


def _unstack(states: tf.Tensor, valid_length: tf.Tensor, dtype: str) -> Memory:
    return Memory(tuple(tf.unstack(tf.cast(states, dtype), axis=1)), valid_length)


def _stack(memory: Memory) -> dict[str, tf.Tensor]:
    states = tf.cast(tf.stack(memory.states, axis=1), tf.float32)  # [B, L, M, D]
    return {"memory_states": states, "memory_valid_length": memory.valid_length}
