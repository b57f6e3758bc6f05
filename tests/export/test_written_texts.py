"""Candidates and texts that an export writes, against the model."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export.conftest import CONFIG
from tests.export.requests import (
    memory_in,
    nothing_read,
    random_ids,
    rows_of,
    sampling,
    score,
    tensors,
)
from txl_tf.export.token_signatures import WireMemory
from txl_tf.export.warm_up import warm_up_requests

pytestmark = pytest.mark.slow

SEGMENT = CONFIG.segment_length


def test_next_token_has_the_most_probable_first(model, text_signatures):
    text = random_ids(2, SEGMENT, seed=3)
    answer = text_signatures["next_token"](**tensors(rows_of(text) | nothing_read(2)))
    log_probs, _ = model.log_probs(text, model.initial_memory(2))
    expected = np.exp(log_probs)[:, -1]
    ids, probabilities = answer["candidate_ids"].numpy(), answer["probabilities"].numpy()
    assert ids.shape == (2, 16)
    np.testing.assert_allclose(probabilities, -np.sort(-expected)[:, :16], rtol=0, atol=1e-6)
    found = np.take_along_axis(expected, ids, axis=1)
    np.testing.assert_allclose(probabilities, found, rtol=0, atol=1e-6)


def greedy(model, prompt, num_tokens):
    """Writes with the model itself, token by token."""
    memory, written = model.initial_memory(1), []
    for start in range(0, len(prompt) - 1, SEGMENT):
        piece = prompt[None, start : min(start + SEGMENT, len(prompt) - 1)]
        _, memory = model(piece, memory)
    pending = prompt[None, -1:]
    for _ in range(num_tokens):
        log_probs, memory = model.log_probs(pending, memory)
        pending = np.argmax(log_probs, axis=-1)
        written.append(pending[0, 0])
    return written, memory


def test_generate_writes_each_row_to_its_own_end(model, text_signatures):
    prompts = random_ids(3, 2 * SEGMENT, seed=5)
    lengths, num_tokens = [1, SEGMENT, 2 * SEGMENT], [9, 1, 4]
    expected = [
        greedy(model, prompt[:length], count)
        for prompt, length, count in zip(prompts, lengths, num_tokens, strict=True)
    ]
    stop = expected[2][0][1]
    request = {
        **rows_of(prompts, lengths),
        **sampling(3, max_tokens=num_tokens, stop_token_id=[-1, -1, stop]),
    }
    answer = text_signatures["generate"](**tensors(request | nothing_read(3)))
    assert answer["token_ids"].shape == (3, 9)
    for row, (written, memory) in enumerate(expected):
        if stop in written and row == 2:
            written = written[: written.index(stop) + 1]
        assert answer["lengths"][row] == len(written)
        assert answer["token_ids"][row].numpy().tolist() == written + [0] * (9 - len(written))
        if row < 2:
            states = np.stack(memory.states, axis=1)[0]
            found = answer["memory_states"][row]
            np.testing.assert_allclose(found, states, rtol=0, atol=1e-5)
            assert answer["memory_valid_length"][row] == memory.valid_length[0]
    # The answer is a state to go on from: the last token, and the memory before it.
    last = np.take_along_axis(
        answer["token_ids"].numpy(), answer["lengths"].numpy()[:, None] - 1, 1
    )
    more = sampling(3, max_tokens=3)
    on = text_signatures["generate"](**tensors({**rows_of(last), **more, **memory_in(answer)}))
    further, _ = greedy(model, prompts[0, :1], 12)
    assert on["token_ids"][0].numpy().tolist() == further[9:]


def test_texts_are_scored_in_parts_as_in_one(text_signatures):
    texts = [b"memory goes from answer to request", bytes(range(1, 256, 8)), b"a"]
    start = {"previous_token_ids": np.full(3, -1, "int32"), **nothing_read(3)}
    whole = text_signatures["score_text"](**tensors({"texts": texts, **start}))
    tokens = text_signatures["tokenize"](**tensors({"texts": texts}))
    ids, lengths = tokens["token_ids"].numpy(), tokens["lengths"].numpy()
    for row, text in enumerate(texts):
        assert bytes(ids[row, : lengths[row]].tolist()) == text
    np.testing.assert_array_equal(whole["token_ids"], ids)
    scored = score(text_signatures, ids, nothing_read(3), np.maximum(lengths - 1, 1))
    np.testing.assert_array_equal(whole["nll"][:2, 1:], scored["nll"][:2])
    assert not np.any(whole["nll"][:, 0])
    np.testing.assert_array_equal(whole["num_scored"], lengths - 1)
    # Cut where a segment of the model ends, so that the numbers are the same.
    cut = SEGMENT + 1
    parts = [[text[:cut] for text in texts], [text[cut:] for text in texts]]
    first = text_signatures["score_text"](**tensors({"texts": parts[0], **start}))
    state = {"previous_token_ids": first["last_token_ids"], **memory_in(first)}
    second = text_signatures["score_text"](**tensors({"texts": parts[1], **state}))
    total = first["total_nll"] + second["total_nll"]
    np.testing.assert_allclose(total, whole["total_nll"], rtol=1e-5)
    for name in (*memory_in(whole), "last_token_ids"):
        np.testing.assert_allclose(second[name], whole[name], rtol=0, atol=1e-5)


def test_texts_are_gone_on_from(text_signatures):
    texts = [b"import", b"x"]
    state = {"previous_token_ids": np.array([-1, 65], "int32"), **nothing_read(2)}
    ids = np.array([list(b"import"), [65, 120, 0, 0, 0, 0]], "int32")
    expected = text_signatures["generate"](
        **tensors({**rows_of(ids, [6, 2]), **sampling(2), **nothing_read(2)})
    )
    answer = text_signatures["generate_text"](**tensors({"texts": texts, **sampling(2), **state}))
    for name, value in expected.items():
        np.testing.assert_array_equal(answer[name], value)
    written = [bytes(row) for row in expected["token_ids"].numpy().astype("uint8").tolist()]
    assert answer["texts_bytes"].numpy().tolist() == written
    following = text_signatures["next_token_text"](**tensors({"texts": texts, **state}))
    np.testing.assert_array_equal(following["candidate_ids"][:, 0], answer["token_ids"][:, 0])
    assert following["candidate_texts_bytes"][0, 0] == written[0][:1]
    # Its state is the one before the last token, so that it can be chosen and gone on with.
    np.testing.assert_array_equal(following["last_token_ids"], [ord("t"), ord("x")])
    again = {"previous_token_ids": following["last_token_ids"], **memory_in(following)}
    repeated = text_signatures["next_token_text"](**tensors({"texts": [b"", b""], **again}))
    np.testing.assert_allclose(
        repeated["probabilities"], following["probabilities"], rtol=0, atol=1e-6
    )


def test_detokenize_is_the_reverse(text_signatures):
    texts = [b"any \xff bytes", b"", "\u00e9".encode()]
    tokens = text_signatures["tokenize"](**tensors({"texts": texts}))
    answer = text_signatures["detokenize"](**tokens)
    assert answer["texts_bytes"].numpy().tolist() == texts


def test_warm_up_requests_are_answered(exported_texts, text_signatures):
    path = str(exported_texts / "assets.extra" / "tf_serving_warmup_requests")
    assert len(list(tf.data.TFRecordDataset(path))) == len(text_signatures)
    names = ["complete", *sorted(set(text_signatures) - {"serving_default", "complete"})]
    requests = warm_up_requests(WireMemory(CONFIG, tf.float32), names)
    assert {name for name, _ in requests} == set(text_signatures)
    for name, inputs in requests:
        assert text_signatures[name](**inputs)
