"""The records of warm-up requests, read back by the published message definitions."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import tensor_pb2

from txl_tf.export.prediction_log import prediction_log

Field = descriptor_pb2.FieldDescriptorProto


def message(file, name, fields, *, map_value=None):
    """Adds a message with fields `(name, number, type)`; a type is a kind or a message's name."""
    added = file.message_type.add(name=name)
    for field, number, kind in fields:
        is_message = isinstance(kind, str)
        added.field.add(
            name=field,
            number=number,
            label=Field.LABEL_REPEATED if field == "inputs" else Field.LABEL_OPTIONAL,
            type=Field.TYPE_MESSAGE if is_message else kind,
            type_name=kind if is_message else None,
        )
    if map_value is not None:
        entry = added.nested_type.add(name="InputsEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=Field.TYPE_STRING)
        entry.field.add(name="value", number=2, label=1, type=11, type_name=map_value)


@pytest.fixture(scope="module")
def log_class():
    """`PredictionLog` of tensorflow_serving/apis, as far as requests need it."""
    pool = descriptor_pool.DescriptorPool()
    for name in ("tensor_shape", "types", "resource_handle", "tensor"):
        source = f"tensorflow/core/framework/{name}.proto"
        found = tensor_pb2.DESCRIPTOR.pool.FindFileByName(source)
        copied = descriptor_pb2.FileDescriptorProto()
        found.CopyToProto(copied)
        pool.Add(copied)
    file = descriptor_pb2.FileDescriptorProto(
        name="prediction_log.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=["tensorflow/core/framework/tensor.proto"],
    )
    here = ".tensorflow.serving"
    message(
        file,
        "ModelSpec",
        [("name", 1, Field.TYPE_STRING), ("signature_name", 3, Field.TYPE_STRING)],
    )
    message(
        file,
        "PredictRequest",
        [
            ("model_spec", 1, f"{here}.ModelSpec"),
            ("inputs", 2, f"{here}.PredictRequest.InputsEntry"),
        ],
        map_value=".tensorflow.TensorProto",
    )
    message(file, "PredictLog", [("request", 1, f"{here}.PredictRequest")])
    message(file, "PredictionLog", [("predict_log", 6, f"{here}.PredictLog")])
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.serving.PredictionLog")
    )


def test_a_record_is_the_request_that_was_given(log_class):
    inputs = {
        "token_ids": tf.constant(np.arange(300, dtype="int32")[None]),
        "texts": tf.constant([b"\xff\0", b""]),
        "memory_states": tf.zeros([1, 0, 0, 0]),
    }
    log = log_class.FromString(prediction_log("score", inputs))
    request = log.predict_log.request
    assert request.model_spec.signature_name == "score"
    assert set(request.inputs) == set(inputs)
    for name, tensor in inputs.items():
        read = tf.make_ndarray(
            tensor_pb2.TensorProto.FromString(request.inputs[name].SerializeToString())
        )
        assert read.shape == tensor.shape
        np.testing.assert_array_equal(read, tensor.numpy())
    # Nothing is in it that the definitions do not know.
    assert len(log.SerializeToString()) == len(prediction_log("score", inputs))
