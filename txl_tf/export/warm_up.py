"""Requests that a server answers before it takes any.

The first request of a program traces, compiles and allocates. TensorFlow Serving
does that while it loads a version, with the requests in `assets.extra`.
"""

import os
import tempfile
from typing import Any

import tensorflow as tf

from txl_tf.export.prediction_log import prediction_log
from txl_tf.export.sampling import Sampling
from txl_tf.export.wire_memory import STATES, VALID_LENGTH, WireMemory
from txl_tf.file_storage import read_file

WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"
_NUM_TOKENS = 4
# Every tokenizer can take it, and a token before it is something to go on from.
_TEXT = b""


def warm_up_requests(
    memory: WireMemory, names: list[str]
) -> list[tuple[str, dict[str, tf.Tensor]]]:
    """A small request for every signature, of one row.

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
    """The requests as a file of records.

    Args:
        requests: list of tuples of signature name and inputs.

    Returns:
        The content of the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records")
        with tf.io.TFRecordWriter(path) as writer:
            for name, inputs in requests:
                writer.write(prediction_log(name, inputs))
        return read_file(path)
