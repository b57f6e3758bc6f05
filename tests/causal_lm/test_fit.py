"""`fit` of a language model on texts: the trainer's losses, in place, and its refusals."""

import copy

import keras
import numpy as np
import pytest

from tests.causal_lm.conftest import TOKENIZER
from tests.small_models import (
    NUM_ROWS,
    SEGMENT_LENGTH,
    ToyBatches,
    toy_experiment,
    toy_tokens,
    toy_trainer,
)
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.config.model import LSTMConfig
from txl_tf.data.text_batches import ordered_batches
from txl_tf.models import create_model
from txl_tf.models.transformer_xl import TransformerXL

TOKENS = toy_tokens(210)
STEPS = 209 // (NUM_ROWS * SEGMENT_LENGTH)
# More than two rows of a batch need, and every character a token.
TEXT = "the quick brown fox jumps over the lazy dog " * 8
QUIET = {"batch_size": 4, "verbose": 0}


def text_lm(**options):
    keras.utils.set_random_seed(3)
    model = TransformerXL(toy_experiment().model.replace(vocabulary_size=27))
    lm = TransformerXLCausalLM(model, TOKENIZER)
    lm.compile(keras.optimizers.Adam(3e-3), sampler="greedy", **options)
    return lm


def test_losses_match_the_trainer():
    """Over two epochs, with gradients that are clipped."""
    trainer = toy_trainer(
        ToyBatches(TOKENS, NUM_ROWS),
        training={"num_steps": 2 * STEPS},
        optimizer={"clip_norm": 0.1, "warmup_steps": 3, "weight_decay": 0.1, "name": "adamw"},
    )
    model = TransformerXL(trainer.experiment.model)
    model.set_weights(trainer.model.get_weights())
    lm = TransformerXLCausalLM(model)
    lm.compile(trainer.experiment.optimizer)
    history = lm.fit(TOKENS, epochs=2, **QUIET)
    reports = list(trainer.run())
    losses = np.reshape([report.records[0].nats_per_token for report in reports], (2, STEPS)).mean(
        axis=1
    )
    np.testing.assert_allclose(history.history["loss"], losses, rtol=0, atol=1e-5)
    assert losses[1] < losses[0] - 0.01 and lm.step == 2 * STEPS
    for mine, theirs in zip(model.get_weights(), trainer.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_generation_and_scores_use_the_new_weights_during_and_after():
    lm = text_lm(jit_compile=False)
    texts, scores = [], []

    def read(epoch, logs):
        texts.append(lm.generate("the ", max_tokens=9))
        scores.append(lm.score(TEXT).nats_per_token)

    read(0, None)
    lm.fit(TEXT, epochs=2, callbacks=keras.callbacks.LambdaCallback(on_epoch_end=read), **QUIET)
    new = TransformerXLCausalLM(lm.model, TOKENIZER)
    assert scores == sorted(scores, reverse=True) and scores[-1] < scores[0] - 0.1
    assert lm.score(TEXT).nats_per_token == scores[-1]
    assert new.generate("the ", max_tokens=9, sampler="greedy") == texts[-1] != texts[0]


def test_two_fits_are_one_of_two_epochs_and_batches_are_their_text():
    # So few steps are traced longer than they run.
    whole, parts, text = text_lm(run_eagerly=True), text_lm(run_eagerly=True), TEXT[:88]
    batches = ordered_batches(text, TOKENIZER, 4, SEGMENT_LENGTH)
    expected = whole.fit(text, epochs=2, validation_data=[text], **QUIET).history
    fits = [
        parts.fit(batches, validation_data=batches, verbose=0),
        parts.fit([text[:50], text[50:]], validation_data=text, **QUIET),
    ]
    assert parts.fit(text, validation_data=TEXT[:12], **QUIET).history["val_loss"][0] > 0
    for name in ("loss", "val_loss"):
        assert [each.history[name][0] for each in fits] == expected[name]


def test_only_a_transformer_xl_and_ids_of_its_vocabulary_are_trained():
    config = LSTMConfig(vocabulary_size=13, num_layers=1, hidden_dim=8, segment_length=5)
    lstm = TransformerXLCausalLM(create_model(config))
    with pytest.raises(ValueError, match="train a recurrent model with `txl train`"):
        lstm.fit(TOKENS, **QUIET)
    lm = TransformerXLCausalLM(TransformerXL(toy_experiment().model))
    with pytest.raises(ValueError, match=r"must be in \[0, 13\)"):
        lm.fit(np.full(99, 13), **QUIET)
    with pytest.raises(ValueError, match="must be a `Tokenizer` for texts"):
        lm.fit(TEXT, **QUIET)


def test_a_copy_is_trained_by_itself():
    lm, text = text_lm(run_eagerly=True), TEXT[:88]
    lm.fit(text, **QUIET)
    other, before = copy.deepcopy(lm), lm.model.get_weights()
    other.fit(text, **QUIET)
    assert other.step == 2 * lm.step
    for mine, theirs in zip(lm.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_layers_frozen_between_two_fits_keep_their_weights():
    lm, text = text_lm(run_eagerly=True), TEXT[:88]
    lm.fit(text, **QUIET)
    block, before = lm.model.blocks[0], lm.model.blocks[0].get_weights()
    block.trainable = False
    lm.fit(text, **QUIET)
    for mine, theirs in zip(block.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)
