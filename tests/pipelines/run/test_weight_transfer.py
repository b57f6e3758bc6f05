"""Weights that move to another model."""

import numpy as np
import pytest

from pipelines.run.initial_weights import require_same_weights, rows_of_shared_tokens
from tests.small_models import arrays_of, small_config
from txl_tf.config.model import LSTMConfig
from txl_tf.errors import MismatchError
from txl_tf.models import create_model

ADAPTIVE = {"embedding_dim": 8, "division_factor": 2}
OTHERS = {"num_layers": 3, "cutoffs": (4,), "tie_weights": False, "vocabulary_size": 12}
OTHERS |= {"pre_norm": True, "layer_norm_epsilon": 1e-5}


def test_settings_that_do_not_shape_weights_may_differ():
    config = small_config(4, 4)
    changed = config.replace(
        segment_length=9,
        memory_length=5,
        clamp_length=3,
        same_length=True,
        dropout=0.4,
        attention_dropout=0.2,
        variational_dropout=True,
        initializer="uniform",
        embedding_dim=8,
        share_tail_projections=True,
    )
    require_same_weights(config, changed, "here")
    shapes = [
        {path: array.shape for path, array in arrays_of(create_model(each)).items()}
        for each in (config, changed)
    ]
    assert shapes[0] == shapes[1]


def test_settings_that_shape_weights_are_named():
    config = small_config(4, 4)
    recurrent = LSTMConfig(vocabulary_size=11, num_layers=2, hidden_dim=8, segment_length=4)
    others = {name: config.replace(**{name: value}) for name, value in OTHERS.items()}
    for name, other in (others | {"kind": recurrent}).items():
        with pytest.raises(MismatchError, match=f"model.{name} \\(stored .*, now"):
            require_same_weights(config, other, "here")
    old_config, clusters = config.replace(cutoffs=(4,)), config.replace(cutoffs=(4, 6))
    with pytest.raises(MismatchError, match=r"model\.clusters \(stored 2, now 3\)"):
        require_same_weights(old_config, clusters, "here", shares_vocabulary=True)


CLUSTERS = {
    "one softmax": ({}, {}),
    "one table": ({"cutoffs": (4,)}, {"cutoffs": (6,)}),
    "tied tables": ({"cutoffs": (4, 8), **ADAPTIVE}, {"cutoffs": (5, 9), **ADAPTIVE}),
    "own tables": (
        {"cutoffs": (4,), "tie_weights": False, **ADAPTIVE},
        {"cutoffs": (3,), "tie_weights": False, **ADAPTIVE},
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_rows_of_shared_tokens_move_and_others_are_initial(name):
    old_config = small_config(4, 4, vocabulary_size=11, **CLUSTERS[name][0])
    config = small_config(4, 4, vocabulary_size=13, **CLUSTERS[name][1])
    require_same_weights(old_config, config, "here", shares_vocabulary=True)
    weights, initial = arrays_of(create_model(old_config)), arrays_of(create_model(config))
    pairs = [(0, 12), (1, 0), (4, 4), (5, 5), (10, 11)]
    result = rows_of_shared_tokens(weights, initial, old_config, config, pairs)
    assert {path: array.shape for path, array in result.items()} == {
        path: array.shape for path, array in initial.items()
    }
    for path, array in result.items():
        family, _, number = path.rpartition("_") if path[-1].isdigit() else (path, "", "")
        if family not in ("embedding/table", "softmax/table", "softmax/bias"):
            np.testing.assert_array_equal(array, weights[path], err_msg=path)
            continue
        expected = initial[path].copy()
        for before, after in pairs:
            places = [
                place(each, number, id_) for each, id_ in ((old_config, before), (config, after))
            ]
            if None not in places:
                expected[places[1]] = weights[path][places[0]]
        np.testing.assert_array_equal(array, expected, err_msg=path)


def place(config, number, token_id):
    """Row of a token in the array of a cluster, or of all of them; `None` if it has none."""
    if not number:
        return token_id
    first, end = config.clusters.spans[int(number)]
    return token_id - first if first <= token_id < end else None
