"""A loss or gradient that is not finite changes no weight: the run stops, or skips the step."""

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.small_models import toy_trainer, weight_of
from txl_tf.errors import NonFiniteError
from txl_tf.training import step_compilation
from txl_tf.training.ledger import StepStatus


def trainer_of(num_replicas=1, describe_row=None, **training):
    training = {"num_steps": 12, "average_weights_from_step": 2, **training}
    return toy_trainer(num_replicas=num_replicas, describe_row=describe_row, training=training)


def run_to(trainer, step):
    reports = trainer.run()
    while trainer.step < step:
        next(reports)
    reports.close()


def spoil_weight(trainer):
    bias = weight_of(trainer.model, "softmax/bias")
    bias.assign(np.where(np.arange(bias.shape[0]) == 2, np.nan, bias.numpy()))


def spoil_memory(trainer):
    arrays = trainer.replica_memory.to_global()
    states = arrays["states/000"].copy()
    states[2, -1, 3] = np.nan
    trainer.replica_memory.from_global({**arrays, "states/000": states})


def spoil_gradient(trainer, value):
    """A gradient that is not finite where the loss is."""

    @tf.custom_gradient
    def spoiled(tensor):
        return tensor, lambda upstream: upstream * value

    score = trainer.model.negative_log_likelihood
    trainer.model.negative_log_likelihood = lambda *arguments: spoiled(score(*arguments))


def bits_of(state):
    return {name: array.tobytes() for name, array in state.items()}


@pytest.mark.parametrize(
    ("spoil", "num_replicas", "where"),
    [
        (spoil_weight, 1, "step 7, line 60, line 61, line 62, line 63"),
        slow_case(spoil_memory, 2, "step 7, line 62"),
    ],
)
def test_a_spoiled_number_stops_the_run_and_names_its_rows_before_anything_changes(
    spoil, num_replicas, where
):
    names = {"describe_row": lambda step, row: f"line {10 * step + row}"}
    trainer = trainer_of(num_replicas, **names, steps_per_loop=3)
    run_to(trainer, 6)
    spoil(trainer)
    before = bits_of(trainer.arrays())
    with pytest.raises(NonFiniteError) as raised:
        next(trainer.run())
    assert (raised.value.exit_code, raised.value.where) == (70, where)
    assert bits_of(trainer.arrays()) == before


@pytest.mark.slow
def test_a_spoiled_gradient_stops_the_run_though_the_loss_is_finite():
    trainer = trainer_of()
    run_to(trainer, 7)
    state = trainer.arrays()
    spoiled = trainer_of()
    spoiled.load_arrays(state)
    spoil_gradient(spoiled, np.inf)
    with pytest.raises(NonFiniteError, match="The step changed no weight") as raised:
        next(spoiled.run())
    assert raised.value.where == "step 8, the loss of every row is finite"
    assert bits_of(spoiled.arrays()) == bits_of(state)


@pytest.mark.parametrize(
    ("num_replicas", "jit_compile"), [(1, False), slow_case(2, True), slow_case(1, None)]
)
def test_a_skipped_step_changes_no_weight_and_forgets_the_spoiled_row_alone(
    num_replicas, jit_compile, monkeypatch
):
    # With `jit_compile=None`, all these widths are compiled in parts.
    widths = dict.fromkeys(step_compilation._NARROWEST_IN_PARTS, 1)
    monkeypatch.setattr(step_compilation, "_NARROWEST_IN_PARTS", widths)
    trainer = trainer_of(num_replicas, on_non_finite="skip", jit_compile=jit_compile)
    run_to(trainer, 4)
    spoil_memory(trainer)
    before = trainer.arrays()
    reports = trainer.run()
    report = next(reports)
    assert [record.status for record in report.records] == [StepStatus.SKIPPED_NON_FINITE]
    after = trainer.arrays()
    assert (
        after.pop("optimizer/optimizer/iteration")
        == before.pop("optimizer/optimizer/iteration") + 1
    )
    for name in before:
        if not name.startswith("memory/"):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert after["memory/valid_length"].tolist() == [7, 7, 0, 7]
    assert not after["memory/states/000"][2].any()
    # The next step reads the next batch, with every row.
    following = next(reports)
    assert following.records[0].status == StepStatus.APPLIED
    assert np.isfinite(following.nats_per_token)
    assert trainer.arrays()["memory/valid_length"].tolist() == [7, 7, 5, 7]
