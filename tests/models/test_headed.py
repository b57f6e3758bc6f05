"""Texts of any length under a head: padding, batches and segments change nothing.

Heads alone: what they pool, and what they leave out.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.layer_checks import randomize_weights
from tests.small_models import small_config
from txl_tf.layers import ChoiceHead, PooledHead, SpanHead
from txl_tf.models import create_model
from txl_tf.models.headed import TransformerXLWithHead, pad_token_ids

T = 4
HEADS = {
    "classes": lambda: PooledHead(3),
    "mean": lambda: PooledHead(1, pooling="mean"),
    "span": lambda: SpanHead(),
}


def made(head, **changes):
    changes = {"dropout": 0.2, "attention_dropout": 0.1, **changes}
    model = TransformerXLWithHead(create_model(small_config(T, 2 * T, **changes)), head, seed=3)
    randomize_weights(model)
    return model


def texts(*lengths):
    random = np.random.default_rng(0)
    return [random.integers(0, 11, length).tolist() for length in lengths]


@pytest.mark.parametrize("kind", HEADS)
def test_a_text_in_a_batch_equals_the_text_alone(kind):
    model, lengths = made(HEADS[kind]()), (1, T, T + 1, 5 * T, 7)
    together = model(pad_token_ids(texts(*lengths), multiple_of=T)).numpy()
    for row, (length, text) in enumerate(zip(lengths, texts(*lengths), strict=True)):
        alone = model(np.array([text])).numpy()[0]
        found = together[row][..., :length] if kind == "span" else together[row]
        np.testing.assert_allclose(found, alone, rtol=0, atol=1e-5)


def test_the_hidden_states_are_those_of_the_model_with_memory():
    model = made(PooledHead(3))
    (text,) = texts(3 * T)
    memory, states = model.language_model.initial_memory(1), []
    for begin in range(0, 3 * T, T):
        hidden, memory = model.language_model(np.array([text[begin : begin + T]]), memory)
        states.append(hidden.numpy())
    found = model.read(np.array([text])).numpy()
    np.testing.assert_allclose(found, np.concatenate(states, axis=1), rtol=0, atol=1e-6)
    # The first segment reaches the last one through memory alone.
    changed = np.array([[(text[0] + 1) % 11, *text[1:]]])
    assert np.abs(model.read(changed).numpy()[:, -1] - found[:, -1]).max() > 1e-4


def test_choices_of_a_row_are_texts_of_their_own():
    model = made(ChoiceHead())
    flat = pad_token_ids(texts(5, 9, 2, 7))
    choices = {name: array.reshape(2, 2, -1) for name, array in flat.items()}
    found = model(choices).numpy()
    assert found.shape == (2, 2)
    scored = [model({name: array[None] for name, array in flat.items()}).numpy()[0]]
    np.testing.assert_allclose(found.ravel(), scored[0], rtol=0, atol=1e-5)


def test_dropout_differs_between_segments_and_calls():
    model = made(PooledHead(3), dropout=0.5, attention_dropout=0.0)
    same = np.full((1, 2 * T), 3)
    first = model.read(same, training=True).numpy()
    assert np.abs(first - model.read(same, training=True).numpy()).max() > 1e-3
    zeros = first == 0.0
    assert zeros.any()
    assert not np.array_equal(zeros[:, :T], zeros[:, T:])


def test_only_what_the_task_uses_is_trained():
    model = made(PooledHead(3))
    names = {variable.path for variable in model.trainable_variables}
    assert not any("softmax" in name for name in names)
    assert any("block_0" in name for name in names)
    model.language_model.trainable = False
    assert {variable.path.split("/")[-1] for variable in model.trainable_variables} == {
        "kernel",
        "bias",
    }


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"token_ids": np.array([[1, 11]])}, "must be in"),
        (
            {"token_ids": np.ones((1, 2)), "padding_mask": ~np.eye(1, 2, dtype=bool)},
            "before a token",
        ),
    ],
)
def test_bad_inputs_are_refused(inputs, words):
    with pytest.raises(ValueError, match=words):
        made(PooledHead(3))(inputs)


@pytest.mark.parametrize(
    ("head", "shape"), [(PooledHead(3), (2,)), (ChoiceHead(), (2,)), (SpanHead(), (2, 2))]
)
def test_a_head_of_classes_tells_the_loss(head, shape):
    model = made(head)
    model.compile("adam")
    inputs = pad_token_ids(texts(6, 9), multiple_of=T)
    if isinstance(head, ChoiceHead):
        inputs = {name: np.stack([each, each], axis=1) for name, each in inputs.items()}
    targets, outputs = np.zeros(shape, int), model(inputs)
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(targets, outputs)
    found = model.compute_loss(y=targets, y_pred=outputs)
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_an_export_takes_texts_of_any_length_as_the_model_was_called(tmp_path):
    model, inputs = made(SpanHead()), pad_token_ids(texts(6, 9), multiple_of=T)
    model.compile("adam", run_eagerly=True)
    model.fit(inputs, np.zeros((2, 2), int), verbose=0)
    model.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(tmp_path / "model")
    longer = pad_token_ids(texts(5, 9, 22))
    found = served.serve({name: tf.constant(each) for name, each in longer.items()})
    np.testing.assert_allclose(found, model(longer), rtol=0, atol=1e-5)
    token_ids = np.array(texts(2 * T), np.int32)
    expected = model(token_ids)
    model.export(tmp_path / "unpadded", verbose=False)
    served = tf.saved_model.load(tmp_path / "unpadded")
    np.testing.assert_allclose(served.serve(token_ids), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", [PooledHead(1), keras.layers.Identity()])
def test_a_head_that_does_not_tell_the_loss_needs_one(head):
    with pytest.raises(ValueError, match=r"`compile` needs a `loss` .*Received: loss=None, head="):
        made(head).compile("adam")


MASK = np.array([[True, True, False], [True, True, True], [False, False, False]])
STATES = np.random.default_rng(0).normal(size=(3, 3, 2)).astype(np.float32)


def without_projection(head, width):
    """The head with a projection that passes on the first features."""
    head.build((None, None, width), (None, None))
    bias = [np.zeros(head.num_outputs)] if head.projection.use_bias else []
    head.projection.set_weights([np.eye(width, head.num_outputs), *bias])
    return head


def test_the_last_token_and_the_mean_leave_padding_out():
    last = without_projection(PooledHead(2), 2)(STATES, MASK)
    np.testing.assert_array_equal(last, [STATES[0, 1], STATES[1, 2], [0.0, 0.0]])
    mean = without_projection(PooledHead(2, pooling="mean"), 2)(STATES, MASK)
    expected = [STATES[0, :2].mean(axis=0), STATES[1].mean(axis=0), [0.0, 0.0]]
    np.testing.assert_allclose(mean, expected, atol=1e-6)


def test_spans_are_never_in_the_padding():
    spans = np.array(without_projection(SpanHead(), 2)(STATES, MASK))
    np.testing.assert_array_equal(spans[1], STATES[1].T)
    chances = np.array(keras.ops.softmax(spans[:2]))
    assert (chances[0, :, 2] == 0.0).all()
    np.testing.assert_allclose(chances.sum(axis=-1), 1.0, rtol=1e-6)


def test_logits_are_float32_whatever_the_model_computes_in():
    head = PooledHead(2, dtype="mixed_bfloat16")
    assert head(keras.ops.cast(STATES, "bfloat16"), MASK).dtype == "float32"
