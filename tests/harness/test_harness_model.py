"""`HarnessModel`, compared with scores and texts of the library; needs the extra `harness`."""

import numpy as np
import pytest

pytest.importorskip("lm_eval")
import lm_eval.__main__
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.utils import get_rolling_token_windows

from tests.small_models import toy_experiment, with_drawn_weights, write_run
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.errors import DataDamagedError, InputMissingError, UsageError
from txl_tf.harness import HarnessModel
from txl_tf.harness.__main__ import main
from txl_tf.models import create_model

pytestmark = pytest.mark.slow

TOKENIZER = CharacterTokenizer(list("abcdefghijklmnopqrstuvwxyz \n"))
TEXT = "the quick brown fox jumps over the lazy dog and sleeps"


@pytest.fixture(scope="module")
def lm():
    config = toy_experiment().model.replace(
        vocabulary_size=28, segment_length=5, memory_length=12, num_layers=2
    )
    model = with_drawn_weights(create_model(config, dtype="float32"), scale=0.7)
    return TransformerXLCausalLM(model, TOKENIZER)


@pytest.fixture(scope="module")
def harness(lm):
    return HarnessModel(lm, batch_size=3)


def requests(kind, *arguments):
    return [Instance(kind, {}, each, place) for place, each in enumerate(arguments)]


def scores(harness, *pairs):
    return harness.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)


def documents(harness, *texts):
    instances = requests("loglikelihood_rolling", *((each,) for each in texts))
    return harness.loglikelihood_rolling(instances, disable_tqdm=True)


def texts(harness, *pairs):
    return harness.generate_until(requests("generate_until", *pairs), disable_tqdm=True)


def test_a_continuation_has_the_nats_after_its_whole_context(lm, harness):
    nats = lm.score(TEXT).nats
    borders = (1, 3, 4, 19, 49)
    result = scores(harness, *((TEXT[:each], TEXT[each:]) for each in borders))
    # White space at the end of a context is scored, as in the harness's own models.
    expected = [-nats[len(TEXT[:each].rstrip()) :].sum() for each in borders]
    np.testing.assert_allclose([each for each, _ in result], expected, rtol=1e-6)


def test_without_a_context_the_first_token_is_it(lm, harness):
    nats = lm.score(TEXT).nats
    after_space = lm.score(" fox").nats
    result = scores(harness, ("", TEXT), (" ", "fox"), ("", "a"), ("", ""))
    assert result[0][0] == pytest.approx(-nats[1:].sum(), rel=1e-6)
    assert result[1][0] == pytest.approx(-after_space[1:].sum(), rel=1e-6)
    assert result[2:] == [(0.0, True), (0.0, True)]


def test_text_of_greedy_decoding_counts_as_greedy(harness):
    (text,) = texts(harness, (TEXT, {"max_gen_toks": 6}))
    assert len(text) == 6
    other = "a" if text[-1] != "a" else "b"
    result = scores(harness, (TEXT, text), (TEXT, text[:-1] + other))
    assert [is_greedy for _, is_greedy in result] == [True, False]


def test_a_window_limits_the_context(lm):
    cut = HarnessModel(lm, max_length=8)
    result = scores(cut, (TEXT[:41], TEXT[41:45]), (TEXT[:3], TEXT[3:5]))
    expected = [-lm.score(TEXT[36:45]).nats[-4:].sum(), -lm.score(TEXT[:5]).nats[3:].sum()]
    np.testing.assert_allclose([each for each, _ in result], expected, rtol=1e-6)
    with pytest.raises(UsageError, match="has 9 tokens, more than max_length 8"):
        scores(cut, (TEXT[:3], TEXT[3:12]))


SHARE = len(TEXT) / (len(TEXT) - 1)
"""The first token counts as the mean of the others."""


@pytest.mark.parametrize("max_length", [1, 7, 100])
def test_a_document_is_read_in_the_windows_of_the_harness(lm, max_length):
    """The expected nats come from windows that are read separately and scored at their ends."""
    ids = TOKENIZER.encode(TEXT).tolist()
    total = 0.0
    for before, scored in get_rolling_token_windows(ids[1:], ids[0], max_length, 1):
        window = TOKENIZER.decode_text([*before, scored[-1]])
        total += lm.score(window).nats[-len(scored) :].sum()
    harness = HarnessModel(lm, max_length=max_length)
    nats = pytest.approx(-total * SHARE, rel=1e-6)
    assert documents(harness, TEXT, "a", "") == [nats, 0.0, 0.0]
    if max_length == 100:
        assert total == pytest.approx(lm.score(TEXT).total_nats, rel=1e-6)


def test_a_text_equals_that_of_generate_and_ends_before_a_stop(lm, harness):
    settings = {"max_gen_toks": 12, "until": []}
    contexts = ["a fox", "the lazy dog", "x", "sleeps"]
    result = texts(harness, *((each, settings) for each in contexts))
    for context, text in zip(contexts, result, strict=True):
        expected = lm.generate(context, max_tokens=12, sampler="greedy", strip_prompt=True)
        assert text == expected
    stop = result[0][4:6]
    stopped = texts(harness, ("a fox", {**settings, "until": [stop, "zzzz"]}))
    assert stopped == [result[0][: result[0].find(stop)]]
    assert texts(harness, ("a fox", {**settings, "do_sample": False, "temperature": 0.7})) == [
        result[0]
    ]


def test_drawn_texts_differ_and_a_seed_draws_them_again(lm):
    settings = {"max_gen_toks": 12, "do_sample": True, "temperature": 0.9}
    pairs = [("a fox", settings)] * 3
    first, again, other = (
        texts(HarnessModel(lm, batch_size=2, seed=seed), *pairs) for seed in (5, 5, 50)
    )
    assert first == again != other
    assert len(set(first)) == 3


@pytest.mark.parametrize("kind", ["run", "converted"])
def test_a_folder_of_any_kind_is_a_model(lm, kind, tmp_path):
    _, data = write_run(tmp_path, TOKENIZER, "the moon\n" * 40)
    lm.save_to_preset(tmp_path / "converted")
    inputs = {"pretrained": str(tmp_path / kind)}
    inputs |= {"step": "best"} if kind == "run" else {"tokenizer": str(data)}
    added = {"device": "cuda:0", "batch_size": 1, "max_batch_size": None}
    harness = get_model("txl").create_from_arg_obj(inputs, added)
    text = "the moon follows the long road"
    expected = harness._lm.score(text)
    share = len(expected.nats) / (len(expected.nats) - 1)
    assert documents(harness, text) == [pytest.approx(-expected.total_nats * share, rel=1e-6)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"max_length": 0}, "max_length must be a positive int"),
        ({"batch_size": "auto"}, "must be a positive number"),
    ],
)
def test_wrong_arguments_are_named(lm, arguments, message):
    with pytest.raises(UsageError, match=message):
        HarnessModel(lm, **arguments)


def test_requests_that_cannot_be_read_or_honoured_are_refused(lm, harness):
    with pytest.raises(UsageError, match="no tokenizer"):
        HarnessModel(TransformerXLCausalLM(lm.model))
    with pytest.raises(UsageError, match=r"top_kk is not supported\. Did you mean top_k"):
        texts(harness, ("a", {"top_kk": 2}))
    with pytest.raises(DataDamagedError, match="line 2, byte 4"):
        documents(harness, "the\n7")


def test_the_command_line_ends_with_the_lines_and_the_code_of_an_error(monkeypatch, capsys):
    folder = "absent"
    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", lambda: HarnessModel(folder))
    assert main() == InputMissingError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 3 and folder in lines
