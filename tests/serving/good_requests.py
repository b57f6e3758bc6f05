"""Requests that are good, as the parts that hostile ones are made of."""

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.serving.byte_model import HIDDEN_DIM, MEMORY_LENGTH, NUM_LAYERS, VOCABULARY_SIZE
from tests.serving.servers import MODEL_NAME

SIGNATURES = ("score", "next_token", "generate", "generate_text")


def good_inputs(random):
    """The name of a signature, and inputs for it as arrays."""
    signature = random.choice(SIGNATURES)
    num_rows, num_tokens = random.randint(1, 3), random.randint(1, 4)

    def numbers(low, high, *sizes):
        count = int(np.prod(sizes))
        return np.array([random.randint(low, high) for _ in range(count)], "int32").reshape(sizes)

    def ids():
        return numbers(0, VOCABULARY_SIZE - 1, num_rows, num_tokens)

    inputs = {
        "memory_states": numbers(0, 255, num_rows, NUM_LAYERS, MEMORY_LENGTH, HIDDEN_DIM),
        "memory_valid_length": numbers(0, MEMORY_LENGTH, num_rows),
    }
    inputs["memory_states"] = inputs["memory_states"].astype("float32")
    if signature == "generate_text":
        inputs["texts"] = np.array([b"abc"] * num_rows, object)
        inputs["previous_token_ids"] = np.full([num_rows], -1, "int32")
    else:
        inputs["token_ids"] = ids()
        inputs["lengths"] = np.full([num_rows], num_tokens, "int32")
    if signature == "score":
        inputs["target_ids"] = ids()
    if signature.startswith("generate"):
        inputs["max_tokens"] = np.full([num_rows], 2, "int32")
        inputs["temperature"] = np.full([num_rows], 1.0, "float32")
        inputs["top_p"] = np.full([num_rows], 1.0, "float32")
        for name in ("top_k", "seed", "stop_token_id"):
            inputs[name] = numbers(0, 9, num_rows)
    return signature, inputs


def good_body(random):
    """The values of a REST body, in rows or columns."""
    signature, inputs = good_inputs(random)
    columns = {name: _plain(array) for name, array in inputs.items()}
    if random.random() < 0.5:
        return {"signature_name": signature, "inputs": columns}
    rows = zip(*columns.values(), strict=True)
    instances = [dict(zip(columns, row, strict=True)) for row in rows]
    return {"signature_name": signature, "instances": instances}


def good_message(random):
    """A `PredictRequest`."""
    signature, inputs = good_inputs(random)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL_NAME
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    return request


def _plain(array):
    if array.dtype == object:
        return [each.decode() for each in array]
    return array.tolist()
