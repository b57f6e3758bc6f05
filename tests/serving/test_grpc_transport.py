"""Repeated requests over gRPC: which, how often, and one deadline over all of them."""

import contextlib
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import get_model_metadata_pb2

from txl_tf.serving import GrpcTransport, PredictionError

_SIGNATURES = get_model_metadata_pb2.SignatureDefMap()
_SIGNATURES.signature_def["score"].inputs["x"].dtype = 1


@contextlib.contextmanager
def _server(codes, seconds=0.0):
    """Server that fails with the codes, one a request, and then answers; yields port and sizes."""
    left, sizes = list(codes), []

    def answer(content, context):
        sizes.append(len(content))
        time.sleep(seconds)
        if left:
            context.abort(left.pop(0), "not now")
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.metadata["signature_def"].Pack(_SIGNATURES)
        return response.SerializeToString()

    handler = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "tensorflow.serving.PredictionService",
                {"Predict": handler, "GetModelMetadata": handler},
            )
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, sizes
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def _transport(port, **settings):
    transport = GrpcTransport(f"127.0.0.1:{port}", **settings)
    try:
        yield transport
    finally:
        transport.close()


@pytest.mark.parametrize("num_attempts", [1, 3])
def test_a_server_that_is_not_ready_is_asked_again(num_attempts):
    codes = [grpc.StatusCode.UNAVAILABLE] * 2
    with _server(codes) as (port, sizes), _transport(port, num_attempts=num_attempts) as transport:
        if num_attempts == 1:
            with pytest.raises(PredictionError, match="not now") as caught:
                transport.signatures()
            assert caught.value.code == "UNAVAILABLE"
        else:
            assert list(transport.signatures()) == ["score"]
        assert len(sizes) == num_attempts


def test_a_large_message_is_sent_again():
    codes = [grpc.StatusCode.UNAVAILABLE] * 2 + [grpc.StatusCode.NOT_FOUND]
    with _server(codes) as (port, sizes), _transport(port) as transport:
        with pytest.raises(PredictionError) as caught:
            transport.predict("score", {"x": np.zeros([1 << 18], np.float32)})
        assert caught.value.code == "NOT_FOUND"
        assert len(sizes) == 3 and min(sizes) > 1 << 20


def test_all_attempts_share_one_deadline():
    codes = [grpc.StatusCode.UNAVAILABLE] * 9
    with (
        _server(codes, seconds=0.4) as (port, sizes),
        _transport(port, num_attempts=5, timeout_seconds=1.0) as transport,
    ):
        start = time.monotonic()
        with pytest.raises(PredictionError) as caught:
            transport.signatures()
        assert time.monotonic() - start < 1.5
        assert caught.value.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        assert 2 <= len(sizes) <= 3
