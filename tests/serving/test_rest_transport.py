"""What a session says to answers that cannot be."""

import http.server
import json
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving import PredictionError, RestTransport, ServingSession
from txl_tf.serving.errors import StatusCode

_GOOD = {
    "token_ids": np.array([[7, 8]], "int32"),
    "nll": np.array([[1.0, 2.0]], "float32"),
    "lengths": np.array([2], "int32"),
    "memory_states": np.zeros([1, 2, 4, 3], "float32"),
    "memory_valid_length": np.array([3], "int32"),
}


class _Transport:
    """Answers whatever it was given."""

    def __init__(self, answer):
        self.answer = answer

    def predict(self, signature_name, inputs):
        return self.answer

    def signatures(self):
        definition = meta_graph_pb2.SignatureDef()
        for size in (-1, 2, 4, 3):
            definition.inputs["memory_states"].tensor_shape.dim.add(size=size)
        definition.inputs["memory_states"].dtype = 1
        return {"generate": definition}


def test_a_good_answer_is_kept():
    session = ServingSession(_Transport(_GOOD))
    token_ids, nll = session.generate(2, [1])
    assert (token_ids.tolist(), nll.tolist()) == ([7, 8], [1.0, 2.0])
    assert session.state.last_token_id == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_states", np.full([1, 2, 4, 3], np.nan, "float32")),
        ("memory_states", np.zeros([1, 2, 5, 3], "float32")),
        ("memory_states", np.zeros([2, 2, 4, 3], "float32")),
        ("memory_states", np.zeros([1, 2, 4, 3], "int32")),
        ("memory_valid_length", np.array([5], "int32")),
        ("memory_valid_length", np.array([-1], "int32")),
        ("memory_valid_length", np.array(1, "int32")),
        ("lengths", np.array([3], "int32")),
        ("lengths", np.array([2.0], "float32")),
        ("token_ids", np.array([[-7, 8]], "int32")),
        ("token_ids", np.array([7, 8], "int32")),
        ("nll", np.array([[np.inf, 1.0]], "float32")),
        ("nll", np.array([[-1.0, 1.0]], "float32")),
        ("nll", None),
    ],
)
def test_an_answer_that_cannot_be_changes_nothing(name, value):
    answer = {key: each for key, each in {**_GOOD, name: value}.items() if each is not None}
    session = ServingSession(_Transport(answer))
    before = session.state
    with pytest.raises(PredictionError, match=name) as caught:
        session.generate(2, [1])
    assert caught.value.code == StatusCode.INTERNAL
    assert session.state is before


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    name=st.sampled_from(sorted(_GOOD)),
    value=arrays.arrays(
        st.sampled_from(["float32", "int32", "bool", "complex64"]),
        arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
    ),
)
def test_whatever_comes_back_is_kept_whole_or_not_at_all(name, value):
    session = ServingSession(_Transport({**_GOOD, name: value}))
    before = session.state
    try:
        session.generate(2, [1])
    except PredictionError:
        assert session.state is before
    else:
        assert np.all(np.isfinite(session.state.memory_states))
        assert session.state.memory_states.shape == (1, 2, 4, 3)
        assert 0 <= session.state.memory_valid_length[0] <= 4
        assert session.state.last_token_id >= 0


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
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"metadata": 1}',
        b'{"metadata": {"signature_def": {"signature_def": []}}}',
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
