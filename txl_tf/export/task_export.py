"""Export of a fine-tuned model: a SavedModel whose signature `classify` takes text.

Shape letters used in this module: B rows, D hidden width, C classes.
"""

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from txl_tf.config.task import SERVED_KINDS, TaskConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.export import guards
from txl_tf.export.saved_model import description, export_files, weights_card
from txl_tf.export.served_model import ExportOptions, ServedModel, traced_once
from txl_tf.export.served_weights import ServedWeights
from txl_tf.export.text_signatures import GraphTexts, not_empty
from txl_tf.export.token_signatures import WireMemory, signature
from txl_tf.export.version_folder import write_version
from txl_tf.models.headed import TransformerXLWithHead

if TYPE_CHECKING:
    from collections.abc import Callable


class TaskSignatures:
    """The signature `classify`, which checks requests and answers them.

    `head` holds the weights of the head in their order, the kind of `task` is in `SERVED_KINDS`.
    """

    def __init__(
        self,
        served: ServedModel,
        head: ServedWeights,
        task: TaskConfig,
        texts: GraphTexts,
    ) -> None:
        self._served = served
        self._head = head
        self._task = task
        self._texts = texts
        strings = tf.TensorSpec(None, tf.string)
        self._checked = traced_once(self._checked_texts, [strings, strings])

    def functions(self) -> "dict[str, Callable[..., Any]]":
        """Returns a `tf.function` by name."""
        texts = tf.TensorSpec(None, tf.string, "texts")
        second = tf.TensorSpec(None, tf.string, "second_texts")
        specs = [texts, second] if self._task.takes_two_texts else [texts]
        return {"classify": signature(self.classify, specs)}

    def classify(self, texts, second_texts=""):
        """Classifies texts `(B,)`, or pairs of texts; a choice pairs the context with an option.

        A scalar second text stands for all rows. Returns `labels`, string `(B,)`, and
        `probabilities` `(B, C)` in the order of the card's `labels`; for a regression or a
        choice, `values` `(B,)`.
        """
        ids = self._checked(texts, tf.convert_to_tensor(second_texts))
        lengths = ids.row_lengths()
        pooled = self._served.pool(ids.to_tensor(), lengths, self._task.pooling)  # [B, D]
        kernel, *biases = self._head.values()
        outputs = tf.matmul(pooled, kernel)  # [B, C]
        for bias in biases:  # a choice has none
            outputs += bias
        if self._task.labels is None:
            return {"values": guards.finite(outputs[:, 0], "values")}
        probabilities = guards.finite(tf.nn.softmax(outputs), "probabilities")
        labels = tf.gather(tf.constant(self._task.labels), tf.argmax(outputs, axis=1))
        return {"labels": labels, "probabilities": probabilities}

    def _checked_texts(self, texts, second_texts):
        """Checks texts, joins pairs as in training, and returns an int32 ragged tensor of ids."""
        texts = self._texts.checked(texts, "texts")
        second = guards.row_vector(second_texts, "second_texts", tf.shape(texts)[0])
        second = self._texts.checked(second, "second_texts")
        separator = tf.constant(self._task.separator)
        # No separator after an empty text.
        parts = [
            tf.where(tf.equal(each, ""), "", tf.strings.join([each, separator]))
            for each in (texts, second)
        ]
        rows = self._texts.ids_of(tf.strings.join(parts))
        if self._task.max_tokens is not None:
            rows = rows[:, : self._task.max_tokens]
        return not_empty(rows, none="no tokens.")


def export_task(
    model: TransformerXLWithHead,
    task: TaskConfig,
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    model_card: dict[str, Any],
    *,
    options: ExportOptions | None = None,
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
        model_card: dict of JSON values.
        options: optional `ExportOptions`; only the limit of a text and the storage of the weights
            are used.

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
    root = tf.Module()
    root.weights = ServedWeights(language_model.weights, options.weights)
    root.head = ServedWeights(model.head.weights, "float32")
    texts = GraphTexts(tokenizer, options, language_model.config.vocabulary_size)
    root.tokenizer = texts.tokenizer
    served = ServedModel(language_model, root.weights, 1)
    signatures = TaskSignatures(served, root.head, task, texts).functions()
    memory = WireMemory(language_model.config, tf.float32)
    stored = weights_card(language_model, root.weights, served, options, None)
    serving = {
        "signatures": list(signatures),
        "tensorflow": tf.version.VERSION,
        "weights": {**stored, "num_bytes": stored["num_bytes"] + root.head.num_bytes},
        "limits": {"max_text_bytes": options.max_text_bytes},
    }
    card = {**model_card, "task": task.to_dict(), "serving": serving}
    json.dumps(card)  # fails before anything is written
    described = description(language_model, card, tokenizer, options, task)
    write_version(
        os.fspath(folder),
        root,
        signatures,
        {"texts": [-1], **({"second_texts": [-1]} if task.takes_two_texts else {})},
        export_files(card, described, memory, list(signatures), tokenizer),
        {"second_texts": np.asarray(b"")} if task.takes_two_texts else {},
    )
    return folder
