"""The signatures with one input: each row is what the model does with it alone."""

import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from tests.export.requests import random_ids
from tests.export.test_variants import VARIANTS
from tests.slow_case import slow_case
from tests.toy_batches import toy_experiment
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterTokenizer
from txl_tf.data.tokenizers.tokenizer import excluded_tokens
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.export import ExportOptions, export_saved_model
from txl_tf.export.saved_model import create_signatures
from txl_tf.export.served_model import ServedModel
from txl_tf.export.served_weights import ServedWeights
from txl_tf.export.token_signatures import WireMemory
from txl_tf.models import create_model

CHARACTERS = CharacterTokenizer(list("abcdefghijklmnopqrstuvwxyz "))
WORDS = ["a", "fox", "sleeps", "the", "dog", ".", "<unk>"]
TEXTS = ["a fox", "the lazy dog sleeps", "x"]
NUM_TOKENS = 12


def model_of(vocabulary_size, **changes):
    """A model whose next token is hardly ever a tie."""
    config = toy_experiment(model={"vocabulary_size": vocabulary_size, **changes}).model
    model = create_model(config, dtype="float32")
    for index, variable in enumerate(model.weights):
        drawn = np.random.default_rng(index).normal(scale=0.7, size=variable.shape)
        variable.assign(drawn.astype("float32"))
    return model


def words(**rule):
    mark = {"add_eos": "<eos>", "add_double_eos": "<S>"}
    marks = [mark[name] for name in rule]
    tokens = [*marks, *WORDS]
    return WordTokenizer(
        tokens, WordRule(**rule), eos_token=next(iter(marks), None), unknown_token="<unk>"
    )


def functions(model, tokenizer, **completion):
    """The signatures as functions, before they are written."""
    options = ExportOptions()
    completion = GenerationConfig(**{"max_tokens": NUM_TOKENS, **completion})
    excluded = excluded_tokens(tokenizer, completion.allow_unknown)
    weights = ServedWeights(model.weights, "float32")
    served = ServedModel(model, weights, options.num_candidates, excluded)
    memory = WireMemory(model.config, tf.float32)
    root = tf.Module()
    found = create_signatures(root, served, memory, options, completion, tokenizer)
    return found


def completed(functions, texts):
    answer = functions["complete"](tf.constant([text.encode() for text in texts]))
    assert list(answer) == ["texts"]
    return [text.decode() for text in answer["texts"].numpy().tolist()]


@pytest.fixture(scope="module")
def model():
    return model_of(27, memory_length=12)


@pytest.fixture(scope="module")
def lm(model):
    return TransformerXLCausalLM(model, CHARACTERS)


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0.7},
        *map(
            slow_case,
            (
                {"temperature": 0.0},
                {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.1},
                {"temperature": 0.9, "repetition_penalty": 1.7},
            ),
        ),
    ],
    ids=str,
)
def test_each_text_is_continued_as_by_the_model_alone(lm, settings):
    found = completed(functions(lm.model, CHARACTERS, seed=7, **settings), TEXTS)
    settings |= {"max_tokens": NUM_TOKENS, "strip_prompt": True, "seed": 7}
    assert found == lm.generate(TEXTS, **settings)
    assert all(len(text) == NUM_TOKENS for text in found)


@pytest.mark.slow
def test_a_text_ends_before_a_stop(lm):
    settings = {"max_tokens": NUM_TOKENS, "strip_prompt": True, "temperature": 0.0}
    whole = [lm.generate(text, **settings) for text in TEXTS]
    # Of one token, of several, and what a pattern would read otherwise.
    stop = (whole[0][3], whole[1][4:7], "[a-z]")
    found = completed(functions(lm.model, CHARACTERS, temperature=0.0, stop=stop), TEXTS)
    assert found == [lm.generate(text, stop=stop, **settings) for text in TEXTS]
    assert found[0] != whole[0] and found[1] != whole[1]


@pytest.mark.parametrize("rule", [*map(slow_case, ({}, {"add_double_eos": True}))], ids=str)
def test_lines_of_words_go_on_and_sentences_end(rule):
    tokenizer = words(**rule)
    model = model_of(tokenizer.vocabulary_size, memory_length=12)
    lm = TransformerXLCausalLM(model, tokenizer)
    texts = ["a fox", "the dog\nsleeps ", "a fox sleeps .\n", "dog\r\nfox\r", "\n", "unheard of"]
    if not rule:
        texts.remove("\n")
    settings = {"max_tokens": NUM_TOKENS, "strip_prompt": True, "temperature": 0.0}
    found = completed(functions(model, tokenizer, temperature=0.0), texts)
    assert found == [lm.generate(text, **settings) for text in texts]


def test_unknown_words_are_read_and_not_written():
    tokenizer = words()
    model = model_of(tokenizer.vocabulary_size, memory_length=12)
    lm = TransformerXLCausalLM(model, tokenizer)
    settings = {"max_tokens": 30, "temperature": 3.0, "top_p": 1.0, "seed": 3}
    allowed = lm.generate("unheard of", allow_unknown=True, strip_prompt=True, **settings)
    written = lm.generate("unheard of", strip_prompt=True, **settings)
    assert "<unk>" in allowed and "<unk>" not in written
    assert completed(functions(model, tokenizer, **settings), ["unheard of"]) == [written]
    assert "<unk>" not in lm.session(temperature=3.0, seed=3).write("unheard of", max_tokens=30)
    assert "<unk>" not in lm.generate("unheard of", max_tokens=9, sampler="beam")


@pytest.mark.slow
def test_bytes_that_are_no_text_are_replaced():
    model = model_of(256)
    lm = TransformerXLCausalLM(model, ByteTokenizer())
    found = completed(functions(model, ByteTokenizer(), temperature=0.0), ["a", "b\u00e9"])
    settings = {"max_tokens": NUM_TOKENS, "strip_prompt": True, "temperature": 0.0}
    assert found == [lm.generate(text, **settings) for text in ("a", "b\u00e9")]
    assert "\ufffd" in "".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_absolute_positions_take_texts_of_different_lengths(name):
    model = model_of(27, **VARIANTS[name])
    lm = TransformerXLCausalLM(model, CHARACTERS)
    simple = functions(model, CHARACTERS, top_p=0.8, seed=3, max_tokens=4)
    settings = {"max_tokens": 4, "strip_prompt": True, "seed": 3}
    expected = [lm.generate(text, top_p=0.8, **settings) for text in TEXTS]
    assert completed(simple, TEXTS) == expected
    together = simple["perplexity"](tf.constant(TEXTS[:2]))["nats"]
    alone = [simple["perplexity"](tf.constant([text]))["nats"][0] for text in TEXTS[:2]]
    np.testing.assert_allclose(together, alone, rtol=1e-5)


@pytest.mark.slow
def test_a_request_twice_gives_two_texts_unless_it_is_said_otherwise(lm):
    fresh = functions(lm.model, CHARACTERS, max_tokens=40)
    first, second, third = completed(fresh, ["a fox", "a fox", "a fox"])
    assert len({first, second, third, *completed(fresh, ["a fox"])}) == 4
    fixed = functions(lm.model, CHARACTERS, max_tokens=40, seed=2)
    assert len(set(completed(fixed, ["a fox", "a fox"]) + completed(fixed, ["a fox"]))) == 1


def test_perplexity_is_that_of_the_model(lm):
    texts = [*TEXTS[:2], "ab", "the quick brown fox jumps over the lazy dog " * 3]
    found = functions(lm.model, CHARACTERS)["perplexity"](tf.constant(texts))
    scores = [lm.score(text) for text in texts]
    np.testing.assert_allclose(found["nats"], [each.total_nats for each in scores], rtol=1e-5)
    np.testing.assert_array_equal(found["tokens"], [len(text) - 1 for text in texts])
    np.testing.assert_allclose(found["perplexity"], [each.perplexity for each in scores], rtol=1e-4)
    lines = words(add_eos=True)
    model = model_of(lines.vocabulary_size)
    found = functions(model, lines)["perplexity"](tf.constant(["the dog"]))
    expected = TransformerXLCausalLM(model, lines).score("the dog")
    np.testing.assert_allclose(found["nats"][0], expected.total_nats, rtol=1e-5)
    assert found["tokens"][0] == 2  # the end of the line is one


@pytest.mark.slow
def test_without_a_tokenizer_token_ids_are_continued(model):
    simple = functions(model, None, temperature=0.0)
    assert next(iter(simple)) == "complete_ids" and "complete" not in simple
    prompts = random_ids(2, 9, vocabulary_size=27)
    expected, _ = txl_tf.generate(model, prompts, max_tokens=NUM_TOKENS, temperature=0.0)
    found = simple["complete_ids"](tf.constant(prompts))
    np.testing.assert_array_equal(found["token_ids"], expected)


def test_a_model_without_memory_scores_by_default():
    model = model_of(27, recurrence=False)
    assert next(iter(functions(model, CHARACTERS))) == "perplexity"
    assert next(iter(functions(model, None))) == "score"


@pytest.mark.slow
def test_requests_that_cannot_be_answered_are_refused(lm):
    simple = functions(lm.model, CHARACTERS)
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
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"token_ids\[0, 1\] is 27"):
        pytest.fail(f"{functions(lm.model, None)['complete_ids'](tf.constant([[1, 27]]))}")


def test_options_that_do_not_fit_the_export_are_refused(model, tmp_path):
    for options, message in (
        ({"max_tokens": 2000}, "max_output_tokens"),
        ({"stop": (".",)}, "needs a tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            export_saved_model(model, tmp_path / "1", {}, completion=GenerationConfig(**options))
    assert list(tmp_path.iterdir()) == []
