"""When the multiplier of the learning rate falls."""

import numpy as np
import pytest

from tests.toy_batches import two_replicas
from txl_tf.training.plateau_scale import PlateauScale


def scales_after(plateau, losses):
    scales = []
    for loss in losses:
        before = float(plateau.scale.numpy())
        has_fallen = plateau.observe(loss)
        scales.append(float(plateau.scale.numpy()))
        assert has_fallen == (scales[-1] < before)
    return scales


def test_it_falls_at_the_first_evaluation_that_is_no_better():
    plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [3.0, 2.0, 2.5, 1.9, 1.9]) == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_patience_is_how_many_in_a_row_change_nothing():
    plateau = PlateauScale(factor=0.5, patience=2)
    losses = [2.0, 2.1, 2.1, 1.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert scales_after(plateau, losses) == [1.0] * 6 + [0.5] * 3 + [0.25]


def test_an_improvement_too_small_to_count_is_none():
    plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [2.0, 1.9999, 1.999]) == [1.0, 0.5, 0.5]
    # The best stays the one that counted, so that many small steps are not one plateau.
    assert float(plateau.variables["best_nats"]) == pytest.approx(1.999)


def test_the_floor_holds_and_reaching_it_again_is_no_fall():
    plateau = PlateauScale(factor=0.1, minimum=0.03)
    assert scales_after(plateau, [2.0] * 5) == pytest.approx([1.0, 0.1, 0.03, 0.03, 0.03])


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_what_is_not_finite_is_no_improvement(loss):
    plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [loss, 2.0, loss]) == [0.5, 0.5, 0.25]


def test_its_state_is_finite_from_the_start():
    # Checkpoints take nothing else.
    for loss in (None, np.nan, np.inf, 2.0):
        plateau = PlateauScale(factor=0.5)
        if loss is not None:
            plateau.observe(loss)
        assert all(np.isfinite(each.numpy()) for each in plateau.variables.values())


def test_resuming_at_any_evaluation_goes_on_exactly():
    losses = 2.0 + 0.3 * np.random.default_rng(5).standard_normal(20) - 0.02 * np.arange(20)
    arguments = {"factor": 0.7, "patience": 1, "minimum": 0.05}
    whole = PlateauScale(**arguments)
    states, scales = [], []
    for loss in losses:
        states.append({name: each.numpy() for name, each in whole.variables.items()})
        whole.observe(loss)
        scales.append(float(whole.scale.numpy()))
    assert len(set(scales)) > 3
    for first, state in enumerate(states):
        resumed = PlateauScale(**arguments)
        for name, array in state.items():
            resumed.variables[name].assign(array)
        assert scales_after(resumed, losses[first:]) == scales[first:]


def test_every_replica_has_the_same_multiplier():
    strategy = two_replicas()
    with strategy.scope():
        plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [2.0, 2.0]) == [1.0, 0.5]
    for name, variable in plateau.variables.items():
        first, second = strategy.experimental_local_results(variable.value)
        assert first.numpy() == second.numpy(), name


@pytest.mark.parametrize(
    "arguments", [{"factor": 1.0}, {"factor": 0.0}, {"patience": -1}, {"minimum": 1.1}], ids=str
)
def test_values_out_of_range_are_refused(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"Received: .*{name}={value}"):
        PlateauScale(**arguments)
