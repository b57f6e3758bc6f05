"""The records in which TensorFlow Serving keeps requests.

The messages are those of TensorFlow Serving's `prediction_log.proto`. Only what
a request needs is written here, so that no package of it is needed.
"""

import tensorflow as tf

# Numbers of the fields, which never change.
_PREDICTION_LOG_PREDICT_LOG = 6
_PREDICT_LOG_REQUEST = 1
_REQUEST_MODEL_SPEC, _REQUEST_INPUTS = 1, 2
_MODEL_SPEC_SIGNATURE_NAME = 3
_MAP_KEY, _MAP_VALUE = 1, 2
_LENGTH_DELIMITED = 2


def prediction_log(signature_name: str, inputs: dict[str, tf.Tensor]) -> bytes:
    """A request as a serialized `PredictionLog`.

    Args:
        signature_name: str.
        inputs: dict of name to tensor.

    Returns:
        The message.
    """
    model_spec = _field(_MODEL_SPEC_SIGNATURE_NAME, signature_name.encode())
    request = _field(_REQUEST_MODEL_SPEC, model_spec)
    for name in sorted(inputs):
        tensor = tf.make_tensor_proto(inputs[name]).SerializeToString()
        entry = _field(_MAP_KEY, name.encode()) + _field(_MAP_VALUE, tensor)
        request += _field(_REQUEST_INPUTS, entry)
    return _field(_PREDICTION_LOG_PREDICT_LOG, _field(_PREDICT_LOG_REQUEST, request))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
