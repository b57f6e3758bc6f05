"""The text server: OpenAI's client, batches, sessions, limits and wrong requests."""

import contextlib
import http.client
import json
import re
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.conftest import running
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.models import create_model

PROMPT = "Once upon a time"


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        yield client


def ask(address, path="v1/completions", **body):
    """The JSON that answers a request, without OpenAI's client."""
    return json.loads(get(f"{address}/{path}", json.dumps(body).encode() if body else None)[1])


def complete(client, prompt=PROMPT, model="mine", **settings):
    names = ("max_tokens", "temperature", "top_p", "seed", "stop", "n", "echo", "logprobs")
    direct = {name: settings.pop(name) for name in names if name in settings}
    return client.completions.create(model=model, prompt=prompt, extra_body=settings, **direct)


def get(url, body=None, **headers):
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read(), response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"seed": 7, "temperature": 0.8, "top_k": 99, "top_p": 0.8, "repetition_penalty": 1.3},
        {"seed": 7, "min_p": 0.1, "presence_penalty": 0.5, "logit_bias": {"99": 3, "7": -100}},
    ],
)
def test_a_request_writes_the_text_of_generate_beside_any_others(client, lm, settings):
    expected = lm.generate(PROMPT, max_tokens=70, strip_prompt=True, **settings)
    with ThreadPoolExecutor(6) as threads:
        others = [threads.submit(complete, client, "x" * size, max_tokens=40) for size in (1, 30)]
        answers = [
            threads.submit(complete, client, max_tokens=70, **settings).result() for _ in range(2)
        ]
        assert all(each.result().usage.completion_tokens == 40 for each in others)
    assert [each.choices[0].text for each in answers] == [expected, expected]
    assert answers[0].choices[0].finish_reason == "length"
    assert answers[0].usage.prompt_tokens == len(PROMPT)
    stop = expected[20:22]
    cut = complete(client, max_tokens=70, stop=["never there", stop], **settings).choices[0]
    assert (cut.text, cut.finish_reason) == (expected[: expected.index(stop)], "stop")


def test_several_prompts_and_samples_are_numbered(client, lm):
    answer = complete(client, [PROMPT, "A b"], n=2, seed=5, max_tokens=9, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    expected = lm.generate([PROMPT, "A b"], max_tokens=9, seed=5, num_samples=2)
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage.prompt_tokens == len(PROMPT) + 3
    ids = [list(PROMPT.encode()), list(b"A b")]
    answer = complete(client, ids, n=2, seed=5, max_tokens=9, return_token_ids=True)
    new = [text.removeprefix(PROMPT).removeprefix("A b") for text in expected]
    assert [choice.text for choice in answer.choices] == new
    assert [lm.tokenizer.decode(choice.token_ids) for choice in answer.choices] == new


def test_a_stream_has_the_same_text_begins_at_once_and_counts_its_tokens(client):
    start, texts, counts = time.monotonic(), [], []
    with client.completions.create(
        model="mine",
        prompt=PROMPT,
        max_tokens=50,
        seed=1,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        user="me",
    ) as stream:
        for event in stream:
            assert texts or time.monotonic() - start < 2
            texts += [choice.text for choice in event.choices]
            counts.append(event.usage.completion_tokens)
    assert "".join(texts) == complete(client, max_tokens=50, seed=1).choices[0].text
    assert len(texts) > 10
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 50


def test_scores_of_prompt_and_text_equal_score(client, lm):
    answer = complete(client, max_tokens=0, echo=True, logprobs=2).choices[0]
    scores = answer.logprobs
    assert (answer.text, answer.finish_reason) == (PROMPT, "length")
    assert scores.tokens == list(PROMPT) and scores.text_offset == list(range(len(PROMPT)))
    assert scores.token_logprobs[0] is None
    np.testing.assert_allclose(
        np.negative(scores.token_logprobs[1:]), lm.score(PROMPT).nats[1:], atol=1e-4
    )
    output = complete(client, max_tokens=5, temperature=0, logprobs=1).choices[0].logprobs
    assert [max(top, key=top.get) for top in output.top_logprobs] == output.tokens
    assert output.token_logprobs == [max(top.values()) for top in output.top_logprobs]


def test_a_session_equals_one_pass_and_ends(client, lm):
    expected = lm.session(seed=3)
    for prompt, count in ((PROMPT, 20), ("", 70), (" and so", 5)):
        answer = complete(client, prompt, session="s", seed=3, max_tokens=count)
        assert answer.choices[0].text == expected.write(prompt or None, max_tokens=count)
    assert answer.session == {"name": "s", "tokens": len(PROMPT) + 102}
    with pytest.raises(openai.NotFoundError):
        complete(client, "", session="other")
    with running(lm, max_sessions=2, session_seconds=3) as address:
        few = openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0)
        for name in ("a", "b", "c"):
            complete(few, session=name, max_tokens=1)
        for name in ("b", "c"):
            complete(few, "", session=name, max_tokens=1)
        with pytest.raises(openai.NotFoundError):
            complete(few, "", session="a")
        time.sleep(3.1)
        with pytest.raises(openai.NotFoundError):
            complete(few, "", session="c")
        few.close()


def test_a_session_does_not_know_the_stop_text_that_ended_a_text(client, lm):
    greedy = {"temperature": 0, "frequency_penalty": 0.5}
    free = lm.generate(PROMPT, max_tokens=30, strip_prompt=True, **greedy)
    stop = free[9:12]
    expected = lm.session(stop=stop, **greedy)
    for prompt in (PROMPT, "then", ""):
        answer = complete(client, prompt, session="t", stop=stop, max_tokens=30, **greedy)
        assert answer.choices[0].text == expected.write(prompt or None, max_tokens=30)
    # Its memory holds the prompt and the text before the stop text.
    first = complete(client, session="u", stop=stop, max_tokens=30, **greedy)
    assert first.session["tokens"] == len(PROMPT + first.choices[0].text)


def test_tokens_have_their_texts_and_offsets(client, lm):
    prompt = "caf\u00e9 \u65e5"
    choice = complete(client, prompt, echo=True, logprobs=1, max_tokens=9, seed=1).choices[0]
    places = choice.logprobs.text_offset
    assert places[:9] == [0, 1, 2, 3, 3, 4, 5, 5, 5] and places[9] == 6
    assert places == sorted(places) and places[-1] <= len(choice.text)
    words = WordTokenizer(list("abcdefgh"), WordRule())
    config = lm.model.config.replace(vocabulary_size=8)
    with running(TransformerXLCausalLM(create_model(config), words)) as address:
        answer = ask(address, prompt="a b", echo=True, logprobs=2, max_tokens=5)
    scores = answer["choices"][0]["logprobs"]
    assert "".join(scores["tokens"]) == answer["choices"][0]["text"] and len(scores["tokens"]) == 7
    assert scores["text_offset"] == [0, *range(1, 12, 2)]


@pytest.mark.parametrize(
    ("settings", "status", "param"),
    [
        ({"top_q": 0.5}, 400, "top_q"),
        ({"presence_penalti": 1}, 400, "presence_penalti"),
        ({"temperature": -1}, 400, "temperature"),
        ({"seed": 0.5}, 400, "seed"),
        ({"min_tokens": 2}, 400, "min_tokens"),
        ({"best_of": 3}, 400, "best_of"),
        ({"topP": 0.5, "top_p": 0.4}, 400, "topP"),
        ({"max_tokens": 10**6}, 400, "max_tokens"),
        ({"n": 1000}, 400, "prompt"),
        ({"logprobs": 6}, 400, "logprobs"),
        ({"presence_penalty": 2.1}, 400, "presence_penalty"),
        ({"logit_bias": {"300": 1}}, 400, "logit_bias"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [1, 300]}, 400, "prompt"),
        ({"session": "s", "n": 2}, 400, "session"),
        ({"model": "other"}, 404, "model"),
    ],
)
def test_a_wrong_parameter_is_named(client, settings, status, param):
    with pytest.raises(openai.APIStatusError) as error:
        complete(client, **settings)
    assert (error.value.status_code, error.value.body["param"]) == (status, param)


@pytest.mark.parametrize(
    "settings",
    [
        {"ignore_eos": True, "min_tokens": 0, "user": "me", "length_penalty": 1.0},
        {"best_of": 1, "logit_bias": {}, "logitBias": {}, "suffix": None, "stop": ""},
        {"suffix": "", "stop": [], "topK": -1, "add_special_tokens": True, "tools": []},
        {"seed": 2**32 + 7, "stream_options": {"include_obfuscation": False}},
    ],
)
def test_parameters_that_change_nothing_are_taken(address, settings):
    request = {"prompt": PROMPT, "max_tokens": 9, "seed": 7, "top_k": -1}
    answers = [ask(address, **{**request, **more}) for more in ({}, settings)]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]


def test_ignore_eos_writes_on_after_the_end_of_a_document(lm):
    lines = WordTokenizer(["<S>", *"abcdefg"], WordRule(add_double_eos=True))
    config = lm.model.config.replace(vocabulary_size=8)
    with running(TransformerXLCausalLM(create_model(config), lines)) as address:
        body = {"prompt": "a b", "max_tokens": 9, "logit_bias": {"0": 100}}
        for settings, count in (({}, 1), ({"ignore_eos": True}, 9)):
            assert ask(address, **body, **settings)["usage"]["completion_tokens"] == count
        text = ask(address, "tokenizer_info")["eos_token"]
        assert ask(address, "tokenize", prompt=text)["tokens"][0] == 0


def test_other_routes_answer(address):
    status, page, headers = get(address)
    assert (
        status == 200 and b"<textarea" in page and headers["Content-Type"].startswith("text/html")
    )
    assert b"http:" not in page and b"https:" not in page
    for path in ("health", "ping", "version", "v1/models/mine"):
        assert get(f"{address}/{path}")[0] == 200
    assert ask(address, "v1/models")["data"][0]["id"] == "mine"
    assert ask(address, "tokenizer_info")["eos_token"] == "\n"
    assert ask(address, "tokenize", prompt="ab")["tokens"] == list(b"ab")
    assert ask(address, "detokenize", tokens=list(b"ab")) == {"prompt": "ab"}


def test_a_wrong_path_method_or_body_is_explained(address):
    for path, body, status, what in (
        ("v1/chat/completions", b"{}", 404, "has no chat"),
        ("v1/models/other", None, 404, "only `mine`"),
        ("v1/completions", None, 405, "needs POST"),
        ("v1/completions", b"{", 400, "must be a JSON object"),
        ("v1/completions", b"[" * 999 + b"]" * 999, 400, "must be a JSON object"),
    ):
        answer_status, answer, headers = get(f"{address}/{path}", body)
        assert answer_status == status and what in json.loads(answer)["error"]["message"]
        assert status != 405 or headers["Allow"] == "POST"


def test_metrics_have_types_and_histograms(client, address):
    complete(client, max_tokens=3)
    text = get(f"{address}/metrics")[1].decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert all(each.documentation for each in families.values() if "created" not in each.name)
    for name in ("txl_request_seconds", "txl_queue_seconds", "txl_rows"):
        assert families[name].type == "histogram"
        assert any(each.value for each in families[name].samples)
    assert families["txl_completion_tokens"].samples[0].value >= 3


def test_every_path_is_unavailable_while_the_model_is_loaded():
    with running(None) as address:
        for path in ("health", "v1/models", ""):
            status, answer, headers = get(f"{address}/{path}")
            assert (status, headers["Retry-After"]) == (503, "1") and b"loading" in answer


def test_pages_of_an_allowed_origin_may_ask():
    with running(None, "key", {"allowed_origins": ["https://a.example"]}) as address:
        for origin, right in (
            ("https://a.example", "https://a.example"),
            ("https://b.example", None),
        ):
            headers = get(f"{address}/health", Origin=origin)[2]
            assert headers["Access-Control-Allow-Origin"] == right
        url = f"{address}/v1/completions"
        headers = {"Origin": "https://a.example", "Access-Control-Request-Headers": "authorization"}
        request = urllib.request.Request(url, headers=headers, method="OPTIONS")
        with urllib.request.urlopen(request) as response:
            assert response.headers["Access-Control-Allow-Headers"] == "authorization"


def test_the_end_of_the_server_ends_its_texts_with_an_error(lm):
    body = {"prompt": PROMPT, "max_tokens": 4096}
    with ThreadPoolExecutor(1) as threads:
        with running(lm) as address:
            connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
            stream = connection.getresponse()
            stream.read(10)
            whole = threads.submit(get, f"{address}/v1/completions", json.dumps(body).encode())
            wait_until(lambda: b"txl_texts_running 2" in get(f"{address}/metrics")[1])
        *_, error, end, _ = stream.read().decode().split("\n\n")
        connection.close()
        assert "shutting down" in error and end == "data: [DONE]"
        assert whole.result()[0] == 503


@pytest.mark.parametrize("length", [b"9", b"60000"])
def test_a_client_that_leaves_within_its_body_is_counted_without_a_traceback(
    address, caplog, length
):
    def num_left():
        return [*re.findall(rb'status="499"} (\S+)', get(f"{address}/metrics")[1]), b"0.0"][0]

    before, (host, port) = num_left(), address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
        connection.sendall(head + length + b"\r\n\r\n{")
    wait_until(lambda: num_left() != before)
    assert not [each for each in caplog.records if each.exc_info]


def test_a_client_that_leaves_ends_its_text(address):
    host = address.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    body = {"prompt": PROMPT, "max_tokens": 4096, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    connection.getresponse().read(10)
    connection.close()
    wait_until(lambda: b"txl_texts_running 0" in get(f"{address}/metrics")[1])


KEY = {"Authorization": "Bearer key"}


@pytest.fixture(scope="module")
def small_queue(lm):
    """The address of a server with a key, four rows and four places, behind a proxy."""
    options = {"client_header": "X-Forwarded-For"}
    with running(lm, "key", options, max_waiting=4) as address:
        yield address


def test_a_full_queue_is_busy_and_a_key_is_needed(small_queue):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 20}).encode()
    url = f"{small_queue}/v1/completions"
    assert get(url, body)[0] == get(url, body, Authorization="Bearer \xff")[0] == 401
    assert get(url, b"x" * (1 << 17), **KEY)[0] == 413
    assert get(small_queue)[0] == get(f"{small_queue}/health")[0] == 200
    with ThreadPoolExecutor(100) as threads:
        burst = threads.map(lambda _: get(url, body, **KEY), range(4 + 4))
        assert {status for status, *_ in burst} == {200}  # free rows and the whole queue
        answers = list(threads.map(lambda _: get(url, body, **KEY), range(100)))
    assert {status for status, *_ in answers} == {200, 503}
    assert all(headers["Retry-After"] for status, _, headers in answers if status == 503)


@pytest.mark.parametrize("has_proxy", [False, True])
def test_a_client_takes_a_row_and_a_place_of_one_with_many(small_queue, lm, has_proxy):
    host = small_queue.removeprefix("http://")

    def ask_from(client, max_tokens):
        body = json.dumps({"prompt": PROMPT, "max_tokens": max_tokens, "seed": 7})
        source = ("127.0.0.1" if has_proxy else client, 0)
        connection = http.client.HTTPConnection(host, timeout=60, source_address=source)
        with contextlib.closing(connection):
            names = {"X-Forwarded-For": f"forged, {client}"} if has_proxy else {}
            connection.request("POST", "/v1/completions", body, KEY | names)
            response = connection.getresponse()
            answer = json.load(response)
            return answer["choices"][0]["text"] if response.status == 200 else response.status

    expected = lm.generate(PROMPT, max_tokens=400, seed=7, strip_prompt=True)
    with ThreadPoolExecutor(8) as threads:
        crowd = [threads.submit(ask_from, "127.0.0.2", 400) for _ in range(8)]
        # One after the other: a page of metrics is not of one moment.
        for count in (b"txl_texts_running 4.0\n", b"txl_texts_waiting 4.0\n"):
            wait_until(lambda count=count: count in get(f"{small_queue}/metrics", **KEY)[1])
        assert ask_from("127.0.0.3", 5) == expected[:5]
        answers = [each.result() for each in crowd]
    assert answers.count(expected) == 7 and answers.count(503) == 1
