"""Evaluation with windows that overlap, against loops over the oracle's windows."""

import functools

import numpy as np
import pytest

from tests import reference_variants
from tests.models.variants import config_of, made
from tests.small_models import arrays_of
from tests.toy_batches import strategy_of
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import LSTMConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.reading_order import EvaluationWindows
from txl_tf.evaluation.result import EvaluationText

WITHOUT_MEMORY = {"recurrence": False, "memory_length": 0}


def text_of(tokens, starts=None):
    count = len(tokens)
    starts = np.arange(count) == 0 if starts is None else starts
    return EvaluationText(
        name="valid",
        num_tokens=count,
        read_tokens=lambda start, stop: tokens[start:stop],
        read_document_starts=lambda start, stop: starts[start:stop],
        num_bytes=3 * count,
        num_characters=count,
        num_words=count,
    )


def drawn(count, vocabulary_size=11):
    return np.random.default_rng(count).integers(0, vocabulary_size, count).astype(np.int32)


def evaluate(model, text, *, strategy=None, masks_documents=False, **settings):
    """The result, and the nats of every token."""
    evaluator = Evaluator(
        model.config,
        EvaluationConfig(**settings),
        jit_compile=False,
        masks_documents=masks_documents,
        strategy=strategy,
    )
    evaluator.load_arrays(arrays_of(model))
    nats = np.full(text.num_tokens, np.nan)
    return evaluator.evaluate(text, step=3, observe=functools.partial(np.put, nats)), nats


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
    model = made(position_encoding, **WITHOUT_MEMORY)
    tokens = drawn(num_tokens)
    settings = {"segment_length": length, "window_stride_tokens": stride}
    result, nats = evaluate(model, text_of(tokens), batch_size=batch_size, **settings)
    expected = looped_nats(model, tokens, length, stride)
    assert np.isnan(nats[0]) and not np.any(np.isnan(nats[1:]))
    np.testing.assert_allclose(nats[1:], expected[1:], atol=1e-5)
    assert result.total_nats == pytest.approx(np.nansum(expected), rel=1e-5)
    assert (result.num_tokens, result.num_bytes) == (num_tokens - 1, 3 * (num_tokens - 1))
    assert result.window_stride_tokens == stride
    assert f"windows of {length}, stride {stride}, memory 0" in result.conditions


def test_replicas_share_the_windows_and_documents_stay_apart():
    model = made(**WITHOUT_MEMORY)
    tokens, starts = drawn(20), np.isin(np.arange(20), (0, 7, 9))
    text, settings = text_of(tokens, starts), {"segment_length": 6, "window_stride_tokens": 2}
    _, alone = evaluate(model, text, batch_size=3, masks_documents=True, **settings)
    _, shared = evaluate(
        model, text, batch_size=3, masks_documents=True, strategy=strategy_of(2), **settings
    )
    np.testing.assert_allclose(shared[1:], alone[1:], atol=1e-5)
    # Token 9 begins a document, which tokens 7 and 8 have no influence on.
    changed = tokens.copy()
    changed[[7, 8]] = (tokens[[7, 8]] + 1) % 11
    _, other = evaluate(model, text_of(changed, starts), masks_documents=True, **settings)
    np.testing.assert_allclose(other[10:], alone[10:], atol=1e-5)
    _, together = evaluate(model, text_of(changed, starts), **settings)
    assert np.max(np.abs(together[10:] - alone[10:])) > 1e-3


@pytest.mark.parametrize("length", [6, 8, 24, 99, 150])
@pytest.mark.parametrize("stride", [1, 5, 6])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_every_target_is_scored_once_after_a_full_window(length, stride, batch_size):
    # Token `i` is the number `i`, so that tokens tell where they are from.
    text = text_of(np.arange(100, dtype=np.int32))
    windows = EvaluationWindows(100, batch_size, length, stride)
    targets, batches = [], list(windows.batches(text))
    assert len(batches) == windows.num_steps
    for batch in batches:
        assert batch.token_ids.shape == (windows.batch_size, length)
        for row, is_scored in enumerate(batch.is_scored):
            targets += batch.target_ids[row, is_scored].tolist()
            np.testing.assert_array_equal(
                batch.places[row, is_scored], batch.target_ids[row, is_scored]
            )
            for position, target in zip(
                batch.positions[row, is_scored], batch.target_ids[row, is_scored], strict=True
            ):
                # The token before each target is at the position that predicts it.
                assert batch.token_ids[row, position] == target - 1
                assert position + 1 >= min(length - stride + 1, target)
    assert targets == [*range(1, 100)]


def test_a_sample_of_windows_is_spread_evenly():
    text = text_of(np.arange(1000, dtype=np.int32))
    batches = list(EvaluationWindows(1000, 7, 8, 5, most_targets=100).batches(text))
    targets = np.concatenate([batch.target_ids[batch.is_scored] for batch in batches])
    assert len(targets) == 100 and targets[0] == 1 and targets[-1] > 940
    assert set(np.diff(targets[::5])) == {50}


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (config_of(), {}, "needs a model without memory"),
        (config_of(memory_length=0), {"memory_length": 5}, "needs a model without memory"),
        (
            LSTMConfig(vocabulary_size=11, num_layers=1, hidden_dim=4, segment_length=4),
            {},
            "needs a model without memory",
        ),
        (config_of(**WITHOUT_MEMORY), {"segment_length": 2}, "at most the segment length"),
    ],
)
def test_windows_that_cannot_be_are_refused(config, settings, message):
    evaluation = EvaluationConfig(window_stride_tokens=3, **settings)
    with pytest.raises(ValueError, match=message):
        evaluation.check_windows(config)
    with pytest.raises(ValueError, match=message):
        Evaluator(config, evaluation)
