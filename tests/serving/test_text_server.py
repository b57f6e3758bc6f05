"""The text server: OpenAI's client, batches, sessions, limits and wrong requests."""

import contextlib
import http.client
import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from tests.serving.conftest import running
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.models import create_model

PROMPT = "Once upon a time"


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        yield client


def complete(client, prompt=PROMPT, model="mine", **settings):
    known = ("max_tokens", "temperature", "top_p", "seed", "stop", "n", "echo", "logprobs")
    direct = {name: settings.pop(name) for name in known if name in settings}
    return client.completions.create(model=model, prompt=prompt, extra_body=settings, **direct)


def get(url, body=None, **headers):
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read(), response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


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
        found = [
            threads.submit(complete, client, max_tokens=70, **settings).result() for _ in range(2)
        ]
        assert all(each.result().usage.completion_tokens == 40 for each in others)
    assert [each.choices[0].text for each in found] == [expected, expected]
    assert found[0].choices[0].finish_reason == "length"
    assert found[0].usage.prompt_tokens == len(PROMPT)
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
    written = [
        text.removeprefix(prompt)
        for text, prompt in zip(expected, [PROMPT] * 2 + ["A b"] * 2, strict=True)
    ]
    assert [each.text for each in answer.choices] == written
    found = [lm.tokenizer.decode(each.token_ids) for each in answer.choices]
    assert found == written


def test_a_stream_has_the_same_text_and_begins_at_once(client):
    start, pieces, first = time.monotonic(), [], None
    with client.completions.create(
        model="mine",
        prompt=PROMPT,
        max_tokens=50,
        seed=1,
        stream=True,
        stream_options={"include_usage": True},
        user="me",
    ) as stream:
        for event in stream:
            first = first or time.monotonic() - start
            pieces += [choice.text for choice in event.choices]
    assert "".join(pieces) == complete(client, max_tokens=50, seed=1).choices[0].text
    assert len(pieces) > 10 and first < 2
    assert event.usage.completion_tokens == 50


def test_scores_of_prompt_and_text_are_those_of_score(client, lm):
    answer = complete(client, max_tokens=0, echo=True, logprobs=2).choices[0]
    scores = answer.logprobs
    assert (answer.text, answer.finish_reason) == (PROMPT, "length")
    assert scores.tokens == list(PROMPT) and scores.text_offset == list(range(len(PROMPT)))
    assert scores.token_logprobs[0] is None
    np.testing.assert_allclose(
        np.negative(scores.token_logprobs[1:]), lm.score(PROMPT).nats[1:], atol=1e-4
    )
    written = complete(client, max_tokens=5, temperature=0, logprobs=1).choices[0].logprobs
    assert [max(top, key=top.get) for top in written.top_logprobs] == written.tokens
    assert written.token_logprobs == [max(top.values()) for top in written.top_logprobs]


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
    # What it knows is the prompt and the text before the stop text.
    first = complete(client, session="u", stop=stop, max_tokens=30, **greedy)
    assert first.session["tokens"] == len(PROMPT + first.choices[0].text)


def test_places_and_texts_of_tokens_are_those_in_the_text(client, lm):
    prompt = "caf\u00e9 \u65e5"
    choice = complete(client, prompt, echo=True, logprobs=1, max_tokens=9, seed=1).choices[0]
    places = choice.logprobs.text_offset
    assert places[:9] == [0, 1, 2, 3, 3, 4, 5, 5, 5] and places[9] == 6
    assert places == sorted(places) and places[-1] <= len(choice.text)
    words = WordTokenizer(list("abcdefgh"), WordRule())
    config = lm.model.config.replace(vocabulary_size=8)
    with running(TransformerXLCausalLM(create_model(config), words)) as address:
        body = {"prompt": "a b", "echo": True, "logprobs": 2, "max_tokens": 5}
        answer = json.loads(get(f"{address}/v1/completions", json.dumps(body).encode())[1])
    found, text = answer["choices"][0]["logprobs"], answer["choices"][0]["text"]
    assert "".join(found["tokens"]) == text and len(found["tokens"]) == 7
    assert found["text_offset"] == [0, *range(1, 12, 2)]


@pytest.mark.parametrize(
    ("settings", "status", "param"),
    [
        ({"top_q": 0.5}, 400, "top_q"),
        ({"temperature": -1}, 400, "temperature"),
        ({"seed": 2**40}, 400, "seed"),
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
    with pytest.raises(openai.APIStatusError) as caught:
        complete(client, **settings)
    assert (caught.value.status_code, caught.value.body["param"]) == (status, param)
    harmless = {"best_of": 1, "logit_bias": {}, "suffix": None}
    assert complete(client, max_tokens=1, **harmless).choices


def test_other_routes_answer(address):
    status, page, headers = get(address)
    assert (
        status == 200 and b"<textarea" in page and headers["Content-Type"].startswith("text/html")
    )
    assert b"http:" not in page and b"https:" not in page
    assert get(f"{address}/health")[0] == 200
    assert json.loads(get(f"{address}/v1/models")[1])["data"][0]["id"] == "mine"
    assert b"\ntxl_requests_total{" in get(f"{address}/metrics")[1]
    tokens = json.loads(get(f"{address}/tokenize", b'{"prompt": "ab"}')[1])["tokens"]
    assert tokens == list(b"ab")
    body = json.dumps({"tokens": tokens}).encode()
    assert json.loads(get(f"{address}/detokenize", body)[1]) == {"prompt": "ab"}


def test_a_full_queue_is_busy_and_a_key_is_needed(lm):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 20}).encode()
    with running(lm, "key", max_waiting=4) as address:
        url, key = f"{address}/v1/completions", {"Authorization": "Bearer key"}
        assert get(url, body)[0] == get(url, body, Authorization="Bearer \xff")[0] == 401
        assert get(url, b"x" * (1 << 17), **key)[0] == 413
        assert get(address)[0] == get(f"{address}/health")[0] == 200
        with ThreadPoolExecutor(100) as threads:
            answers = list(threads.map(lambda _: get(url, body, **key), range(100)))
    assert {status for status, *_ in answers} == {200, 503}
    assert all(headers["Retry-After"] for status, _, headers in answers if status == 503)


def test_a_client_that_leaves_ends_its_text(address):
    host = address.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    body = {"prompt": PROMPT, "max_tokens": 4096, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    connection.getresponse().read(10)
    connection.close()
    deadline = time.monotonic() + 20
    while b"txl_texts_running 0" not in get(f"{address}/metrics")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_text_of_another_address_pauses_one_of_many(address, lm):
    def ask(client, max_tokens):
        place = (address.removeprefix("http://"), None)
        body = json.dumps({"prompt": PROMPT, "max_tokens": max_tokens, "seed": 7})
        connection = http.client.HTTPConnection(*place, timeout=60, source_address=(client, 0))
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", body)
            return json.load(connection.getresponse())["choices"][0]["text"]

    expected = lm.generate(PROMPT, max_tokens=400, seed=7, strip_prompt=True)
    with ThreadPoolExecutor(8) as threads:
        crowd = [threads.submit(ask, "127.0.0.2", 400) for _ in range(8)]
        while b"txl_texts_running 4" not in get(f"{address}/metrics")[1]:
            time.sleep(0.01)
        assert ask("127.0.0.3", 5) == expected[:5]
        assert not any(each.done() for each in crowd)
        assert {each.result() for each in crowd} == {expected}
