"""Windows score every token once, each with as much before it as they say."""

import numpy as np
import pytest
from keras import ops

from pipelines.analysis.ablation_worker import evaluate_windows, window_batches
from txl_tf.config.model import ModelConfig
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.models.transformer_xl import TransformerXL


def text_of(num_tokens, vocabulary_size):
    tokens = np.random.default_rng(7).integers(0, vocabulary_size, num_tokens).astype(np.int32)
    sizes = {"num_bytes": 3 * num_tokens, "num_characters": num_tokens, "num_words": num_tokens}
    return tokens, EvaluationText.of_tokens("valid", tokens, **sizes)


@pytest.mark.parametrize("window_length", [6, 8, 24, 99])
@pytest.mark.parametrize("stride", [1, 5, 6])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_every_target_is_scored_once_with_the_window_s_length_before_it(
    window_length, stride, batch_size
):
    # Token `i` is the number `i`, so that tokens tell where they are from.
    text = EvaluationText.of_tokens(
        "valid", np.arange(100, dtype=np.int32), num_bytes=1, num_characters=1, num_words=1
    )
    targets = []
    for batch in window_batches(text, window_length, stride, batch_size):
        assert batch.token_ids.shape == (batch_size, window_length)
        for row in range(batch_size):
            first = batch.first_scored[row]
            scored = batch.target_ids[row][batch.is_scored[row]]
            targets += scored.tolist()
            for place, target in enumerate(scored):
                num_before = first + place + 1
                # The token before each target is at the position that predicts it.
                assert batch.token_ids[row, num_before - 1] == target - 1
                assert num_before <= window_length
                assert num_before >= min(window_length - stride + 1, target)
    assert targets == [*range(1, 100)]


@pytest.mark.parametrize("position_encoding", ["transformer_xl", "learned"])
def test_losses_are_those_of_each_window_by_itself(position_encoding):
    config = ModelConfig(
        vocabulary_size=11,
        num_layers=2,
        hidden_dim=8,
        num_heads=2,
        head_dim=4,
        intermediate_dim=16,
        segment_length=4,
        memory_length=0,
        recurrence=False,
        position_encoding=position_encoding,
        num_positions=4 if position_encoding == "learned" else None,
        initializer_stddev=0.5,
    )
    model = TransformerXL(config)
    tokens, text = text_of(20, config.vocabulary_size)
    length = 6
    expected = 0.0
    for target in range(1, len(tokens)):
        # The first windows are cut off from what comes after, which nothing attends to.
        start = max(target - length, 0)
        window = tokens[start : start + length + 1]
        nll, _ = model.score(
            ops.convert_to_tensor(window[None, :-1]),
            ops.convert_to_tensor(window[None, 1:]),
            model.initial_memory(1),
        )
        expected += float(nll[0, target - start - 1])
    loss = evaluate_windows(
        model, text, window_length=length, stride=1, batch_size=4, jit_compile=False
    )
    assert loss.total_nats == pytest.approx(expected, rel=1e-5)
    assert loss.num_tokens == 19
    assert loss.num_bytes == pytest.approx(57)


def test_a_text_shorter_than_a_window_is_refused():
    _, text = text_of(8, 11)
    with pytest.raises(ValueError, match="longer than a window"):
        next(window_batches(text, window_length=8, stride=2, batch_size=1))
