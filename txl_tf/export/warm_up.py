"""Warm-up requests of an export: one small request per signature, in a server's format.

The first request of a program traces, compiles and allocates. TensorFlow Serving does this
while it loads a version, with the requests in `assets.extra`. Their messages come from
`tensorflow-serving-api`, in the extra `serving`. It requires the package `tensorflow`,
which is wrong for a TPU VM; an export without the extra only lacks these requests.
"""

import contextlib
import itertools
import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.export.sampling import Sampling
from txl_tf.export.token_signatures import STATES, VALID_LENGTH, WireMemory
from txl_tf.storage.files import read_file

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer

_NUM_TOKENS = 4
PROMPT = "Once upon a time"
"""A text that most tokenizers can read."""
_SAMPLE_TOKENS = 8
# Places of the vocabulary that are tried for tokens that are a text.
_MOST_SAMPLES = 64


def example_prompt(tokenizer: "Tokenizer") -> str:
    """Returns a text that a tokenizer can encode, of two tokens or more if possible."""
    samples = (
        tokenizer.decode_text(np.arange(start, stop))
        for start in range(min(_MOST_SAMPLES, tokenizer.vocabulary_size))
        for stop in [min(start + _SAMPLE_TOKENS, tokenizer.vocabulary_size)]
    )
    for text in itertools.chain([PROMPT], samples):
        with contextlib.suppress(InvalidTextError):
            if len(tokenizer.encode_piece(text.encode(), True, False)) > 1:
                return text
    return PROMPT


def warm_up_requests(
    memory: WireMemory, names: list[str], prompt: str = PROMPT
) -> list[tuple[str, dict[str, tf.Tensor]]]:
    """Returns a request of one row for every signature, the default first.

    `prompt` must have two tokens or more.
    """
    ids = tf.zeros([1, _NUM_TOKENS], tf.int32)
    rows: dict[str, tf.Tensor] = {"token_ids": ids, "lengths": tf.constant([_NUM_TOKENS])}
    state = {
        STATES: tf.zeros([1, 0, 0, 0], memory.dtype),  # the short form of nothing read yet
        VALID_LENGTH: tf.constant([0]),
    }
    text = {"texts": tf.constant([prompt.encode()])}
    text_state = {**state, "previous_token_ids": tf.constant([0])}
    sampling = Sampling(
        max_tokens=tf.constant([_NUM_TOKENS]),
        temperature=tf.constant([1.0]),
        top_k=tf.constant([2]),
        top_p=tf.constant([0.9]),
        seed=tf.constant([0]),
        stop_token_id=tf.constant([-1]),
    )._asdict()
    requests: dict[str, dict[str, Any]] = {
        "complete": text,
        "complete_ids": {"token_ids": ids},
        "perplexity": text,
        "classify": {**text, "second_texts": tf.constant([b""])},
        "score": {**rows, "target_ids": ids, **state},
        "next_token": {**rows, **state},
        "generate": {**rows, **sampling, **state},
        "tokenize": text,
        "detokenize": rows,
        "score_text": {**text, **text_state},
        "next_token_text": {**text, **text_state},
        "generate_text": {**text, **sampling, **text_state},
    }
    # A server knows the default signature by another name, and warms up each name.
    return [("serving_default", requests[names[0]]), *((name, requests[name]) for name in names)]


def warm_up_file(requests: list[tuple[str, dict[str, tf.Tensor]]]) -> bytes:
    """Returns a TFRecord file with each request as a `PredictionLog`; needs the extra `serving`."""
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
                # Otherwise the order of a map differs in every process.
                writer.write(log.SerializeToString(deterministic=True))
        return read_file(path)
