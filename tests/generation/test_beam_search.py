"""Beam search against one with lists, which reads the whole texts for every token."""

import keras
import numpy as np

from tests.generation.models import expressive, logits_after, prompt
from txl_tf.generation import GenerationSession, generate
from txl_tf.samplers import BeamSampler, GreedySampler


def by_reading_again(model, row, num_tokens, num_beams, stop=(-1,)):
    """The best texts, best first; one that ends with the stop competes as it is."""
    num_stop, beams = len(stop), [([], 0.0)]
    for _ in range(num_tokens):
        candidates = [beam for beam in beams if beam[0][-num_stop:] == [*stop]]
        others = [beam for beam in beams if beam[0][-num_stop:] != [*stop]]
        logits = logits_after(model, [[*row, *text] for text, _ in others])
        for (text, score), log_probs in zip(others, keras.ops.log_softmax(logits), strict=True):
            totals = (score + log_probs).numpy().tolist()
            candidates += [([*text, token], total) for token, total in enumerate(totals)]
        beams = sorted(candidates, key=lambda beam: -beam[1])[:num_beams]
    return [text for text, _ in beams]


def test_beams_that_end_compete_with_those_that_continue(model):
    rows, sampler = [prompt(4, 1)[0], prompt(9, 1)[0]], BeamSampler(20, return_all_beams=True)
    for stop, is_over in (
        ([4], None),
        ([4, 7], lambda rows: (rows[:, -2:] == [4, 7]).all(axis=1)),
    ):
        stops = () if is_over else stop
        session = GenerationSession(model, sampler, num_rows=2, stop_token_ids=stops)
        output = session.write(rows, max_tokens=3, is_over=is_over)
        assert output.shape == (2, 20, 3) and (output == -1).any()
        for row, beams in zip(rows, output, strict=True):
            texts = [beam[beam >= 0].tolist() for beam in beams]
            assert texts == by_reading_again(model, row, 3, 20, stop)


def test_memory_goes_with_the_best_beam(model):
    row, further = prompt(6, 1)[0], prompt(3, 1)[0]
    sampler = BeamSampler(4, return_all_beams=True)
    session = GenerationSession(model, sampler, num_rows=1, jit_compile=False)
    beams = session.write([row], max_tokens=9)[0]
    assert beams.tolist() == by_reading_again(model, row, 9, 4)
    more = session.write([further], max_tokens=2)[0]
    text = np.concatenate([row, beams[0], further])
    assert more.tolist() == by_reading_again(model, text, 2, 4)


def test_one_beam_is_greedy_and_no_token_is_written_twice_under_a_large_penalty():
    model = expressive(num_layers=2)
    options = {"max_tokens": 8, "repetition_penalty": 1e6}
    output, _ = generate(model, [[4, 7]], sampler=BeamSampler(3), **options)
    assert len({4, 7, *output[0].tolist()}) == 10
    # One row that XLA compiles is read by the loop over stacked layers.
    one, _ = generate(model, [[4, 7]], sampler=BeamSampler(1), jit_compile=True, **options)
    greedy, _ = generate(model, [[4, 7]], sampler=GreedySampler(), **options)
    np.testing.assert_array_equal(one, greedy)
