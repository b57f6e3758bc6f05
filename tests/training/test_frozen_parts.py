"""Frozen parts: no update, no decay, and nothing of them in the optimizer or the average."""

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.small_models import ToyBatches, strategy_of, toy_experiment, toy_tokens
from txl_tf.config.model import LSTMConfig
from txl_tf.training.trainer import Trainer

BIASES = {"num_layers": 2, "share_attention_biases": True}
LSTM = LSTMConfig(vocabulary_size=13, num_layers=2, hidden_dim=8, segment_length=5)


def new_trainer(freeze, optimizer="adamw", model=None, recurrent=None):
    experiment = toy_experiment(
        {"num_layers": 2, **(model or {})},
        {"num_steps": 3, "freeze": freeze, "average_weights_from_step": 1},
        {"name": optimizer, "learning_rate": 1e-2, "weight_decay": 0.1},
    )
    experiment = experiment if recurrent is None else experiment.replace(model=recurrent)
    batches = ToyBatches(toy_tokens(), experiment.training.global_batch_size)
    return Trainer(experiment, strategy_of(1), batches.dataset_function)


@pytest.mark.parametrize(
    ("freeze", "prefixes", "changes"),
    [
        (("embedding", "layers:0"), ("embedding/", "block_0/"), {}),
        slow_case(("embedding", "layers:0"), ("embedding/", "block_0/"), {"optimizer": "muon"}),
        # Shared biases are trained as long as a layer is.
        slow_case(("layers:0",), ("block_0/",), {"model": BIASES}),
        slow_case(("layers",), ("block_", "content_bias", "position_bias"), {"model": BIASES}),
        slow_case(("layers:1", "softmax"), ("lstm_1/", "softmax/"), {"recurrent": LSTM}),
    ],
)
def test_exactly_the_frozen_weights_stay_and_take_no_state(freeze, prefixes, changes):
    trainer = new_trainer(freeze, **changes)
    before = {variable.path: variable.numpy() for variable in trainer.model.weights}
    list(trainer.run())
    for path, array in trainer.state.inference_weights().items():
        assert np.array_equal(array, before[path]) == path.startswith(prefixes), path
    names = [name for name in trainer.arrays() if name.startswith(("optimizer/", "average/"))]
    assert names
    for prefix in prefixes:
        assert not [name for name in names if prefix.rstrip("/") in name]


@pytest.mark.slow
def test_a_trainer_begins_from_weights():
    source = new_trainer(None)
    list(source.run())
    weights = source.state.inference_weights()
    trainer = new_trainer(None)
    initial = trainer.arrays()
    trainer.state.begin_from(weights)
    for name, array in trainer.arrays().items():
        kind, _, path = name.partition("/")
        is_weight = kind in ("model", "average") and path in weights
        np.testing.assert_array_equal(array, weights[path] if is_weight else initial[name], name)
