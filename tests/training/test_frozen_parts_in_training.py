"""Frozen parts: no update, no slots of the optimizer, no decay, under any number of replicas."""

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens
from txl_tf.config.model import LSTMConfig
from txl_tf.training.trainer import Trainer

SHARED = {"num_layers": 2, "share_attention_biases": True}


def trained(freeze, *, optimizer="adamw", model=None, num_replicas=1, recurrent=None, **training):
    """A trainer after three steps, and the weights that it began with."""
    settings = {"name": optimizer, "learning_rate": 1e-2}
    if optimizer != "adam":
        settings["weight_decay"] = 0.1
    experiment = toy_experiment(
        {"num_layers": 2, **(model or {})},
        {"num_steps": 3, "freeze": freeze, **training},
        settings,
    )
    if recurrent is not None:
        experiment = experiment.replace(model=recurrent)
    batches = ToyBatches(toy_tokens(), experiment.training.global_batch_size)
    trainer = Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)
    before = {variable.path: variable.numpy() for variable in trainer.model.weights}
    list(trainer.run())
    return trainer, before


def unchanged(trainer, before):
    return {
        variable.path
        for variable in trainer.model.weights
        if np.array_equal(variable.numpy(), before[variable.path])
    }


@pytest.mark.parametrize("optimizer", ["adamw", slow_case("muon")])
def test_frozen_weights_do_not_change_and_have_no_slots(optimizer):
    trainer, before = trained(("embedding", "layers:0"), optimizer=optimizer)
    frozen = {path for path in before if path.startswith(("embedding/", "block_0/"))}
    assert frozen
    # The initial bias of the norm is 0, and so may a gradient be; no other weight stays.
    assert unchanged(trainer, before) == frozen
    slots = [name for name in trainer.arrays() if name.startswith("optimizer/")]
    assert not [name for name in slots if "embedding" in name or "block_0" in name]


@pytest.mark.slow
def test_shared_biases_are_trained_as_long_as_a_layer_is():
    for freeze, is_frozen in ((("layers:0",), False), (("layers",), True)):
        trainer, before = trained(freeze, model=SHARED)
        biases = {"content_bias", "position_bias"} & before.keys()
        assert len(biases) == 2
        assert (biases <= unchanged(trainer, before)) == is_frozen


@pytest.mark.slow
def test_a_recurrent_model_has_layers_too():
    config = LSTMConfig(vocabulary_size=13, num_layers=2, hidden_dim=8, segment_length=5)
    trainer, before = trained(("layers:1", "softmax"), recurrent=config)
    frozen = {path for path in before if path.startswith(("lstm_1/", "softmax/"))}
    assert unchanged(trainer, before) == frozen


@pytest.mark.slow
def test_the_average_of_frozen_weights_is_the_weights():
    trainer, before = trained(("embedding",), average_weights_from_step=1)
    table = trainer.model.embedding.tables[0]
    assert not [name for name in trainer.arrays() if name == f"average/{table.path}"]
    np.testing.assert_array_equal(trainer.state.inference_weights()[table.path], before[table.path])


@pytest.mark.slow
def test_a_trainer_takes_up_weights_and_nothing_else():
    source, _ = trained(None, average_weights_from_step=2)
    weights = source.state.inference_weights()
    experiment = source.experiment
    batches = ToyBatches(toy_tokens(), experiment.training.global_batch_size)
    trainer = Trainer(experiment, strategy_of(1), batches.dataset_function)
    initial = trainer.arrays()
    trainer.state.begin_from(weights)
    for name, array in trainer.arrays().items():
        kind, _, path = name.partition("/")
        expected = weights[path] if path in weights else initial[name]
        is_weight = kind in ("model", "average") and path in weights
        np.testing.assert_array_equal(array, expected if is_weight else initial[name], name)
    with pytest.raises(ValueError, match="`begin_from` needs a run at step 0"):
        source.state.begin_from(weights)
