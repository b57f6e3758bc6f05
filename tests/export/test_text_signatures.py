"""Signatures of texts: each row equals the answer of the model for that row alone."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export.conftest import CONFIG
from tests.small_models import toy_experiment, with_drawn_weights
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.causal_lm.text_pieces import first_stop
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.tokenizer import excluded_tokens
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.export.graph_texts import GraphTexts, cut_at
from txl_tf.export.served_model import ServedModel, ServedWeights
from txl_tf.export.signatures import ExportOptions, Signatures, known_inputs
from txl_tf.models import create_model
from txl_tf.models.plain_weights import plain_weights

CHARACTERS = CharacterTokenizer(list("abcdefghijklmnopqrstuvwxyz "))
WORDS = ["a", "fox", "sleeps", "the", "dog", ".", "<unk>"]
TEXTS = ["a fox", "the lazy dog sleeps", "x"]
NUM_TOKENS = 12
SETTINGS = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop")


def model_of(vocabulary_size, **changes):
    """A model whose next token is hardly ever a tie."""
    config = toy_experiment(model={"vocabulary_size": vocabulary_size, **changes}).model
    return with_drawn_weights(create_model(config, dtype="float32"), scale=0.7)


def words(**rule):
    rule = WordRule(**rule)
    tokens = [*filter(None, [rule.eos_token]), *WORDS]
    return WordTokenizer(tokens, rule, unknown_token="<unk>")


def functions(model, tokenizer, **completion):
    """The signatures as functions, before they are written."""
    options = ExportOptions()
    completion = GenerationConfig(**{"max_tokens": NUM_TOKENS, **completion})
    excluded = excluded_tokens(tokenizer, completion.allow_unknown)
    weights = ServedWeights(plain_weights(model, "It"), "float32")
    texts = None if tokenizer is None else GraphTexts(tokenizer, options.max_text_bytes)
    served = ServedModel(model, weights, excluded, completion, texts)
    inputs = known_inputs(model.config, completion)
    return Signatures(served, inputs, options, texts).functions()


def completed(functions, texts, **settings):
    """The continuations of texts, with the settings of an export or of a request."""
    texts = tf.constant([text.encode() for text in texts])
    if not settings:
        answer = functions["serving_default"](texts)
    else:
        inputs = known_inputs(CONFIG, GenerationConfig())
        values = [settings.get(name, inputs[name].default) for name in SETTINGS]
        dtypes = [inputs[name].dtype for name in SETTINGS]
        answer = functions["complete"](texts, *map(tf.constant, values, dtypes))
    assert list(answer) == ["texts"]
    return [text.decode() for text in answer["texts"].numpy().tolist()]


@pytest.fixture(scope="module")
def model():
    return model_of(27, memory_length=12)


@pytest.fixture(scope="module")
def lm(model):
    return TransformerXLCausalLM(model, CHARACTERS)


PENALTIES = {"repetition_penalty": 1.7, "frequency_penalty": 0.5, "logit_bias": {3: 2, 4: -100}}
GREEDY = {"temperature": 0.0}
DRAWN = {"top_p": 0.8, "seed": 3, "max_tokens": 4}
LINES = ["a fox", "the dog\nsleeps ", "a fox sleeps .\n", "dog\r\nfox\r", "unheard of"]
# A tokenizer, changes of the model, settings, and texts.
CONTINUATIONS = {
    "penalties": (CHARACTERS, {}, {"temperature": 0.9, "seed": 7, **PENALTIES}, TEXTS),
    "words": (words(), {}, GREEDY, LINES),
    "ends of lines": (words(add_double_eos=True), {}, GREEDY, [*LINES, "\n"]),
    # Unknown words are read and not written.
    "unknown": (words(), {}, {"temperature": 3.0, "seed": 3, "max_tokens": 30}, ["unheard of"]),
    "bytes": (ByteTokenizer(), {}, GREEDY, ["a", "b\u00e9"]),
    "sinusoidal": (CHARACTERS, {"position_encoding": "sinusoidal"}, DRAWN, TEXTS),
    "learned": (CHARACTERS, {"position_encoding": "learned", "num_positions": 30}, DRAWN, TEXTS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTINUATIONS)
def test_each_text_is_continued_and_scored_as_the_model_does_alone(name):
    tokenizer, changes, settings, texts = CONTINUATIONS[name]
    model = model_of(tokenizer.vocabulary_size, memory_length=12, **changes)
    lm = TransformerXLCausalLM(model, tokenizer)
    exported = functions(model, tokenizer, **settings)
    settings = {"max_tokens": NUM_TOKENS, "strip_prompt": True, **settings}
    expected = [lm.generate(text, **settings) for text in texts]
    assert completed(exported, texts) == expected
    # Bytes that are no text are replaced.
    assert ("\ufffd" in "".join(expected)) == (name == "bytes")
    if name == "unknown":
        assert "<unk>" in lm.generate(texts[0], allow_unknown=True, **settings)
        assert "<unk>" not in expected[0]
        assert "<unk>" not in lm.session(temperature=3.0, seed=3).write(texts[0], max_tokens=30)
        assert "<unk>" not in lm.generate(texts[0], max_tokens=9, sampler="beam")
    if changes:
        nats = exported["perplexity"](tf.constant(texts[:2]))["nats"]
        expected = [lm.score(text).total_nats for text in texts[:2]]
        np.testing.assert_allclose(nats, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_request_twice_gives_two_texts_unless_the_seed_is_fixed(lm):
    fresh = functions(lm.model, CHARACTERS, max_tokens=40)
    first, second, third = completed(fresh, ["a fox", "a fox", "a fox"])
    assert len({first, second, third, *completed(fresh, ["a fox"])}) == 4
    fixed = functions(lm.model, CHARACTERS, max_tokens=40, seed=2)
    assert len(set(completed(fixed, ["a fox", "a fox"]) + completed(fixed, ["a fox"]))) == 1


def test_perplexity_matches_the_model(lm):
    texts = [*TEXTS[:2], "ab", "the quick brown fox jumps over the lazy dog " * 3]
    scored = functions(lm.model, CHARACTERS)["perplexity"](tf.constant(texts))
    scores = [lm.score(text) for text in texts]
    np.testing.assert_allclose(scored["nats"], [each.total_nats for each in scores], rtol=1e-5)
    np.testing.assert_array_equal(scored["tokens"], [len(text) - 1 for text in texts])
    np.testing.assert_allclose(
        scored["perplexity"], [each.perplexity for each in scores], rtol=1e-4
    )
    lines = words(add_eos=True)
    model = model_of(lines.vocabulary_size)
    scored = functions(model, lines)["perplexity"](tf.constant(["the dog"]))
    expected = TransformerXLCausalLM(model, lines).score("the dog")
    np.testing.assert_allclose(scored["nats"][0], expected.total_nats, rtol=1e-5)
    assert scored["tokens"][0] == 2  # the end of the line is one


def test_a_model_without_memory_scores_by_default():
    model = model_of(27, recurrence=False)
    assert list(functions(model, CHARACTERS)) == ["perplexity", "score"]
    assert list(functions(model, None)) == ["score"]


@pytest.mark.slow
def test_requests_that_cannot_be_answered_are_refused(lm):
    simple = functions(lm.model, CHARACTERS)
    simple["complete"] = simple["serving_default"]
    for name, texts, message in (
        ("complete", [b"a", b""], r"texts\[1\] has no tokens"),
        ("complete", [b"a", b"\xff"], r"texts\[1\] is not UTF-8"),
        ("complete", [b"A"], "not in the vocabulary"),
        ("complete", [], "texts has no rows"),
        ("complete", b"a", r"texts has the shape \(\); it must be \(rows\)"),
        ("complete", [b"a" * ((1 << 16) + 1)], r"texts\[0\] is 65537 bytes long"),
        ("perplexity", [b"ab", b"a"], r"texts\[1\] has fewer than two tokens"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pytest.fail(f"{simple[name](tf.constant(texts, tf.string))}")


def test_every_row_has_its_own_settings(lm):
    exported = functions(lm.model, CHARACTERS)
    rows = (
        {"max_tokens": 3, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0},
        {"max_tokens": 9, "temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "seed": 7},
        {"max_tokens": 12, "temperature": 1.2, "top_k": 0, "top_p": 0.7, "min_p": 0.0, "seed": -3},
    )
    expected = [
        lm.generate(text, strip_prompt=True, **row) for text, row in zip(TEXTS, rows, strict=True)
    ]
    settings = {name: [row[name] for row in rows] for name in rows[0]}
    assert completed(exported, TEXTS, **settings) == expected
    stop = [["", ""], [expected[1][2:4], "never"], [expected[2][5], expected[2][3]]]
    stopped = completed(exported, TEXTS, **settings, stop=stop)
    assert stopped == [
        lm.generate(text, strip_prompt=True, stop=[each for each in stops if each] or None, **row)
        for text, stops, row in zip(TEXTS, stop, rows, strict=True)
    ]
    assert stopped[0] == expected[0] and stopped[1] != expected[1] and stopped[2] != expected[2]


def test_the_stop_text_that_is_complete_first_ends_a_text():
    stops = [*map(chr, range(128)), "\u00e9", "\U0001f600", "\\E", "(?s)", "a|b"]
    pairs = [(f"before {each}{each}\n", ["\0none", each]) for each in stops]
    pairs.append(("a|b", ["", ""]))
    draw = np.random.default_rng(0)

    def drawn(size):
        return "".join(draw.choice(list("ab\u00e9"), size=size))

    pairs += [(drawn(9), [drawn(1), drawn(3)]) for _ in range(200)]
    texts, stops = zip(*pairs, strict=True)
    cut = cut_at(tf.constant(texts), tf.constant(stops)).numpy()
    expected = [text[: first_stop(text, list(filter(None, of_text)))] for text, of_text in pairs]
    assert [each.decode() for each in cut] == expected


def test_writing_ends_with_the_text_that_is_over_last(lm):
    texts = GraphTexts(CHARACTERS, 99)
    model = ServedModel(
        lm.model, ServedWeights(plain_weights(lm.model, "It"), "float32"), texts=texts
    )
    full = [lm.generate(text, max_tokens=90, strip_prompt=True, temperature=0) for text in TEXTS]
    stops = [text[k : k + 2] for text, k in zip(full, (2, 20, 9), strict=True)]
    ids = texts.ids_of(tf.constant(TEXTS))
    numbers = {"max_tokens": 900, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    settings = {name: tf.fill([3], each) for name, each in {**numbers, "seed": 1}.items()}
    settings |= {"stop": tf.constant(stops)[:, None], "stop_token_ids": tf.fill([3, 1], -1)}
    memory = model.initial_memory(3)
    _, _, counts, _ = model.generate(ids.to_tensor(), ids.row_lengths(), settings, memory)
    ends = [text.index(stop) + 2 for text, stop in zip(full, stops, strict=True)]
    assert all(end <= count < end + 16 for end, count in zip(ends, counts, strict=True))
