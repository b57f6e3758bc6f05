"""A small stand-in of TensorFlow Serving: PREDICT and metadata of one SavedModel."""

import base64
import contextlib
import http.server
import json
import os
import threading
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from txl_tf.serving import GrpcTransport, RestTransport

MODEL_NAME = "txl"


class ServedModel(prediction_service_pb2_grpc.PredictionServiceServicer):
    """A loaded SavedModel, asked with arrays or by gRPC."""

    def __init__(self, folder):
        with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
            graph = saved_model_pb2.SavedModel.FromString(file.read())
        self.signatures = dict(graph.meta_graphs[0].signature_def)
        self.signatures.pop("__saved_model_init_op", None)
        self._loaded = tf.saved_model.load(str(folder))

    def predict(self, signature_name, inputs):
        name = signature_name or "serving_default"
        definition = self.signatures[name]
        defaults = {key: tf.make_ndarray(value) for key, value in definition.defaults.items()}
        tensors = {
            key: tf.constant(value, tf.as_dtype(definition.inputs[key].dtype))
            for key, value in {**defaults, **inputs}.items()
        }
        answer = self._loaded.signatures[name](**tensors)
        return {key: value.numpy() for key, value in answer.items()}

    def Predict(self, request, context):  # noqa: N802
        inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        try:
            answer = self.predict(request.model_spec.signature_name, inputs)
        except tf.errors.InvalidArgumentError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        for key, value in answer.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    def GetModelMetadata(self, request, context):  # noqa: N802
        definitions = get_model_metadata_pb2.SignatureDefMap(signature_def=self.signatures)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.metadata["signature_def"].Pack(definitions)
        return response


def _handler(model):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            definitions = {
                name: json_format.MessageToDict(each) for name, each in model.signatures.items()
            }
            self.answer(200, {"metadata": {"signature_def": {"signature_def": definitions}}})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = body.get("signature_name", "")
            inputs = body.get("inputs", body.get("instances"))
            if not isinstance(inputs, dict):
                (only,) = set(model.signatures[name or "serving_default"].inputs)
                inputs = {only: inputs}
            try:
                outputs = model.predict(name, {key: _array(each) for key, each in inputs.items()})
            except tf.errors.InvalidArgumentError as error:
                return self.answer(400, {"error": error.message})
            outputs = {key: _json(key, each.tolist()) for key, each in outputs.items()}
            outputs = outputs if len(outputs) > 1 else next(iter(outputs.values()))
            return self.answer(200, {"outputs" if "inputs" in body else "predictions": outputs})

        def answer(self, status, value):
            content = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    return Handler


def _array(value):
    flat = np.array(value, object)
    if flat.dtype == object and any(isinstance(each, dict) for each in flat.ravel()):
        decoded = [base64.b64decode(each["b64"]) for each in flat.ravel()]
        return np.array([*decoded, None], object)[:-1].reshape(flat.shape)
    return np.array(value)


def _json(name, value):
    if isinstance(value, list):
        return [_json(name, each) for each in value]
    if isinstance(value, bytes):
        is_binary = name.endswith("_bytes")
        return {"b64": base64.b64encode(value).decode()} if is_binary else value.decode()
    return value


@contextlib.contextmanager
def serving(folder):
    """Serves a SavedModel; yields its two transports by name, and the port of REST."""
    model = ServedModel(folder)
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(model, server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(model)) as rest:
        thread = threading.Thread(target=rest.serve_forever, args=[0.01])
        thread.start()
        address = f"http://127.0.0.1:{rest.server_port}"
        transports = {
            "rest": RestTransport(address, MODEL_NAME),
            "grpc": GrpcTransport(f"127.0.0.1:{grpc_port}", MODEL_NAME),
        }
        try:
            yield transports, address
        finally:
            for transport in transports.values():
                transport.close()
            rest.shutdown()
            thread.join()
            server.stop(0).wait()
