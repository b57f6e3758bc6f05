"""Names of the parts of a model that are not trained."""

import pytest

from tests.toy_batches import toy_experiment
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.run import identity


@pytest.mark.parametrize(
    ("patterns", "parts"),
    [
        ([], FrozenParts()),
        (["embedding"], FrozenParts(embedding=True)),
        (["softmax", "layers:1"], FrozenParts(softmax=True, layers=frozenset([1]))),
        (["layers:0-2", "layers:2-3"], FrozenParts(layers=frozenset(range(4)))),
        (["layers"], FrozenParts(layers=frozenset(range(5)))),
    ],
)
def test_patterns(patterns, parts):
    assert FrozenParts.parse(patterns, num_layers=5) == parts


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("layer:0", "`freeze` must be of"),
        ("layers 0-3", "`freeze` must be of"),
        ("layers:", "`freeze` must be of"),
        ("layers:-1", "`freeze` must be of"),
        ("", "`freeze` must be of"),
        ("layers:5", "layers from 0 to 4"),
        ("layers:3-1", "layers from 0 to 4"),
        ("layers:0-99999999999", "`freeze` must be of"),
    ],
)
def test_others_are_refused(pattern, reason):
    with pytest.raises(ValueError, match=reason):
        FrozenParts.parse([pattern], num_layers=5)


def test_something_is_left_to_train():
    for patterns in (("embedding", "softmax"), ("embedding", "layers"), ("softmax", "layers")):
        FrozenParts.parse(patterns, num_layers=2)
    with pytest.raises(ValueError, match="must leave something to train"):
        FrozenParts.parse(("embedding", "softmax", "layers:0-1"), num_layers=2)


def test_an_experiment_checks_them_and_the_identity_of_a_run_has_them():
    with pytest.raises(ValueError, match="layers from 0 to 0"):
        toy_experiment(training={"freeze": ("layers:1",)})
    with pytest.raises(ValueError, match="`freeze` must name a part"):
        toy_experiment(training={"freeze": ()})
    with pytest.raises(ValueError, match="`freeze` must be None with an `adapter_rank`"):
        toy_experiment(training={"freeze": ("embedding",), "adapter_rank": 1})
    with pytest.raises(ValueError, match="adapter_rank` must be at most"):
        toy_experiment(training={"adapter_rank": 1000})
    frozen, plain = toy_experiment(training={"freeze": ("embedding",)}), toy_experiment()
    assert identity(frozen, {})["training"]["freeze"] == ["embedding"]
    assert identity(plain, {})["training"]["freeze"] is None
    assert ExperimentConfig.from_dict(frozen.to_dict()) == frozen
