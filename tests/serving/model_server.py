"""A small stand-in of TensorFlow Serving: PREDICT of one SavedModel."""

import contextlib
import http.server
import json
import os
import threading
from concurrent import futures

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


class ServedModel(prediction_service_pb2_grpc.PredictionServiceServicer):
    """A loaded SavedModel, asked with arrays or by gRPC; `failures` are codes to fail with."""

    def __init__(self, folder, loaded=None):
        with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
            graph = saved_model_pb2.SavedModel.FromString(file.read())
        self.signatures = dict(graph.meta_graphs[0].signature_def)
        self.signatures.pop("__saved_model_init_op", None)
        self._loaded = loaded or tf.saved_model.load(str(folder))
        self.failures = []
        self.num_requests = 0

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
        self.num_requests += 1
        if self.failures:
            context.abort(self.failures.pop(0), "not now")
        inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        response = predict_pb2.PredictResponse()
        try:
            answer = self.predict(request.model_spec.signature_name, inputs)
        except tf.errors.InvalidArgumentError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.message)
        for key, value in answer.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response


def _handler(model):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            model.num_requests += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = body.get("signature_name", "")
            inputs = body.get("inputs", body.get("instances"))
            if not isinstance(inputs, dict):
                (only,) = set(model.signatures[name or "serving_default"].inputs)
                inputs = {only: inputs}
            missing = model.signatures[name or "serving_default"].inputs.keys() - inputs.keys()
            if missing:  # defaults are for gRPC alone
                return self.answer(400, {"error": f"Missing named input: {missing}"})
            if model.failures:
                return self.answer(503, {"error": model.failures.pop(0)})
            try:
                outputs = model.predict(name, {key: np.array(each) for key, each in inputs.items()})
            except tf.errors.InvalidArgumentError as error:
                return self.answer(400, {"error": error.message})
            outputs = {key: each.tolist() for key, each in outputs.items()}
            outputs = outputs if len(outputs) > 1 else next(iter(outputs.values()))
            return self.answer(200, {"outputs" if "inputs" in body else "predictions": outputs})

        def answer(self, status, value):
            content = json.dumps(value, default=lambda each: each.decode(errors="replace"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content.encode())))
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *arguments):
            pass

    return Handler


@contextlib.contextmanager
def serving(model):
    """Serves a `ServedModel`; yields the addresses of REST and gRPC."""
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(model, server)
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(model)) as rest:
        thread = threading.Thread(target=rest.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{rest.server_port}", f"127.0.0.1:{grpc_port}"
        finally:
            rest.shutdown()
            thread.join()
            server.stop(0).wait()
