"""Features of texts against the hidden states of the model, alone and side by side."""

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.small_models import small_config, with_drawn_weights
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.config.model import LSTMConfig
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.models import create_model
from txl_tf.models.transformer_xl import TransformerXL

TOKENIZER = CharacterTokenizer(list("abcdefghij "))
# Shorter than a segment, as long as one, and longer than a read.
TEXTS = ["a", "bad cab j", "face", "hi " * 48, "dig a big bag " * 3]
CONFIGS = {
    "relative": small_config(4, 6),
    "short_memory": small_config(4, 2, same_length=True),
    "sinusoidal": small_config(4, 6, position_encoding="sinusoidal"),
    "learned": small_config(4, 0, position_encoding="learned", num_positions=4, recurrence=False),
}


def drawn(config):
    return with_drawn_weights(create_model(config, dtype="float32"), scale=0.5)


@pytest.fixture(scope="module", params=["relative", *map(slow_case, list(CONFIGS)[1:])])
def lm(request):
    return TransformerXLCausalLM(drawn(CONFIGS[request.param]), TOKENIZER)


@pytest.fixture(scope="module")
def relative():
    return TransformerXLCausalLM(drawn(CONFIGS["relative"]), TOKENIZER)


def states_of(model, text):
    """The states of all layers, read with the model's own memory; segments are whole."""
    ids, length = TOKENIZER.encode(text).astype(np.int32), model.config.segment_length
    padded = np.pad(ids, (0, -len(ids) % length))[None]
    memory, segments = model.initial_memory(1), []
    for start in range(0, padded.shape[1], length):
        states, memory = model.hidden_states(padded[:, start : start + length], memory)
        segments.append(np.stack([np.asarray(each)[0] for each in states]))
    return np.concatenate(segments, axis=1)[:, : len(ids)]


def test_tokens_have_the_states_of_every_layer(lm):
    """In any batch of texts."""
    expected = [states_of(lm.model, text) for text in TEXTS]
    for layer, size in ((0, 8), (1, 1)):
        embedded = lm.embed(TEXTS, layer, "tokens", batch_size=size)
        for features, states in zip(embedded, expected, strict=True):
            assert features.dtype == np.float32 and len(states) == 3
            np.testing.assert_allclose(features, states[layer], rtol=1e-4, atol=1e-5)
    last = lm.embed(TEXTS[3], pooling="tokens")
    np.testing.assert_allclose(last, expected[3][2], rtol=1e-4, atol=1e-5)
    for layer in (-1, 2):
        np.testing.assert_array_equal(lm.embed(TEXTS[3], layer, "tokens"), last)


def test_pools_are_means_and_last_ones_of_tokens(relative):
    tokens = relative.embed(TEXTS, pooling="tokens")
    means = relative.embed(TEXTS)
    assert means.shape == (len(TEXTS), 8)
    np.testing.assert_allclose(
        means, [np.mean(each, axis=0, dtype=np.float64) for each in tokens], atol=2e-6
    )
    last = relative.embed(TEXTS, pooling="last")
    np.testing.assert_array_equal(last, [each[-1] for each in tokens])
    for each, segments in zip(tokens, relative.embed(TEXTS, pooling="segments"), strict=True):
        expected = [each[start : start + 4].mean(axis=0) for start in range(0, len(each), 4)]
        np.testing.assert_allclose(segments, expected, atol=1e-6)
    assert relative.embed(TEXTS[1]).shape == (8,)
    assert relative.embed([TEXTS[1]]).shape == (1, 8)


def test_a_recurrent_model_has_its_last_output():
    model = drawn(
        LSTMConfig(
            vocabulary_size=11, num_layers=2, hidden_dim=8, embedding_dim=8, segment_length=4
        )
    )
    lm = TransformerXLCausalLM(model, TOKENIZER)
    together = lm.embed(TEXTS, pooling="tokens")
    ids = TOKENIZER.encode(TEXTS[1]).astype(np.int32)[None]
    expected, _ = model(ids, model.initial_memory(1))
    np.testing.assert_allclose(together[1], np.asarray(expected)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(lm.embed(TEXTS[1], 2, "tokens"), together[1], atol=1e-6)
    with pytest.raises(ValueError, match="must be 2 or -1 for this model"):
        lm.embed("a", 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda lm: lm.embed("a", 3), ValueError, "`layer` must be 0 to 2.*layer=3"),
        (lambda lm: lm.embed("a", pooling="max"), ValueError, "`pooling` must be one of"),
        (lambda lm: lm.embed(["a", ""]), ValueError, "at least 1 token.*texts.1."),
        (lambda lm: lm.embed(b"a"), ValueError, "`token_ids` must be integers"),
        (lambda lm: lm.embed("z"), ValueError, "not in the vocabulary"),
    ],
)
def test_a_wrong_argument_is_refused(relative, call, error, message):
    with pytest.raises(error, match=message):
        call(relative)


def test_an_overridden_call_counts_in_features_and_text():
    """With `kwargs`, in which Keras passes no objects."""

    class Doubled(TransformerXL):
        def call(self, token_ids, memory, **kwargs):
            hidden, memory = super().call(token_ids, memory, **kwargs)
            return 2 * hidden, memory

    plain = drawn(CONFIGS["relative"])
    model = Doubled(plain.config)
    model.set_weights(plain.get_weights())
    lm = TransformerXLCausalLM(model, TOKENIZER)
    features = TransformerXLCausalLM(plain, TOKENIZER).embed("dig a bag")
    np.testing.assert_allclose(lm.embed("dig a bag"), 2 * features, rtol=1e-4, atol=1e-5)
    tokens = np.array([[1, 2, 3, 4]])
    nats, _ = model.score(tokens[:, :-1], tokens[:, 1:], model.initial_memory(1))
    np.testing.assert_allclose(lm.score(tokens[0]).nats[-3:], nats[0], atol=1e-4)
    assert len(lm.generate(tokens[0], max_tokens=3, stop_token_ids=None)) == 7
