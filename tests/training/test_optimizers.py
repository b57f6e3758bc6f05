"""Optimizers by name, with implementations of Adafactor, LAMB and Muon."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_batches import largest_relative_difference, strategy_of
from tests.training import optimizer_oracles as oracles
from txl_tf.config.experiment import OptimizerConfig
from txl_tf.training.optimizers import (
    Adafactor,
    Lamb,
    PlateauScale,
    WarmupSchedule,
    create_optimizer,
)

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
    "adafactor": (1e-1, {"weight_decay": 0.3}, oracles.adafactor),
    "muon": (
        3e-2,
        {**ADAM, "weight_decay": 0.3, "momentum": 0.9},
        oracles.muon(0.9, 0.8, 0.95, 1e-3),
    ),
    "sgd": (
        3e-1,
        {"weight_decay": 0.03, "momentum": 0.7, "nesterov": True},
        oracles.sgd(0.7, nesterov=True),
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
            is_plateau = config.schedule == "plateau"
            self.plateau_scale = PlateauScale(config) if is_plateau else None
            schedule = WarmupSchedule(config, NUM_STEPS, self.plateau_scale)
            self.optimizer = create_optimizer(schedule, self.variables)
        self.num_traces = 0
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
        self.num_traces += 1
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


@pytest.mark.parametrize("name", ["muon", slow_case("lamb"), slow_case("adafactor")])
def test_two_replicas_do_the_same_as_one_and_stay_equal(name):
    _, losses, states = recorded(name)
    run, other_losses, other_states = recorded(name, 2, "traced")
    assert other_losses == pytest.approx(losses, rel=1e-5)
    assert largest_relative_difference(states[-1], other_states[-1]) < 1e-5
    for variable in [*run.variables, *run.optimizer.variables]:
        first, second = run.strategy.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=variable.path)


@pytest.mark.parametrize("name", ["muon", slow_case("lamb"), slow_case("adafactor")])
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


@pytest.mark.parametrize("name", [name for name in CASES if name != "adam"])
def test_only_what_is_no_bias_and_no_scale_decays(name):
    variables = create_variables()
    config = config_of(name, learning_rate=0.5, warmup_steps=0, weight_decay=0.1)
    optimizer = create_optimizer(WarmupSchedule(config, NUM_STEPS), variables)
    before = arrays_of(variables)
    optimizer.apply([tf.zeros(variable.shape) for variable in variables], variables)
    factors = dict.fromkeys(SHAPES, 1.0)
    for path in ("embedding/table", "inner/kernel", "outer/kernel"):
        factors[path] = 1.0 - 0.5 * 0.1
    for path, array in arrays_of(variables).items():
        np.testing.assert_allclose(array, before[path] * factors[path], rtol=1e-6, err_msg=path)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_plateau_lowers_the_learning_rate_of_a_traced_step(num_replicas):
    config = config_of("adamw", schedule="plateau", plateau_factor=0.25, warmup_steps=0)
    run = ToyRun(config, num_replicas, "traced")
    rate = config.learning_rate
    run.step()
    num_traces = run.num_traces
    assert not run.plateau_scale.observe(2.0)
    assert float(run.optimizer.learning_rate) == pytest.approx(rate)
    start = run.state()
    run.step()
    whole = run.state()
    run.load_state(start)
    assert run.plateau_scale.observe(2.0)
    assert float(run.optimizer.learning_rate) == pytest.approx(0.25 * rate)
    run.step()
    quarter = run.state()
    for path in SHAPES:
        np.testing.assert_allclose(
            quarter[path] - start[path], 0.25 * (whole[path] - start[path]), atol=1e-6, rtol=0
        )
    assert np.abs(whole["inner/kernel"] - start["inner/kernel"]).max() > 1e-3
    assert run.num_traces == num_traces


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("cosine", [0.2, 0.4, 0.1 * 0.4]),
        ("wsd", [0.2, 0.4, 0.1 * 0.4]),
        ("inverse_square_root", [0.2, 0.4, 0.4 * (2 / NUM_STEPS) ** 0.5]),
        ("constant", [0.2, 0.4, 0.4]),
        ("plateau", [0.2, 0.4, 0.4]),
    ],
)
def test_the_learning_rate_is_that_of_the_schedule(schedule, rates):
    floor = (
        {"final_learning_rate_fraction": 0.1} if schedule in ("cosine", "wsd", "plateau") else {}
    )
    config = config_of("sgd", schedule=schedule, learning_rate=0.4, **floor)
    plateau_scale = PlateauScale(config) if schedule == "plateau" else None
    optimizer = create_optimizer(WarmupSchedule(config, NUM_STEPS, plateau_scale), [])
    for step, rate in zip((1, 2, NUM_STEPS), rates, strict=True):
        optimizer.iterations.assign(step - 1)
        assert float(optimizer.learning_rate) == pytest.approx(rate), step


def variables_of(*shapes):
    with keras.name_scope("block"):
        return [keras.Variable(tf.ones(shape), name=f"weight_{len(shape)}") for shape in shapes]


def test_the_state_of_adafactor_is_a_row_and_a_column_of_each_matrix():
    variables = variables_of((50, 40), (3, 50, 40), (40,))
    optimizer = Adafactor(0.01, name="optimizer")
    optimizer.build(variables)
    sizes = {each.path: tuple(each.shape) for each in optimizer.variables if len(each.shape)}
    assert sizes == {
        "optimizer/block_weight_2_rows": (50,),
        "optimizer/block_weight_2_columns": (40,),
        "optimizer/block_weight_3_rows": (3, 50),
        "optimizer/block_weight_3_columns": (3, 40),
        "optimizer/block_weight_1_squares": (40,),
    }


@pytest.mark.parametrize("jit_compile", [False, True])
def test_rows_and_columns_without_gradients_stay_as_they_are(jit_compile):
    # As those of tokens that are not in the batch, and of features that are switched off.
    gradient = np.full((4, 5), 1e-3, np.float32)
    gradient[1], gradient[:, 2] = 0.0, 0.0
    (variable,) = variables_of((4, 5))
    optimizer = Adafactor(0.1, name="optimizer")
    optimizer.build([variable])

    @tf.function(jit_compile=jit_compile)
    def step():
        optimizer.apply([tf.constant(gradient)], [variable])

    for _ in range(3):
        step()
    is_still = gradient == 0.0
    np.testing.assert_array_equal(variable.numpy()[is_still], 1.0)
    assert (variable.numpy()[~is_still] < 0.9).all()


@pytest.mark.parametrize(
    "optimizer",
    [Lamb(learning_rate=0.05, max_weight_norm=3.0), Adafactor(0.05, weight_decay=0.25)],
)
def test_the_configuration_makes_the_same_optimizer(optimizer):
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()
