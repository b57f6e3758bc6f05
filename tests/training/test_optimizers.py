"""Optimizers by name, each against its paper, on two replicas and compiled."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_batches import largest_relative_difference, strategy_of
from tests.training import optimizer_oracles as oracles
from txl_tf.config.experiment import OptimizerConfig
from txl_tf.training.optimizers import Lamb, WarmupSchedule, create_optimizer

NUM_STEPS = 8
NUM_ROWS = 12
SHAPES = {
    "embedding/table": (5, 4),
    "inner/kernel": (4, 6),
    "outer/kernel": (6, 4),
    "inner/content_bias": (2, 3),
    "softmax/bias": (5,),
}
ADAM = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}
# Of each optimizer a learning rate, its other settings, and the same in NumPy.
CASES = {
    "adam": (3e-2, ADAM, oracles.adam(0.8, 0.95, 1e-3)),
    "adamw": (3e-2, {**ADAM, "weight_decay": 0.3}, oracles.adam(0.8, 0.95, 1e-3)),
    "lamb": (
        1e-1,
        {**ADAM, "weight_decay": 0.3, "max_weight_norm": 1.5},
        oracles.lamb(0.8, 0.95, 1e-3, 1.5),
    ),
    "muon": (
        3e-2,
        {**ADAM, "weight_decay": 0.3, "momentum": 0.9},
        oracles.muon(0.9, 0.8, 0.95, 1e-3),
    ),
    "sgd": (
        3e-1,
        {"weight_decay": 0.03, "momentum": 0.7},
        oracles.sgd(0.7),
    ),
}


def config_of(name, **changes):
    rate, settings, _ = CASES[name]
    return OptimizerConfig(
        **{"name": name, "learning_rate": rate, "warmup_steps": 2, **settings, **changes}
    )


def create_variables(seed=3):
    random = np.random.default_rng(seed)
    variables = []
    for path, shape in SHAPES.items():
        scope, name = path.split("/")
        values = random.normal(scale=0.7, size=shape)
        with keras.name_scope(scope):
            variables.append(keras.Variable(values, dtype="float32", name=name))
    assert [variable.path for variable in variables] == list(SHAPES)
    return variables


def arrays_of(variables):
    named = {variable.path: variable.numpy() for variable in variables}
    assert len(named) == len(variables), "paths are not unique"
    return named


def loss_of(tensors, tokens, targets):
    table, inner, outer, inner_bias, bias = tensors
    hidden = tf.nn.tanh(tf.gather(table, tokens) @ inner + tf.reshape(inner_bias, [6]))
    logits = hidden @ outer @ tf.transpose(table) + bias
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(losses) / NUM_ROWS


class ToyRun:
    """Trains a toy model as the train step does: "eager", "traced" or "compiled"."""

    def __init__(self, config, num_replicas=1, mode="eager"):
        self.strategy = strategy_of(num_replicas)
        with self.strategy.scope():
            self.variables = create_variables()
            self.optimizer = create_optimizer(WarmupSchedule(config, NUM_STEPS), self.variables)
        if mode == "compiled":
            self._replica_step = tf.function(self._replica_step, jit_compile=True)
        self._run_step = lambda: self.strategy.run(self._replica_step)
        if mode != "eager":
            self._run_step = tf.function(self._run_step)

    def step(self):
        """One step; returns the loss before it."""
        losses = self.strategy.experimental_local_results(self._run_step())
        return float(sum(loss.numpy() for loss in losses))

    def state(self):
        return arrays_of([*self.variables, *self.optimizer.variables])

    def load_state(self, arrays):
        for variable in [*self.variables, *self.optimizer.variables]:
            variable.assign(arrays[variable.path])

    def _replica_step(self):
        tokens = tf.constant(np.arange(NUM_ROWS) % 4)
        targets = tf.constant((np.arange(NUM_ROWS) % 4 + 1) % 5)
        context = tf.distribute.get_replica_context()
        share = NUM_ROWS // self.strategy.num_replicas_in_sync
        first = context.replica_id_in_sync_group * share
        tensors = [variable.value for variable in self.variables]
        with tf.GradientTape() as tape:
            loss = loss_of(tensors, tokens[first:][:share], targets[first:][:share])
        gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, tensors)]
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self.optimizer.apply(gradients, self.variables)
        return loss


@functools.cache
def recorded(name, num_replicas=1, mode="eager"):
    """A run, its losses, and the state after each of its steps, the initial one first."""
    run = ToyRun(config_of(name), num_replicas, mode)
    losses, states = [], [run.state()]
    for _ in range(NUM_STEPS):
        losses.append(run.step())
        states.append(run.state())
    return run, losses, states


def given_gradients(num_steps):
    random = np.random.default_rng(9)
    return [
        {path: random.normal(size=shape) * 10.0**-step for path, shape in SHAPES.items()}
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_of_the_paper(name):
    config, step_of = config_of(name), CASES[name][2]
    variables = create_variables()
    optimizer = create_optimizer(WarmupSchedule(config, NUM_STEPS), variables)
    initial = arrays_of(variables)
    gradients_of_steps, rates = given_gradients(NUM_STEPS), []
    for gradients in gradients_of_steps:
        rates.append(float(optimizer.learning_rate))
        optimizer.apply([tf.constant(each, tf.float32) for each in gradients.values()], variables)
    assert len(set(rates)) == NUM_STEPS
    expected = oracles.run_oracle(step_of, initial, gradients_of_steps, rates, config.weight_decay)
    trained = arrays_of(variables)
    # Muon's iteration is not contracting, so rounding errors grow in it.
    tolerance = 1e-4 if name == "muon" else 3e-6
    for path, array in expected.items():
        np.testing.assert_allclose(trained[path], array, rtol=0, atol=tolerance, err_msg=path)
        assert np.abs(array - initial[path]).max() > 1e-2, path


@pytest.mark.parametrize("name", ["muon", slow_case("lamb")])
def test_two_replicas_do_the_same_as_one_and_stay_equal(name):
    _, losses, states = recorded(name)
    run, other_losses, other_states = recorded(name, 2, "traced")
    assert other_losses == pytest.approx(losses, rel=1e-5)
    assert largest_relative_difference(states[-1], other_states[-1]) < 1e-5
    for variable in [*run.variables, *run.optimizer.variables]:
        first, second = run.strategy.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=variable.path)


@pytest.mark.parametrize("name", ["muon", slow_case("lamb")])
def test_a_compiled_step_does_the_same(name):
    _, losses, states = recorded(name)
    _, other_losses, other_states = recorded(name, 1, "compiled")
    assert other_losses == pytest.approx(losses, rel=1e-5)
    assert largest_relative_difference(states[-1], other_states[-1]) < 1e-5


def assert_resumes(name, num_replicas, mode):
    _, losses, states = recorded(name, num_replicas, mode)
    resumed = ToyRun(config_of(name), num_replicas, mode)
    for step in (3, 5):  # The later state is taken up by one that has already run.
        resumed.load_state(states[step])
        assert [resumed.step() for _ in range(2)] == losses[step : step + 2]
        state = resumed.state()
        for path, array in states[step + 2].items():
            np.testing.assert_array_equal(state[path], array, err_msg=path)


@pytest.mark.parametrize("name", CASES)
def test_resuming_from_the_variables_goes_on_bit_for_bit(name):
    assert_resumes(name, 1, "eager")


@pytest.mark.slow
@pytest.mark.parametrize(("num_replicas", "mode"), [(2, "traced"), (1, "compiled")], ids=str)
def test_a_traced_step_resumes_bit_for_bit(num_replicas, mode):
    assert_resumes("muon", num_replicas, mode)


def test_the_configuration_makes_the_same_optimizer():
    optimizer = Lamb(learning_rate=0.05, max_weight_norm=3.0)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
