"""Answers of a server that no session may keep, and repeated requests over REST."""

import http.server
import json
import threading
import time

import numpy as np
import pytest
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving import PredictionError, RestTransport, ServingSession
from txl_tf.serving.rest_transport import check_outputs

_GOOD = {
    "token_ids": np.array([[7, 8]], "int32"),
    "memory_states": np.zeros([1, 2, 4, 3], "float32"),
    "texts_bytes": np.array([b"ab"], object),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_states", np.full([1, 2, 4, 3], np.nan, "float32")),
        ("memory_states", np.zeros([1, 2, 5, 3], "float32")),
        ("memory_states", np.zeros([1, 2, 4, 3], "int32")),
        ("token_ids", np.array([7, 8], "int32")),
        ("texts_bytes", np.array([3], object)),
        ("nll", np.zeros([1], "float32")),
    ],
)
def test_an_answer_that_does_not_fit_its_signature_is_refused(name, value):
    definition = meta_graph_pb2.SignatureDef()
    kinds = {"token_ids": (3, [-1, -1]), "memory_states": (1, [-1, 2, 4, 3])}
    for key, (dtype, sizes) in {**kinds, "texts_bytes": (7, [-1])}.items():
        definition.outputs[key].dtype = dtype
        for size in sizes:
            definition.outputs[key].tensor_shape.dim.add(size=size)
    check_outputs(_GOOD, definition)
    with pytest.raises(ValueError, match=name):
        check_outputs({**_GOOD, name: value}, definition)


@pytest.fixture
def strange_server():
    """A server that answers everything with the same bytes, and its settings."""
    content = {"status": 200, "body": b"", "seconds": 0.0, "requests": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            content["requests"] += 1
            time.sleep(content["seconds"])
            self.send_response(content["status"])
            self.send_header("Content-Length", str(len(content["body"])))
            self.end_headers()
            self.wfile.write(content["body"])

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server.server_address[1], content
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"metadata": 1}',
        b'{"metadata": {"signature_def": {"signature_def": {"score": 3}}}}',
        json.dumps({"metadata": {"signature_def": {"signature_def": {}}}}).encode(),
    ],
)
@pytest.mark.parametrize("status", [200, 302, 500])
def test_a_server_that_speaks_nonsense_is_an_error_of_ours(strange_server, body, status):
    port, content = strange_server
    content.update(body=body, status=status)
    transport = RestTransport(f"http://127.0.0.1:{port}", num_attempts=1, timeout_seconds=5.0)
    with pytest.raises(PredictionError) as caught:
        ServingSession(transport).score([1, 2, 3])
    assert str(port) in str(caught.value)
    transport.close()


@pytest.mark.parametrize(("status", "num_requests"), [(503, 3), (500, 1)])
def test_a_server_that_is_not_ready_is_asked_again(strange_server, status, num_requests):
    port, content = strange_server
    content.update(status=status)
    transport = RestTransport(f"http://127.0.0.1:{port}", num_attempts=3, timeout_seconds=5.0)
    with pytest.raises(PredictionError):
        transport.signatures()
    assert content["requests"] == num_requests
    transport.close()


def test_all_attempts_share_one_deadline(strange_server):
    port, content = strange_server
    content.update(status=503, seconds=0.4)
    transport = RestTransport(f"http://127.0.0.1:{port}", num_attempts=9, timeout_seconds=1.0)
    start = time.monotonic()
    with pytest.raises(PredictionError):
        transport.signatures()
    assert time.monotonic() - start < 1.5
    assert 2 <= content["requests"] <= 3
    transport.close()
