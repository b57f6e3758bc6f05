"""Requests that once broke a server, or might: refused by its own words, and nothing else."""

import json
import random

import grpc
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2

from tests.measurements import measure_hostile_requests
from tests.serving.byte_model import write_version
from tests.serving.good_requests import good_message
from tests.serving.hostile_requests import good_rest, hostile_grpc, hostile_rest
from tests.serving.raw_client import (
    GRPC_REFUSALS,
    HTTP_REFUSALS,
    answers_in,
    ask_grpc,
    ask_rest,
    exchange,
)
from tests.serving.servers import MODEL_NAME, running_server

_PROPERTY = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
_LINE = b"POST /v1/models/bytes:predict HTTP/1.1\r\nHost: a\r\n"
_SMUGGLED = b"GET /v1/models/bytes HTTP/1.1\r\nHost: a\r\n\r\n"
_COLUMNS = {
    "token_ids": [[1]],
    "target_ids": [[1]],
    "lengths": [1],
    "memory_states": np.zeros([1, 2, 4, 3]).tolist(),
    "memory_valid_length": [0],
}


@pytest.fixture(scope="module")
def loopback(versions):
    with running_server("loopback", versions) as server:
        yield server


@pytest.fixture(scope="module")
def channel(loopback):
    with grpc.insecure_channel(f"127.0.0.1:{loopback.grpc_port}") as channel:
        yield channel


def _post(server, content):
    head = _LINE + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(content)
    return ask_rest(server.rest_port, head + content)


@_PROPERTY
@given(st.randoms(use_true_random=False))
def test_whatever_is_done_to_a_rest_request_is_its_own_fault(loopback, draw):
    content = hostile_rest(draw)
    status, answer = ask_rest(loopback.rest_port, content)
    assert status in {200, *HTTP_REFUSALS} or b"\r\n\r\n" not in content
    assert status in (200, None) or answer is None or list(answer) == ["error"]


@_PROPERTY
@given(st.randoms(use_true_random=False))
def test_whatever_is_done_to_a_message_is_its_own_fault(loopback, channel, draw):
    code, words = ask_grpc(channel, hostile_grpc(draw))
    assert code == grpc.StatusCode.OK or (code in GRPC_REFUSALS and words)


def test_good_requests_are_answered_among_hostile_ones(loopback):
    expected = measure_hostile_requests.expected_answers(loopback)
    clients = measure_hostile_requests.send(loopback, expected, range(200))
    assert [wrong for client in clients for wrong in client.wrong] == []
    assert sum(client.counts["good"] for client in clients) == 20
    slowest, _ = max(client.slowest for client in clients)
    assert slowest < measure_hostile_requests.MAX_SECONDS


@pytest.mark.slow
def test_thousands_of_hostile_requests_leave_a_server_as_it_was(tmp_path):
    write_version(tmp_path, 1)
    with measure_hostile_requests.serving_process(tmp_path) as (process, server):
        assert measure_hostile_requests.measure(process, server, 100_000, 4000) == []
    assert process.returncode == 0


@pytest.mark.parametrize("depth", [3, 9, 33, 64, 65, 1000, 100_000])
@pytest.mark.parametrize("inside", ["", "1"])
def test_lists_in_lists_end_at_a_stated_depth(loopback, depth, inside):
    nested = "[" * depth + inside + "]" * depth
    body = json.dumps({"signature_name": "score", "inputs": _COLUMNS})
    status, answer = _post(loopback, body.replace("[[1]]", nested, 1).encode())
    assert status == 400
    assert answer["error"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("token_ids", value) for value in ("[[NaN]]", "[[1.0]]", "[[true]]", '[["1"]]', "[]")],
        *[("token_ids", value) for value in ("[[256]]", "[[-1]]", "[[2147483648]]", "[[1e999]]")],
        *[("token_ids", value) for value in ("[[1], [2, 3]]", "[1]", "1", "null", "{}", "[[{}]]")],
        ("token_ids", "[[" + "9" * 5000 + "]]"),
        ("token_ids", '[["\\ud800"]]'),
        ("lengths", '[1], "lengths": [1]'),
        ("lengths", '[1], "more": [1]'),
        ("lengths", "[1, 1]"),
        ("memory_valid_length", "[-1000000000]"),
        ("memory_states", "[[[[Infinity]]]]"),
        ("memory_states", "[]"),
    ],
)
def test_values_that_cannot_be_are_bad_requests(loopback, name, value):
    columns = ", ".join(
        f'"{key}": {value if key == name else json.dumps(each)}' for key, each in _COLUMNS.items()
    )
    status, answer = _post(loopback, f'{{"inputs": {{{columns}}}}}'.encode())
    if (name, value) == ("memory_valid_length", "[-1000000000]"):
        assert status == 200  # the tiny model takes any number
        return
    assert status == 400
    assert list(answer) == ["error"]


_TAKES = (
    "The signature `{}` takes lengths int32 [any], memory_states float [any, 2, 4, 3], "
    "memory_valid_length int32 [any], target_ids int32 [any, any], token_ids int32 [any, any]."
)


@pytest.mark.parametrize("signature", ["score", "serving_default"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": [[1]]}, "unexpected ['ids']"),
        ({"token_ids": [["a"]]}, "token_ids has values that are not of type int32."),
        ({"token_ids": [1]}, "token_ids has the shape [1]; it must be [any, any]."),
        ({"lengths": [1, 1]}, "lengths has 2 rows"),
    ],
)
def test_a_wrong_request_is_answered_with_the_inputs(loopback, channel, signature, changes, words):
    named = {} if signature == "serving_default" else {"signature_name": signature}
    body = json.dumps({**named, "inputs": {**_COLUMNS, **changes}}).encode()
    status, answer = _post(loopback, body)
    assert status == 400
    assert words in answer["error"] and answer["error"].endswith(_TAKES.format(signature))
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL_NAME
    request.model_spec.signature_name = named.get("signature_name", "")
    request.inputs["token_ids"].CopyFrom(tf.make_tensor_proto([[1.0]]))
    code, told = ask_grpc(channel, request.SerializeToString())
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "missing ['lengths'" in told and told.endswith(_TAKES.format(signature))


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Content-Length: 2\r\nContent-Length: 2",
        b"Content-Length: 2\r\nContent-Length: 3",
        *(b"Content-Length: " + text for text in (b"", b"+2", b"-2", b"2, 2", b"0x2", b"2" * 400)),
        b"Content-Length : 2",
        b"Content-Length: 2\r\n folded: 1",
        b"Content-Length: 2\r\nno colon",
        b"Content-Length: 2\r\nContent_Length: 9",
        b"Content-Length: 2\nTransfer-Encoding: chunked",
        b"Content-Length: 2\r\nA: b\rTransfer-Encoding: chunked",
        b"Content-Length: 2\r\nContent-Encoding: gzip",
    ],
)
@pytest.mark.parametrize("change", [(b"", b""), (b"1.1", b"1.0"), (b"POST", b"GET")])
def test_a_body_of_unclear_length_ends_the_connection(loopback, headers, change):
    content = (_LINE + headers).replace(*change) + b"\r\n\r\n{}" + _SMUGGLED
    [(status, body)] = answers_in(exchange(loopback.rest_port, content))
    assert status == 400
    assert list(json.loads(body)) == ["error"]


def test_a_post_without_a_length_ends_the_connection(loopback):
    [(status, _)] = answers_in(exchange(loopback.rest_port, _LINE + b"\r\n{}" + _SMUGGLED))
    assert status == 400


def test_a_client_that_sends_no_more_is_answered(loopback):
    content = good_rest(random.Random(0)).replace(b"Connection: close", b"A: b")
    [(status, _)] = answers_in(exchange(loopback.rest_port, content))
    assert status == 200
    [(status, body)] = answers_in(exchange(loopback.rest_port, content[:-1]))
    assert status == 400
    assert b"Content-Length" in body


def _tensor(change):
    request = good_message(random.Random(4))
    change(request.inputs["token_ids"])
    return request.SerializeToString()


def _of_sizes(*sizes, **fields):
    def change(tensor):
        tensor.CopyFrom(tf.make_tensor_proto(1, tf.int32))
        for size in sizes:
            tensor.tensor_shape.dim.add(size=size)
        for name, value in fields.items():
            setattr(tensor, name, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _of_sizes(40_000, 40_000),
        _of_sizes(1 << 31, 1 << 31),
        _of_sizes(1 << 62, 1 << 62),
        _of_sizes((1 << 63) - 1, 0),
        _of_sizes(-1, 1),
        _of_sizes(*[1] * 300),
        _of_sizes(),
        _of_sizes(1, 1, version_number=1),
        _of_sizes(1, 1, dtype=20),
        _of_sizes(1, 1, dtype=9999),
        _of_sizes(1, 1, tensor_content=b"1234"),
        lambda tensor: setattr(tensor.tensor_shape, "unknown_rank", True),
        lambda tensor: setattr(tensor, "tensor_content", b"123"),
        lambda tensor: tensor.half_val.append(1),
        lambda tensor: tensor.variant_val.add(),
        lambda tensor: tensor.resource_handle_val.add(),
        lambda tensor: tensor.Clear(),
        lambda tensor: tensor.CopyFrom(tf.make_tensor_proto([[b"a"]])),
        lambda tensor: tensor.CopyFrom(tf.make_tensor_proto([[1.0]])),
    ],
)
def test_messages_of_tensors_that_cannot_be_are_refused(channel, change):
    content = _tensor(change)
    code, words = ask_grpc(channel, content)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "token_ids" in words


def _memory_shape(request):
    return [axis.size for axis in request.inputs["memory_states"].tensor_shape.dim]


def test_a_short_list_of_values_stands_for_the_rest(channel):
    request = good_message(random.Random(4))
    request.inputs["memory_states"].CopyFrom(
        tf.make_tensor_proto(0.0, shape=_memory_shape(request), allow_broadcast=True)
    )
    assert len(request.inputs["memory_states"].float_val) == 1
    code, content = ask_grpc(channel, request.SerializeToString())
    assert code == grpc.StatusCode.OK
    full = np.zeros(_memory_shape(request), "float32")
    request.inputs["memory_states"].CopyFrom(tf.make_tensor_proto(full))
    _, again = ask_grpc(channel, request.SerializeToString())
    found = [predict_pb2.PredictResponse.FromString(each) for each in (content, again)]
    assert found[0] == found[1]


@pytest.mark.parametrize("content", [b"\xff" * 50, b"\x0b" * 500, b""])
def test_bytes_that_are_no_message_are_refused(channel, content):
    code, _ = ask_grpc(channel, content)
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
