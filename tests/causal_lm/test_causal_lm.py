"""`TransformerXLCausalLM` against the layers below it: tokens, scores, folders, sessions."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from tests.causal_lm.conftest import TOKENIZER, ids_of
from tests.generation.models import expressive
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.errors import OutputExistsError, UsageError
from txl_tf.samplers import BeamSampler, GreedySampler, RandomSampler

GREEDY = {"sampler": "greedy"}
PROMPTS = ["a fox", "the lazy dog sleeps", "x"]


def test_a_name_an_object_and_a_compiled_sampler_give_the_tokens_of_generate(lm, model):
    text = lm.generate("a fox", max_tokens=9, sampler="greedy", strip_prompt=True)
    expected, _ = txl_tf.generate(
        model, [ids_of("a fox")], max_tokens=9, sampler=GreedySampler(), jit_compile=False
    )
    assert text == TOKENIZER.decode_text(expected[0])
    other = TransformerXLCausalLM(model, TOKENIZER)
    for sampler in ("greedy", RandomSampler(top_k=1)):
        other.compile(sampler=sampler)
        assert other.generate("a fox", max_tokens=9, seed=3) == "a fox" + text


def test_max_length_counts_the_prompt(lm):
    texts = lm.generate(PROMPTS, 12, sampler="greedy")
    assert [len(text) for text in texts] == [12, len(PROMPTS[1]), 12]
    alone = [lm.generate(each, max_tokens=11, sampler="greedy") for each in PROMPTS]
    assert texts == [each[: max(12, len(p))] for each, p in zip(alone, PROMPTS, strict=True)]
    with pytest.raises(ValueError, match=r"Received: max_length=12, max_tokens=11$"):
        lm.generate(PROMPTS, 12, max_tokens=11)


def test_the_same_seed_writes_the_same_text_and_another_one_another(lm):
    texts = [lm.generate("a", max_tokens=24, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert lm.last_seed == 2
    fresh = lm.generate("a", max_tokens=24)
    assert fresh == lm.generate("a", max_tokens=24, seed=lm.last_seed) != texts[0]


def test_a_text_is_the_same_in_any_row_and_samples_differ(lm):
    settings = {"max_tokens": 12, "seed": 1, "temperature": 1.3}
    together = lm.generate(PROMPTS, **settings)
    assert together == [lm.generate(each, **settings) for each in PROMPTS]
    samples = lm.generate(PROMPTS, num_samples=2, **settings)
    assert samples[::2] == together
    assert all(a != b for a, b in zip(samples[::2], samples[1::2], strict=True))
    session = lm.session(seed=1, temperature=1.3)
    assert PROMPTS[0] + session.write(PROMPTS[0], max_tokens=12) == together[0]
    assert session.seed == 1


def test_an_own_sampler_chooses_after_penalties_and_bias(lm):
    settings = {"max_tokens": 9, "frequency_penalty": 0.8, "logit_bias": {4: 2, 5: -100}}
    expected = lm.generate(PROMPTS, sampler="greedy", **settings)
    own = lm.generate(PROMPTS, sampler=lambda logits, seeds: tf.argmax(logits, axis=-1), **settings)
    assert own == expected


def test_beams_equal_those_of_a_prompt_alone_and_all_are_returned_on_request(lm):
    beams, best = BeamSampler(3, return_all_beams=True), BeamSampler(3)
    alone = [lm.generate(each, 24, sampler=beams) for each in PROMPTS]
    assert lm.generate(PROMPTS, 24, sampler=beams) == [*itertools.chain(*alone)]
    assert lm.generate(PROMPTS, 24, sampler=best) == [texts[0] for texts in alone]
    assert len({*alone[0]}) == 3


def test_a_text_ends_before_a_stop_text_or_token(lm):
    drawn = {"max_tokens": 12, "sampler": "random", "seed": 5, "strip_prompt": True}
    full = lm.generate("a fox", **drawn)
    place = next(i for i in range(1, 12) if full[i] not in full[:i])
    stop_token_ids = TOKENIZER.encode(full[place]).tolist()
    assert lm.generate("a fox", **drawn, stop_token_ids=stop_token_ids) == full[:place]
    assert lm.generate("a fox", **drawn, stop=full[place]) == full[:place]
    stop = full[4:6]
    assert lm.generate("a fox", **drawn, stop=[stop, "never"]) == full[: full.find(stop)]
    # The stop text that is complete first ends the text, in every method that writes text.
    stops = [full[1:9], full[5:7]]
    expected = full[: full.find(stops[1])]
    assert lm.generate("a fox", **drawn, stop=stops) == expected != full[:1]
    ids = lm.generate(ids_of("a fox"), **drawn, stop=stops)
    assert TOKENIZER.decode_text(ids) == expected
    session = lm.session(sampler="random", seed=5, stop=stops)
    assert session.write("a fox", max_tokens=12) == expected


def test_a_session_remembers_the_text_up_to_a_stop_text(lm):
    settings = {**GREEDY, "strip_prompt": True}
    full = lm.generate("bad", max_tokens=12, **settings)
    stop = full[4:7]
    session = lm.session(**GREEDY, stop=stop)
    text = session.write("bad", max_tokens=12)
    assert text == full[: full.find(stop)]
    expected = lm.generate(f"bad{text} cab", max_tokens=5, stop=stop, **settings)
    assert session.write(" cab", max_tokens=5) == expected != ""


def test_scores_match_the_model(lm, model):
    text = "the quick brown fox jumps over the lazy dog"
    score, ids, length = lm.score(text), ids_of(text), model.config.segment_length
    memory, expected = model.initial_memory(1), []
    for start in range(0, len(ids) - 1, length):
        piece = ids[None, start : start + length + 1]
        nats, memory = model.score(piece[:, :-1], piece[:, 1:], memory)
        expected.extend(nats[0])
    assert np.isnan(score.nats[0])
    np.testing.assert_allclose(score.nats[1:], expected, rtol=1e-5)
    assert score.total_nats == pytest.approx(float(np.sum(expected)), rel=1e-6)
    assert "".join(score.pieces) == text
    assert score.token_ids.tolist() == ids.tolist()
    assert score.perplexity == pytest.approx(np.exp(np.mean(expected)), rel=1e-5)
    both = lm.score([text, text[:9]])
    assert both[0].total_nats == score.total_nats
    np.testing.assert_allclose(both[1].nats[1:], score.nats[1:9], rtol=1e-5)


WORDS = WordTokenizer([f"word{number}" for number in range(13)], WordRule())


@pytest.mark.parametrize(
    ("prompt", "settings"), [("a fox", {"sampler": "random", "seed": 5}), ("word3", GREEDY)]
)
def test_a_session_continues_a_text_as_if_it_had_not_ended(lm, prompt, settings):
    """Also words, which have a space before them."""
    lm = TransformerXLCausalLM(expressive(), WORDS) if prompt == "word3" else lm
    text = lm.generate(prompt, max_tokens=10, strip_prompt=True, **settings)
    session = lm.session(**settings)
    first = session.write(prompt, max_tokens=6)
    assert first + "".join(session.stream(max_tokens=4)) == text


def test_saved_and_loaded_it_is_the_same(lm, tmp_path):
    lm.save_to_preset(tmp_path / "saved")
    loaded = txl_tf.load(tmp_path / "saved")
    assert type(loaded) is TransformerXLCausalLM
    assert loaded.tokenizer.fingerprint == lm.tokenizer.fingerprint
    for part in (
        f"<TransformerXL of {lm.model.count_params():,} parameters: vocabulary_size=27",
        "memory_length=12>, tokenizer=CharacterTokenizer(vocabulary_size=27), step=0",
        f"folder={str(tmp_path / 'saved')!r})",
    ):
        assert part in repr(loaded)
    greedy = {"max_tokens": 6, "sampler": "greedy"}
    assert loaded.generate("a fox", **greedy) == lm.generate("a fox", **greedy)
    with pytest.raises(OutputExistsError):
        lm.save_to_preset(tmp_path / "saved")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda lm: lm.generate(3), ValueError, "`inputs` must be a str, a vector.*inputs=3"),
        (lambda lm: lm.generate(["a", 3]), ValueError, "Received: inputs=.'a', 3."),
        (lambda lm: lm.generate([]), ValueError, "a list of these that is not empty"),
        (lambda lm: lm.generate(""), UsageError, "The prompt has no tokens"),
        (lambda lm: lm.generate("A"), UsageError, "not in the vocabulary"),
        (lambda lm: lm.generate("a", sampler="gredy"), ValueError, "Did you mean greedy"),
        (lambda lm: lm.generate("a", stop=""), ValueError, "`stop` must be.*none empty"),
        (lambda lm: lm.generate("a", top_p=0.0), ValueError, "`top_p` must be in .0, 1."),
        (lambda lm: lm.session(temprature=1.0), ValueError, "Did you mean temperature"),
        (lambda lm: lm.session(sampler="greedy", min_p=0.1), ValueError, "or `min_p`"),
        (lambda lm: lm.generate("a", sampler=3), TypeError, "name or an object"),
        (lambda lm: lm.generate("abc", 3), ValueError, "larger than the shortest prompt"),
        (lambda lm: lm.generate("a", max_tokens=0), ValueError, "`max_tokens` must be positive"),
        (lambda lm: lm.score("a"), ValueError, "at least 2 tokens"),
        (lambda lm: lm.session(sampler="beam"), ValueError, "must not be a beam search"),
    ],
)
def test_a_wrong_argument_is_refused_by_one_sentence(lm, call, error, message):
    with pytest.raises(error, match=message) as refused:
        call(lm)
    assert "\n" not in str(refused.value) or error is UsageError


def test_what_needs_a_tokenizer_says_where_to_get_it(model):
    lm = TransformerXLCausalLM(model)
    for call in (lm.generate, lm.score, lm.embed, lambda _: lm.session()):
        with pytest.raises(ValueError, match="folder of the prepared data set"):
            call("ab")
    with pytest.raises(ValueError, match="must have 27 tokens"):
        TransformerXLCausalLM(model, CharacterTokenizer(["a"]))
    with pytest.raises(TypeError, match="folder of a prepared data set"):
        TransformerXLCausalLM.from_preset("enwik8_base", tokenizer=3)


def test_token_ids_are_accepted_and_returned(lm, model):
    greedy = {"max_tokens": 9, "sampler": "greedy"}
    expected = [ids_of(text) for text in lm.generate(PROMPTS[:2], **greedy)]
    rows = [ids_of(text).tolist() for text in PROMPTS[:2]]
    for some in (lm, TransformerXLCausalLM(model)):
        np.testing.assert_array_equal(some.generate(rows[0], **greedy), expected[0])
        for ids, expected_ids in zip(some.generate(rows, **greedy), expected, strict=True):
            np.testing.assert_array_equal(ids, expected_ids)
        assert some.score(rows[1]).total_nats == lm.score(PROMPTS[1]).total_nats
        np.testing.assert_array_equal(some.embed(np.array(rows[1])), lm.embed(PROMPTS[1]))
        with pytest.raises(ValueError, match=r"\[0, 27\)"):
            some.generate([27])
    with pytest.raises(ValueError, match="`stop` needs a tokenizer"):
        TransformerXLCausalLM(model).generate(rows[0], stop="1")
    stop = lm.tokenizer.decode(expected[0][-1:])
    end = lm.generate(rows[0], **greedy, stop=stop, strip_prompt=True).tolist()
    assert end == expected[0][5:].tolist()[: len(end)] and expected[0][-1] not in end
    assert lm.score(rows[1]).num_bytes == lm.score(PROMPTS[1]).num_bytes
    assert TransformerXLCausalLM(model).score(rows[1]).bits_per_byte is None
    with pytest.raises(ValueError, match="needs a tokenizer"):
        TransformerXLCausalLM(model).generate("text")
