"""Sessions on TensorFlow Serving over both transports, and servers that fail or talk nonsense."""

import json
import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
import keras
import numpy as np
import pytest

import txl_tf
from tests.serving.model_server import ServedModel, serving
from tests.small_models import toy_experiment
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.serving import (
    GrpcTransport,
    PredictionError,
    RestTransport,
    ServingSession,
)
from txl_tf.storage.untrusted_files import MAX_DEPTH

CONFIG = toy_experiment(model={"num_layers": 2, "vocabulary_size": 256}).model
IDS = list(b"Two roads diverged in a yellow wood")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    keras.utils.set_random_seed(1234)
    folder = tmp_path_factory.mktemp("export") / "1"
    model = txl_tf.TransformerXL(CONFIG)
    txl_tf.export_saved_model(model, folder, tokenizer=ByteTokenizer())
    stub = ServedModel(folder)
    with serving(stub) as addresses:
        yield model, stub, addresses


def answers(transport):
    """Results of a session that reads, scores and writes in turns; its memory last."""
    session = ServingSession(transport)
    start = session.score(IDS[:9])
    output, nats = session.generate(6, IDS[9:], temperature=0.0)
    before = session.state
    with pytest.raises(PredictionError, match=r"token_ids\[0, 1\] is 256") as error:
        session.score([256, 1])
    assert error.value.code == "INVALID_ARGUMENT" and session.state is before
    other = ServingSession(transport, state=before)
    result = [each.score([*output, *IDS]) for each in (session, other)]
    np.testing.assert_array_equal(*result)
    return start, output, nats, result[0], session.state.memory_states


@pytest.mark.slow
def test_sessions_score_and_write_as_the_model_does(served):
    model, _, (rest, address) = served
    transport = GrpcTransport(address)
    result = answers(transport)
    lm = txl_tf.TransformerXLCausalLM(model, ByteTokenizer())
    text = bytes(IDS).decode()
    nats = lm.score(text).nats[1:9]
    np.testing.assert_allclose(result[0], [0.0, *nats], atol=1e-4)
    for left, right in zip(result, answers(RestTransport(rest)), strict=True):
        np.testing.assert_array_equal(left, right)
    expected = lm.generate(text, max_tokens=6, temperature=0, strip_prompt=True)
    assert ByteTokenizer().decode_text(result[1]) == expected
    body = json.dumps({"instances": ["one text"]}).encode()
    with urllib.request.urlopen(f"{rest}/v1/models/txl:predict", body, timeout=60) as response:
        assert len(json.load(response)["predictions"]) == 1
    transport.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_a_server_that_is_not_ready_is_asked_again(served, kind):
    _, stub, (rest, address) = served
    codes = {"rest": "not now", "grpc": grpc.StatusCode.UNAVAILABLE}
    for failures in (3, 4):
        transport = RestTransport(rest) if kind == "rest" else GrpcTransport(address)
        stub.failures, stub.num_requests = [codes[kind]] * failures, 0
        session = ServingSession(transport)
        if failures < 4:
            assert len(session.score(IDS)) == len(IDS)
        else:
            with pytest.raises(PredictionError, match="not now") as error:
                session.score(IDS)
            assert error.value.code == "UNAVAILABLE"
        assert stub.num_requests == 4
        transport.close()


DEEP = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b""), (200, b"\xff"), (200, b"[]"), (200, DEEP), (302, b"{}"), (500, b"3")]
    + [(200, b'{"outputs": %s}' % each) for each in (b"3", b'{"nll": [[1], 2]}', b'{"a": "b"}')],
)
def test_a_server_that_talks_nonsense_is_named(status, body):
    def serve(server):
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        threads.submit(serve, server)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        transport = RestTransport(address, timeout_seconds=5.0)
        with pytest.raises(PredictionError, match=address):
            ServingSession(transport).score([1, 2, 3])
        transport.close()
