"""Requests of text and nothing else, at `txl serve` with the model of `txl quickstart`."""

import contextlib
import io
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from typing import NamedTuple

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

import txl_tf
from pipelines.configs import quickstart
from tests.serving.hostile_requests import hostile_grpc, hostile_rest
from tests.serving.raw_client import GRPC_REFUSALS, HTTP_REFUSALS, ask_grpc, ask_rest, exchange
from tests.serving.servers import MODEL_NAME, TRANSPORTS, Address
from tests.serving.snippets import CURL, SESSION, TENSORFLOW
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.export import export_saved_model
from txl_tf.serving import PredictionError
from txl_tf.serving.errors import StatusCode

pytestmark = pytest.mark.slow

NUM_TOKENS = 100
PROMPT = "Once upon a time"
SIMPLE = ("complete", "perplexity", "serving_default")
NUM_HOSTILE = 60


class Served(NamedTuple):
    folder: str
    address: Address
    example: str


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A running `txl serve`, and the command that it prints."""
    folder = tmp_path_factory.mktemp("export")
    completion = GenerationConfig(max_tokens=NUM_TOKENS)
    export_saved_model(
        txl_tf.TransformerXL(quickstart().model),
        folder / "1",
        {},
        tokenizer=ByteTokenizer(),
        completion=completion,
    )
    command = [sys.executable, "-m", "pipelines.serve", "--export", str(folder)]
    command += ["--name", MODEL_NAME, "--port", "0", "--grpc-port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True) as process:
        try:
            assert process.stdout.readline() == "version: 1\n"
            rest, grpc_line, example = (process.stdout.readline() for _ in range(3))
            ports = [int(re.search(r"127\.0\.0\.1:(\d+)", line)[1]) for line in (rest, grpc_line)]
            yield Served(str(folder), Address(*ports), example.removeprefix("try: ").strip())
        finally:
            process.terminate()


def run_curl(command):
    """What the command prints, whether or not there is `curl`."""
    words = shlex.split(command)
    if shutil.which("curl"):
        finished = subprocess.run([*words, "-sS"], capture_output=True, check=True, timeout=60)
        return json.loads(finished.stdout)
    assert words[:2] == ["curl", "-d"]
    with urllib.request.urlopen(words[3], words[2].encode(), timeout=60) as response:
        return json.load(response)


def here(snippet, served):
    """A snippet with the ports and the folder of this machine."""
    for shown, used in (
        ("8501", served.address.rest_port),
        ("8500", served.address.grpc_port),
        ("/txl:", f"/{MODEL_NAME}:"),
        ('"txl"', f'"{MODEL_NAME}"'),
        ("export/mine", served.folder),
    ):
        snippet = snippet.replace(shown, str(used))
    return snippet


def post(served, body):
    url = f"http://127.0.0.1:{served.address.rest_port}/v1/models/{MODEL_NAME}:predict"
    try:
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_the_printed_command_is_the_one_of_the_readme_and_works(served):
    assert served.example == here(CURL, served)
    [text] = run_curl(served.example)["predictions"]
    assert isinstance(text, str) and text


@pytest.mark.parametrize(("snippet", "num_lines"), [(TENSORFLOW, 1), (SESSION, 2)])
def test_the_snippets_of_python_print_texts(served, snippet, num_lines):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(here(snippet, served), "snippet", "exec"), {})
    # A text may have line ends itself.
    assert len(output.getvalue()) > num_lines and output.getvalue().count("\n") >= num_lines


def test_a_request_of_text_and_its_answer_are_small(served):
    body = json.dumps({"instances": [PROMPT]}).encode()
    head = (
        f"POST /v1/models/{MODEL_NAME}:predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    answer = exchange(served.address.rest_port, request)
    print(f"request {len(request)} bytes, answer {len(answer)} bytes, heads included")
    assert b" 200 OK" in answer
    assert len(request) < 200
    assert len(answer) < 2000
    [text] = json.loads(answer.split(b"\r\n\r\n")[1])["predictions"]
    assert NUM_TOKENS / 4 <= len(text) <= NUM_TOKENS


def test_a_batch_of_texts_is_answered_row_by_row(served):
    status, answer = post(served, {"instances": [PROMPT, "x", {"b64": "/w=="}]})
    assert status == 200 and len(answer["predictions"]) == 3
    status, answer = post(served, {"signature_name": "perplexity", "instances": [PROMPT, "ab"]})
    assert status == 200
    assert [row["tokens"] for row in answer["predictions"]] == [len(PROMPT) - 1, 1]
    for row in answer["predictions"]:
        assert row["perplexity"] == pytest.approx(np.exp(row["nats"] / row["tokens"]), rel=1e-4)
    status, answer = post(served, {"inputs": [PROMPT]})
    assert status == 200 and len(answer["outputs"]) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"instances": [{"text": PROMPT}]}, "missing ['texts'], unexpected ['text']"),
        ({"prompt": PROMPT}, "either `instances` or `inputs`"),
        ({"instances": [1]}, "not strings"),
        ({"instances": [[PROMPT]]}, "shape [1, 1]; it must be [any]"),
        ({"instances": []}, "at least one row"),
        ({"inputs": {"texts": PROMPT}}, "shape []"),
    ],
)
def test_a_wrong_request_is_answered_with_the_inputs_of_the_signature(served, body, words):
    status, answer = post(served, body)
    assert status == 400
    assert words in answer["error"]
    assert "The signature `serving_default` takes texts string [any]." in answer["error"]
    status, answer = post(served, {"signature_name": "generate_text", **body})
    assert status == 400
    assert "takes texts string [any]; optional: memory_states float " in answer["error"]


@pytest.mark.parametrize("name", TRANSPORTS)
def test_an_unknown_signature_is_answered_with_the_names_of_all(served, name):
    transport = served.address.transport(name)
    with pytest.raises(PredictionError, match=r"there are: complete, .*perplexity") as caught:
        transport.predict("complet", {"texts": np.array([b"a"], object)})
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    with pytest.raises(PredictionError, match=r"takes texts string \[any\]") as caught:
        transport.predict("complete", {"text": np.array([b"a"], object)})
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    transport.close()


def test_rows_times_tokens_are_refused_before_they_take_memory(served):
    many = ["a"] * 200_000
    for body in ({"instances": many}, {"signature_name": "perplexity", "instances": many}):
        status, answer = post(served, body)
        assert status == 400 and "bytes of memory" in answer["error"]
    long = ["a" * 60_000, *["ab"] * 30_000]
    status, answer = post(served, {"signature_name": "tokenize", "instances": long})
    assert status == 400 and "bytes of memory" in answer["error"]


def simple_body(draw):
    """The values of a good REST body of texts, which are short."""
    texts = draw.choice([["a text"], ["a", "b\u00e9"], [{"b64": "YWI="}]])
    signature = {} if draw.random() < 0.5 else {"signature_name": draw.choice(SIMPLE)}
    form = draw.choice(["instances", "inputs"])
    value = texts if draw.random() < 0.5 else {"texts": texts}
    if form == "instances" and isinstance(value, dict):
        value = [{"texts": text} for text in texts]
    return {**signature, form: value}


def simple_message(draw):
    """A good `PredictRequest` of texts."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = MODEL_NAME
    request.model_spec.signature_name = draw.choice(SIMPLE)
    texts = draw.choice([[b"a text"], [b"\xff\0"], [b"ab", b"cde"]])
    request.inputs["texts"].CopyFrom(tf.make_tensor_proto(texts))
    return request


def test_whatever_is_done_to_a_request_of_text_is_its_own_fault(served):
    counts = {}
    with grpc.insecure_channel(f"127.0.0.1:{served.address.grpc_port}") as channel:
        for seed in range(NUM_HOSTILE):
            content = hostile_rest(random.Random(seed), simple_body)
            status, answer = ask_rest(served.address.rest_port, content)
            assert status in {200, *HTTP_REFUSALS} or b"\r\n\r\n" not in content, answer
            code, words = ask_grpc(channel, hostile_grpc(random.Random(seed), simple_message))
            assert code == grpc.StatusCode.OK or (code in GRPC_REFUSALS and words)
            for each in (status, code):
                counts[each] = counts.get(each, 0) + 1
    assert counts[200] > 3 and counts[400] > 10
    assert counts[grpc.StatusCode.INVALID_ARGUMENT] > 10
