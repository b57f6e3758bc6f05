"""Evaluation with windows that overlap, against loops over the oracle's windows."""

import numpy as np
import pytest

from tests import reference_variants
from tests.evaluation.test_evaluator import evaluator_of, nats_of
from tests.models.variants import config_of, made
from tests.small_models import text_of, toy_tokens
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.evaluation.evaluator import Evaluator

WITHOUT_MEMORY = {"recurrence": False, "memory_length": 0}


def looped_nats(model, tokens, length, stride):
    """Nats of every target but the first token, from one window of the oracle at a time."""
    weights, config = reference_variants.model_weights(model), model.config
    nats, num_targets = np.full(len(tokens), np.nan), len(tokens) - 1
    for first in range(0, num_targets, stride):
        last = min(first + stride, num_targets)
        # Full windows: shifted where the text begins or ends, padded where it is too short.
        stop = max(first + stride, min(length, num_targets))
        start = max(min(stop, num_targets) - length, 0)
        window = tokens[start : start + length + 1]
        padded = np.pad(window, (0, length + 1 - len(window)))[None]
        states = [np.zeros((1, 0, config.hidden_dim))] * config.num_layers
        nll, *_ = reference_variants.language_model(
            weights, config, padded[:, :-1], padded[:, 1:], states, [0]
        )
        nats[first + 1 : last + 1] = nll[0, first - start : last - start]
    return nats


@pytest.mark.parametrize(
    ("position_encoding", "num_tokens", "length", "stride", "batch_size"),
    [
        ("transformer_xl", 15, 4, 1, 4),
        ("transformer_xl", 12, 5, 3, 2),  # 11 targets: the last window scores two
        ("learned", 14, 4, 3, 9),
        ("shaw", 13, 6, 2, 1),
        ("learned", 4, 6, 2, 3),  # shorter than a window
    ],
)
def test_every_token_has_the_nats_of_its_window(
    position_encoding, num_tokens, length, stride, batch_size
):
    model, tokens = made(position_encoding, **WITHOUT_MEMORY), toy_tokens(num_tokens, 11)
    settings = {"segment_length": length, "window_stride_tokens": stride}
    result, nats = nats_of(evaluator_of(model, batch_size=batch_size, **settings), text_of(tokens))
    expected = looped_nats(model, tokens, length, stride)
    assert np.isnan(nats[0]) and not np.any(np.isnan(nats[1:]))
    np.testing.assert_allclose(nats[1:], expected[1:], atol=1e-5)
    assert result.total_nats == pytest.approx(np.nansum(expected), rel=1e-5)
    assert (result.num_tokens, result.num_bytes) == (num_tokens - 1, 3 * (num_tokens - 1))
    assert f"windows of {length}, stride {stride}, memory 0" in result.conditions


def test_replicas_share_the_windows_and_documents_stay_apart():
    model, tokens, starts = made(**WITHOUT_MEMORY), toy_tokens(20, 11), (0, 7, 9)
    settings = {"batch_size": 3, "segment_length": 6, "window_stride_tokens": 2}
    text = text_of(tokens, starts)
    _, alone = nats_of(evaluator_of(model, masks_documents=True, **settings), text)
    _, shared = nats_of(evaluator_of(model, masks_documents=True, replicas=2, **settings), text)
    np.testing.assert_allclose(shared[1:], alone[1:], atol=1e-5)
    # Token 9 begins a document, so tokens 7 and 8 do not influence the scores after it.
    changed = tokens.copy()
    changed[[7, 8]] = (tokens[[7, 8]] + 1) % 11
    text = text_of(changed, starts)
    _, apart = nats_of(evaluator_of(model, masks_documents=True, **settings), text)
    np.testing.assert_allclose(apart[10:], alone[10:], atol=1e-5)
    _, together = nats_of(evaluator_of(model, **settings), text)
    assert np.max(np.abs(together[10:] - alone[10:])) > 1e-3


def test_windows_need_a_model_without_memory_and_a_stride_within_them():
    for config, message in (
        (config_of(), "needs a model without memory"),
        (config_of(**WITHOUT_MEMORY, segment_length=2), "at most the segment length"),
    ):
        with pytest.raises(ValueError, match=message):
            Evaluator(config, EvaluationConfig(window_stride_tokens=3))
