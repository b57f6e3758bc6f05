"""Low-rank adapters: only factors are trained, and merged they are the adapted model."""

import functools

import keras
import numpy as np
import pytest

from tests.toy_batches import ToyBatches, largest_relative_difference, toy_tokens
from tests.toy_trainers import NUM_ROWS, toy_trainer
from txl_tf.config.model import LSTMConfig
from txl_tf.models import create_model
from txl_tf.models.adapters import Adapters, merged_weights
from txl_tf.models.language_model import assign_weights
from txl_tf.models.sizes import num_adapter_parameters

ADAPTERS = {"adapter_rank": 2, "adapter_alpha": 3.0, "num_steps": 4}
PROJECTIONS = [f"attention/{name}" for name in ("query", "key", "value", "position", "output")]
PROJECTIONS += ["feed_forward/inner", "feed_forward/outer"]


def of_kind(state, kind):
    return {name: array for name, array in state.items() if name.startswith(kind)}


@functools.cache
def source_weights():
    trainer = toy_trainer()
    return trainer.state.inference_weights()


def adapted(model=None, optimizer=None, num_replicas=1, **training):
    """A trainer with adapters before its first step."""
    trainer = toy_trainer(
        num_replicas=num_replicas,
        model=model,
        training={**ADAPTERS, **training},
        optimizer={"learning_rate": 3e-2, **(optimizer or {})},
    )
    if model is None:
        trainer.state.begin_from(source_weights())
    return trainer


def nats(trainer):
    return [report.nats_per_token for report in trainer.run()]


@functools.cache
def unbroken():
    trainer = adapted()
    return nats(trainer), trainer


def test_only_the_factors_are_trained_and_stored():
    _, trainer = unbroken()
    frozen = trainer.state.frozen_weights()
    assert frozen.keys() == source_weights().keys()
    for path, array in source_weights().items():
        np.testing.assert_array_equal(frozen[path], array, err_msg=path)
    state = trainer.arrays()
    factors = {f"adapter/block_0/{name}/lora_kernel_{f}" for name in PROJECTIONS for f in "ab"}
    assert of_kind(state, "adapter/").keys() == factors
    assert not of_kind(state, "model/")
    initial = adapted().arrays()
    for name in factors:
        assert not np.array_equal(state[name], initial[name]), name
    # Two slots for each factor, and the step.
    assert len(of_kind(state, "optimizer/")) == 2 * len(factors) + 1


@pytest.mark.slow
def test_the_model_is_at_first_the_source_to_the_last_bit():
    trainer = adapted()
    merged = trainer.state.inference_weights()
    assert {path: array.tobytes() for path, array in merged.items()} == {
        path: array.tobytes() for path, array in source_weights().items()
    }
    source = toy_trainer()
    assert nats(trainer)[0] == pytest.approx(next(source.run()).nats_per_token, rel=1e-6)


def test_the_merged_model_is_the_adapted_model():
    _, trainer = unbroken()
    assert trainer.state.inference_variables() is None
    merged = create_model(trainer.experiment.model)
    weights = trainer.state.inference_weights()
    assert weights.keys() == {variable.path for variable in merged.weights}
    assign_weights({variable.path: variable for variable in merged.weights}, weights)
    tokens = ToyBatches(toy_tokens(), NUM_ROWS).batch(1)["token_ids"]
    memory = merged.initial_memory(NUM_ROWS)
    found, _ = merged.log_probs(tokens, memory)
    expected, _ = trainer.model.log_probs(tokens, memory)
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-6)
    assign_weights({variable.path: variable for variable in merged.weights}, source_weights())
    before, _ = merged.log_probs(tokens, memory)
    assert np.abs(np.asarray(before) - np.asarray(found)).max() > 1e-3


def test_a_run_goes_on_to_the_last_bit():
    expected, trainer = unbroken()
    first = adapted()
    reports = first.run()
    losses = [next(reports).nats_per_token for _ in range(2)]
    second = adapted()
    second.load_arrays(first.arrays())
    losses += nats(second)
    assert losses == expected
    assert {name: array.tobytes() for name, array in second.arrays().items()} == {
        name: array.tobytes() for name, array in trainer.arrays().items()
    }


@pytest.mark.slow
def test_replicas_and_parts_give_the_same_steps():
    expected, trainer = unbroken()
    other = adapted(num_replicas=2, gradient_accumulation_steps=2)
    assert nats(other) == pytest.approx(expected, rel=1e-5)
    alone, found = (each.state.inference_weights() for each in (trainer, other))
    assert largest_relative_difference(alone, found) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ({"num_layers": 2, "share_attention_biases": True}, {"name": "adamw", "weight_decay": 0.1}),
        ({"pre_norm": True, "residual_gate": "gru", "dropout": 0.1}, {"name": "muon"}),
    ],
)
def test_variants_of_the_model_have_adapters(model, optimizer):
    trainer = adapted(model, optimizer)
    before, initial = trainer.state.frozen_weights(), trainer.arrays()
    count = sum(variable.numpy().size for variable in trainer.state.trainable)
    assert count == num_adapter_parameters(trainer.experiment.model, 2)
    nats(trainer)
    for path, array in trainer.state.frozen_weights().items():
        np.testing.assert_array_equal(array, before[path], err_msg=path)
    after = trainer.arrays()
    assert all(
        not np.array_equal(after[name], initial[name]) for name in of_kind(after, "adapter/")
    )


@pytest.mark.slow
def test_the_average_is_of_the_factors():
    trainer = adapted(average_weights_from_step=1)
    averages = []
    for _ in trainer.run():
        averages.append(of_kind(trainer.arrays(), "adapter/"))
    name = "block_0/attention/query/lora_kernel_a"
    mean = np.mean([each[f"adapter/{name}"] for each in averages], axis=0)
    state = trainer.arrays()
    np.testing.assert_allclose(state[f"average/{name}"], mean, atol=1e-6)
    factors = {
        path.removeprefix("average/"): array for path, array in of_kind(state, "average/").items()
    }
    del factors["num_steps"]
    expected = merged_weights(source_weights() | factors, ADAPTERS["adapter_alpha"])
    found = trainer.state.inference_weights()
    assert all(np.array_equal(found[path], array) for path, array in expected.items())


def test_a_model_without_projections_has_no_adapters():
    config = LSTMConfig(vocabulary_size=13, num_layers=1, hidden_dim=8, segment_length=5)
    keras.utils.set_random_seed(0)
    with pytest.raises(ValueError, match="LSTMLanguageModel"):
        Adapters(create_model(config), 2)
