"""`ContinuationScorer` against the scores of whole texts and against greedy decoding."""

import numpy as np
import pytest

from tests.causal_lm.conftest import TOKENIZER, ids_of
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.causal_lm.continuation_scorer import Continuation, ContinuationScorer
from txl_tf.config.evaluation import EvaluationConfig

# Several segments, the border in the first one, in a later one and at the first token; the last
# text has more positions than are scored at once.
TEXTS = [("the quick brown fox jumps over the", " lazy dog"), ("a", " fox"), ("w", "hat a fox" * 9)]


def continuation(context, text):
    return Continuation(ids_of(context + text), len(context))


def test_nats_equal_the_nats_within_the_whole_text(lm):
    scorer = ContinuationScorer(lm.model, 2)
    check_scores(lm, scorer)
    # Also with the lengths of evaluations in place of the model's.
    longer = EvaluationConfig(segment_length=7, memory_length=21)
    lm = TransformerXLCausalLM(lm.model, TOKENIZER, longer)
    evaluator = lm.evaluator()
    check_scores(lm, ContinuationScorer(evaluator.model, 2, evaluator.config))


def check_scores(lm, scorer):
    scores = dict(scorer([continuation(*each) for each in TEXTS]))
    assert sorted(scores) == [0, 1, 2]
    for place, (context, text) in enumerate(TEXTS):
        expected = lm.score(context + text).nats[len(context) :]
        np.testing.assert_allclose(scores[place].nats, expected, rtol=2e-5)
        assert scores[place].nats.sum() == pytest.approx(expected.sum(), rel=1e-6)


def test_a_continuation_is_greedy_if_greedy_decoding_writes_it(lm):
    context = "the quick brown fox"
    text = lm.generate(context, max_tokens=9, sampler="greedy", strip_prompt=True)
    other = "b" if text[-1] == "a" else "a"
    scorer = ContinuationScorer(lm.model, 4)
    pairs = [
        continuation(context, each) for each in (text, text[:-1] + other, other + text[1:], text[0])
    ]
    scores = dict(scorer(pairs))
    assert [scores[i].is_greedy for i in range(4)] == [True, False, text[0] == other, True]


def test_a_continuation_without_tokens_costs_nothing(lm):
    pairs = [Continuation(ids_of("abc"), 3), continuation("ab", "c")]
    scores = dict(ContinuationScorer(lm.model, 8)(pairs))
    assert scores[0].nats.shape == (0,) and scores[0].is_greedy
    assert scores[1].nats.shape == (1,)
    assert list(ContinuationScorer(lm.model)([])) == []
