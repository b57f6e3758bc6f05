"""The client and the server, over real connections."""

import concurrent.futures
import json
import shutil
import threading

import ml_dtypes
import numpy as np
import pytest
import urllib3

from tests.serving.byte_model import write_version
from tests.serving.interleavings import texts_alone, texts_interleaved
from tests.serving.servers import MODEL_NAME, TRANSPORTS, running_server
from tests.slow_case import slow_case
from txl_tf.serving import PredictionError, SamplingSettings, ServingSession
from txl_tf.serving.errors import StatusCode

GREEDY = SamplingSettings(temperature=0.0)
IDS = [5, 255, 0, 77, 8, 9]


def test_reading_in_pieces_is_reading_at_once(transport):
    whole = ServingSession(transport).score(IDS)
    pieces = ServingSession(transport)
    read = np.concatenate([pieces.score(IDS[:1]), pieces.score(IDS[1:2]), pieces.score(IDS[2:])])
    assert whole[0] == 0 and np.all(whole[1:] > 0)
    np.testing.assert_allclose(read, whole, rtol=1e-6)


def test_both_transports_bring_the_same_numbers(server):
    found = []
    for name in TRANSPORTS:
        transport = server.transport(name)
        session = ServingSession(transport)
        nll = session.score(IDS)
        written = session.generate(5, settings=SamplingSettings(seed=3))
        found.append([nll, *written, *session.next_token(), session.state.memory_states])
        transport.close()
    for over_rest, over_grpc in zip(*found, strict=True):
        assert over_rest.dtype == over_grpc.dtype
        np.testing.assert_array_equal(over_rest, over_grpc)


def test_the_most_probable_token_is_what_is_written(transport):
    session = ServingSession(transport)
    session.score(IDS)
    before = session.state
    candidate_ids, probabilities = session.next_token()
    assert session.state is before
    assert np.all(np.diff(probabilities) <= 0)
    written, nll = session.generate(1, settings=GREEDY)
    assert written.tolist() == [candidate_ids[0]]
    np.testing.assert_allclose(np.exp(-nll), probabilities[:1], rtol=1e-5)


def test_writing_goes_on_where_it_stopped(transport):
    whole, _ = ServingSession(transport).generate(6, IDS, GREEDY)
    session = ServingSession(transport)
    first, _ = session.generate(2, IDS, GREEDY)
    fork = ServingSession(transport, state=session.state)
    rest, _ = session.generate(4, settings=GREEDY)
    assert [*first, *rest] == whole.tolist()
    assert fork.generate(4, settings=GREEDY)[0].tolist() == rest.tolist()


def test_texts_are_bytes_in_both_directions(transport):
    session = ServingSession(transport)
    texts = [session.generate_text(4, text, GREEDY) for text in (b"\xff\x00a", "b\u00e9", "")]
    ids = ServingSession(transport)
    pieces = (b"\xff\x00a", "b\u00e9".encode(), b"")
    expected = [bytes(ids.generate(4, list(piece), GREEDY)[0].tolist()) for piece in pieces]
    assert texts == expected


def test_compressed_memory_is_kept_in_half_the_bytes(transport):
    session = ServingSession(transport, compress_memory=True)
    written, _ = session.generate(4, IDS, GREEDY)
    assert session.state.memory_states.dtype == ml_dtypes.bfloat16
    # Ids below 256 are exact in bfloat16.
    assert written.tolist() == ServingSession(transport).generate(4, IDS, GREEDY)[0].tolist()
    session.score([1, 2])


def test_a_refused_request_names_all_and_changes_nothing(transport):
    session = ServingSession(transport)
    session.score(IDS)
    before = session.state
    with pytest.raises(PredictionError, match="token_ids has 256") as caught:
        session.score([256, 1])
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    assert caught.value.signature == "score"
    assert MODEL_NAME in str(caught.value)
    assert session.state is before


@pytest.mark.parametrize(
    ("signature", "changes", "message"),
    [
        ("nothing", {}, "nothing"),
        ("score", {"lengths": None}, "lengths"),
        ("score", {"lengths": np.zeros(1, "float32")}, "lengths"),
        ("score", {"more": np.zeros(1, "int32")}, "more"),
    ],
)
def test_requests_for_something_else_are_invalid_arguments(transport, signature, changes, message):
    ids = np.array([IDS], "int32")
    inputs = {
        "token_ids": ids,
        "target_ids": ids,
        "lengths": np.array([len(IDS)], "int32"),
        "memory_states": np.zeros([1, 2, 4, 3], "float32"),
        "memory_valid_length": np.zeros([1], "int32"),
        **changes,
    }
    inputs = {name: value for name, value in inputs.items() if value is not None}
    with pytest.raises(PredictionError, match=message) as caught:
        transport.predict(signature, inputs)
    assert caught.value.code in (StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND)


def test_another_model_and_version_are_not_found(server):
    for name in TRANSPORTS:
        transport = server.transport(name, version=7)
        with pytest.raises(PredictionError, match="7") as caught:
            ServingSession(transport).score(IDS)
        assert caught.value.code == StatusCode.NOT_FOUND
        transport.close()


def test_a_server_that_is_not_there_is_unavailable(versions):
    with running_server("loopback", versions) as address:
        pass
    for name in TRANSPORTS:
        transport = address.transport(name, num_attempts=2, timeout_seconds=5.0)
        with pytest.raises(PredictionError) as caught:
            ServingSession(transport).score(IDS)
        assert caught.value.code == StatusCode.UNAVAILABLE
        transport.close()


def _row(first):
    return {
        "token_ids": [first, 2],
        "target_ids": [2, 3],
        "lengths": 2,
        "memory_states": np.zeros([2, 4, 3]).tolist(),
        "memory_valid_length": 0,
    }


def _post(server, body, rest=":predict"):
    url = f"http://127.0.0.1:{server.rest_port}/v1/models/{MODEL_NAME}{rest}"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with urllib3.PoolManager(retries=False) as pool:
        response = pool.request("POST", url, body=content)
        return response.status, json.loads(response.data)


def test_rows_and_columns_say_the_same(server):
    rows = [_row(1), _row(9)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    status, in_rows = _post(server, {"instances": rows})
    assert status == 200
    status, in_columns = _post(server, {"signature_name": "score", "inputs": columns})
    assert status == 200
    assert len(in_rows["predictions"]) == 2
    for name, column in in_columns["outputs"].items():
        assert [row[name] for row in in_rows["predictions"]] == column


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        [],
        {},
        {"instances": [], "inputs": {}},
        {"instances": []},
        {"instances": [_row(1), {"token_ids": [1]}]},
        {"instances": [{**_row(1), "token_ids": [1.5, 2]}]},
        {"instances": [{**_row(1), "token_ids": [1 << 40, 2]}]},
        {"instances": [{**_row(1), "token_ids": ["a", "b"]}]},
        {"instances": [{**_row(1), "token_ids": [[1], 2]}]},
        {"instances": [{**_row(1), "memory_valid_length": True}]},
        {"inputs": [1, 2]},
        {"signature_name": 3, "instances": [_row(1)]},
    ],
)
def test_malformed_bodies_are_bad_requests(server, body):
    status, answer = _post(server, body)
    assert status == 400
    assert list(answer) == ["error"] and answer["error"]


def test_status_says_what_is_loaded(server):
    url = f"http://127.0.0.1:{server.rest_port}/v1/models/{MODEL_NAME}"
    with urllib3.PoolManager(retries=False) as pool:
        status = json.loads(pool.request("GET", url).data)
        metadata = json.loads(pool.request("GET", url + "/metadata").data)
    [version] = status["model_version_status"]
    assert (version["version"], version["state"]) == ("1", "AVAILABLE")
    score = metadata["metadata"]["signature_def"]["signature_def"]["score"]
    assert score["inputs"]["token_ids"]["dtype"] == "DT_INT32"


@pytest.mark.parametrize("count", [1, slow_case(8)])
def test_sessions_are_never_mixed(transport, count):
    alone = texts_alone(transport)
    assert len(set(map(tuple, alone))) == len(alone)
    for seed in range(count):
        assert texts_interleaved(transport, seed) == alone


@pytest.mark.slow
def test_a_new_version_answers_wholly_or_not_at_all(versions, tmp_path):
    """Requests never stop; each is answered by the old or by the new version."""
    shutil.copytree(versions / "1", tmp_path / "1")
    write_version(tmp_path, 2, seed=1)
    (tmp_path / "2").rename(tmp_path / "hidden")
    is_done = threading.Event()
    with (
        running_server("loopback", tmp_path) as server,
        concurrent.futures.ThreadPoolExecutor(2) as threads,
    ):
        running = [threads.submit(_texts_until, is_done, server, name) for name in TRANSPORTS]
        try:
            # Copied halfway, without a list of checksums: never loaded.
            (tmp_path / "3").mkdir()
            (tmp_path / "3" / "saved_model.pb").write_bytes(b"half")
            (tmp_path / "hidden").rename(tmp_path / "2")
            _wait_for_version(server, "2")
        finally:
            is_done.set()
        over_rest, over_grpc = [run.result() for run in running]
    assert len(over_rest) == 2
    assert over_rest == over_grpc


def _texts_until(is_done, server, name):
    """The different texts that a prompt got, in their order."""
    transport = server.transport(name)
    found, is_last = [], False
    while not is_last:
        is_last = is_done.is_set()
        written, _ = ServingSession(transport).generate(3, IDS, GREEDY)
        if written.tolist() not in found:
            found.append(written.tolist())
    transport.close()
    return found


def _wait_for_version(server, version):
    url = f"http://127.0.0.1:{server.rest_port}/v1/models/{MODEL_NAME}"
    with urllib3.PoolManager(retries=False) as pool:
        for _ in range(400):
            status = json.loads(pool.request("GET", url).data)
            if status["model_version_status"][0]["version"] == version:
                return
            threading.Event().wait(0.05)
    raise AssertionError(f"version {version} did not appear")
