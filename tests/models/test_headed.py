"""Texts of any length under a head: padding, batches and segments change nothing.

Heads alone: what they pool, and what they leave out.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.layer_checks import random, randomize_weights
from tests.small_models import small_config
from txl_tf.layers import PooledHead
from txl_tf.models import create_model
from txl_tf.models.headed import TransformerXLWithHead, pad_token_ids

T = 4


def made(head, **changes):
    changes = {"dropout": 0.2, "attention_dropout": 0.1, **changes}
    model = TransformerXLWithHead(create_model(small_config(T, 2 * T, **changes)), head, seed=3)
    randomize_weights(model)
    return model


def texts(*lengths):
    generator = np.random.default_rng(0)
    return [generator.integers(0, 11, length).tolist() for length in lengths]


def assert_close(one, other, atol=1e-5):
    np.testing.assert_allclose(one, other, rtol=0, atol=atol)


@pytest.mark.parametrize("head", [PooledHead(3), PooledHead(1, pooling="mean")], ids=repr)
def test_a_text_in_a_batch_equals_the_text_alone(head):
    model, lengths = made(head), (1, T, T + 1, 5 * T, 7)
    together = model(pad_token_ids(texts(*lengths), multiple_of=T)).numpy()
    for row, text in enumerate(texts(*lengths)):
        alone = model(np.array([text])).numpy()[0]
        assert_close(together[row], alone)


def test_hidden_states_equal_one_pass_of_the_model():
    model, (text,) = made(PooledHead(3)), texts(3 * T)
    # Memory reaches the beginning, as one pass does.
    memory = model.language_model.initial_memory(1, 0)
    expected, _ = model.language_model(np.array([text]), memory)
    assert_close(model.read(np.array([text])), expected, 1e-6)


def test_dropout_differs_between_segments_and_calls():
    model = made(PooledHead(3), dropout=0.5, attention_dropout=0.0)
    same = np.full((1, 2 * T), 3)
    first = model.read(same, training=True).numpy()
    assert np.abs(first - model.read(same, training=True).numpy()).max() > 1e-3
    zeros = first == 0.0
    assert zeros.any() and not np.array_equal(zeros[:, :T], zeros[:, T:])


def test_only_what_the_task_uses_is_trained():
    model = made(PooledHead(3))
    names = {variable.path for variable in model.trainable_variables}
    assert not any("softmax" in name for name in names)
    assert any("block_0" in name for name in names)
    model.language_model.trainable = False
    names = {variable.path.split("/")[-1] for variable in model.trainable_variables}
    assert names == {"kernel", "bias"}


def test_bad_inputs_and_a_head_that_does_not_tell_the_loss_are_refused():
    padded_first = {"token_ids": np.ones((1, 2)), "padding_mask": ~np.eye(1, 2, dtype=bool)}
    for call, message in (
        (lambda: made(PooledHead(3))({"token_ids": np.array([[1, 11]])}), "must be in"),
        (lambda: made(PooledHead(3))(padded_first), "before a token"),
        (lambda: made(PooledHead(1)).compile("adam"), r"needs a `loss` .*loss=None, head="),
        (lambda: made(keras.layers.Identity()).compile("adam"), "needs a `loss`"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_head_of_classes_tells_the_loss():
    model = made(PooledHead(3))
    model.compile("adam")
    targets, outputs = np.ones(2, int), random(2, 3)
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(targets, outputs)
    assert float(model.compute_loss(y=targets, y_pred=outputs)) == pytest.approx(float(expected))


def test_an_export_takes_texts_of_any_length_as_the_model_was_called(tmp_path):
    model = made(PooledHead(3), num_layers=1)
    inputs = pad_token_ids(texts(6, 9), multiple_of=T)
    model.compile("adam", run_eagerly=True)
    model.fit(inputs, np.zeros(2, int), verbose=0)
    model.export(tmp_path / "model", verbose=False)
    served, longer = tf.saved_model.load(tmp_path / "model"), pad_token_ids(texts(5, 9, 22))
    answers = served.serve({name: tf.constant(each) for name, each in longer.items()})
    assert_close(answers, model(longer))
    token_ids = np.array(texts(2 * T), np.int32)
    expected = model(token_ids)
    model.export(tmp_path / "unpadded", verbose=False)
    served = tf.saved_model.load(tmp_path / "unpadded")
    assert_close(served.serve(token_ids), expected)


MASK = np.array([[True, True, False], [True, True, True], [False, False, False]])
STATES = random(3, 3, 2)


def without_projection(head):
    """The head with a projection that passes on both features."""
    head.build((None, None, 2), (None, None))
    head.projection.set_weights([np.eye(2), np.zeros(2)])
    return np.array(head(STATES, MASK))


def test_heads_leave_padding_out_and_return_float32():
    last = without_projection(PooledHead(2))
    np.testing.assert_array_equal(last, [STATES[0, 1], STATES[1, 2], [0.0, 0.0]])
    mean = without_projection(PooledHead(2, pooling="mean"))
    assert_close(mean, [STATES[0, :2].mean(axis=0), STATES[1].mean(axis=0), [0.0, 0.0]])
    half = PooledHead(2, dtype="mixed_bfloat16")
    assert half(keras.ops.cast(STATES, "bfloat16"), MASK).dtype == "float32"
