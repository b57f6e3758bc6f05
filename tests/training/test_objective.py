"""The losses of intermediate layers and of second targets."""

import numpy as np
import pytest
import tensorflow as tf

from tests.toy_batches import ToyBatches, toy_experiment, toy_tokens
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.objective import AuxiliaryLosses
from txl_tf.training.trainer import Trainer

NUM_ROWS = 4
EVERY_ROW = tf.ones([NUM_ROWS])
NUM_LAYERS = 3
NUM_STEPS = 12
BOTH = {"intermediate_losses": True, "num_targets": 2}


def experiment_of(model=None, **training):
    return toy_experiment(
        model={"num_layers": NUM_LAYERS, **(model or {})},
        training={"num_steps": NUM_STEPS, **training},
    )


def trainer_of(model=None, **training):
    batches = ToyBatches(toy_tokens(), NUM_ROWS)
    experiment = experiment_of({"num_layers": 2, **(model or {})}, **training)
    return Trainer(experiment, tf.distribute.get_strategy(), batches.dataset_function)


def mean_nll(features, table, bias, target_ids):
    """The mean loss of a plain softmax, in NumPy."""
    logits = np.float64(features) @ np.float64(table).T + np.float64(bias)
    logits -= logits.max(axis=-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return -np.mean(np.take_along_axis(log_probs, target_ids[..., None], axis=-1))


class Expected:
    """The same losses from the model's outputs and weights."""

    def __init__(self, model, losses, batch):
        memory = model.initial_memory(NUM_ROWS)
        states, _ = model.hidden_states(batch["token_ids"], memory)
        self.hidden_states = states
        self.target_ids = batch["target_ids"]
        self._first = (model.embedding.tables[0].numpy(), model.softmax.biases[0].numpy())
        if losses.second_softmax is not None:
            softmax = losses.second_softmax
            self._second = (softmax.tables[0].numpy(), softmax.biases[0].numpy())

    def next_token(self, layer):
        return mean_nll(self.hidden_states[layer], *self._first, self.target_ids)

    def second_target(self, layer):
        hidden = np.asarray(self.hidden_states[layer])[:, :-1]
        return mean_nll(hidden, *self._second, self.target_ids[:, 1:])


def losses_and_expected(**training):
    config = experiment_of(**training)
    model = TransformerXL(config.model)
    losses = AuxiliaryLosses(model, config)
    if losses.second_softmax is not None:
        random = np.random.default_rng(5)
        for variable in losses.second_softmax.trainable_variables:
            variable.assign(random.normal(size=variable.shape))
    batch = ToyBatches(toy_tokens(), NUM_ROWS).batch(0)
    return losses, Expected(model, losses, batch)


# Of three layers the first stops after 1/6 of the run, the second after 2/6.


def test_a_layer_contributes_until_its_share_of_the_run_is_over():
    # 1/6 of 13 steps are 2.17: the third step begins before, the fourth after.
    losses, expected = losses_and_expected(intermediate_losses=True, num_steps=13)
    totals = [
        float(losses(expected.hidden_states, expected.target_ids, EVERY_ROW, tf.constant(step)))
        for step in range(14)
    ]
    first, second = expected.next_token(1), expected.next_token(2)
    wanted = [first + second] * 3 + [second] * 2 + [0.0] * 9
    assert totals == pytest.approx(wanted, rel=1e-5, abs=1e-7)


def test_a_second_target_counts_half_and_the_last_position_has_none():
    losses, expected = losses_and_expected(num_targets=2)
    assert not losses.needs_all_layers
    total = losses(expected.hidden_states[-1:], expected.target_ids, EVERY_ROW, tf.constant(0))
    assert float(total) == pytest.approx(0.5 * expected.second_target(NUM_LAYERS), rel=1e-5)


@pytest.mark.parametrize(("step", "layers"), [(0, [1, 2]), (3, [2]), (6, [])])
def test_second_targets_are_added_to_the_losses_of_their_layers(step, layers):
    losses, expected = losses_and_expected(**BOTH)
    total = losses(expected.hidden_states, expected.target_ids, EVERY_ROW, tf.constant(step))
    wanted = 0.5 * expected.second_target(NUM_LAYERS)
    for layer in layers:
        wanted += expected.next_token(layer) + 0.5 * expected.second_target(layer)
    assert float(total) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.slow
def test_the_reported_loss_is_that_of_the_next_token_alone():
    plain = trainer_of(loss_positions="last_half")
    helped = trainer_of(loss_positions="last_half", **BOTH)
    first, second = plain.run(), helped.run()
    one, other = next(first), next(second)
    assert other.nats_per_token == pytest.approx(one.nats_per_token, rel=1e-6)
    assert abs(other.gradient_norm - one.gradient_norm) > 1e-2
    # The weights went other ways.
    assert abs(next(first).nats_per_token - next(second).nats_per_token) > 1e-5
    assert not [name for name in plain.state() if name.startswith("auxiliary/")]


@pytest.mark.slow
def test_the_gradients_of_a_compiled_step_are_those_of_the_sum():
    trainer = trainer_of(jit_compile=True, **BOTH)
    model = trainer.model
    losses = trainer._state.objective._auxiliary_losses
    batch = ToyBatches(toy_tokens(), NUM_ROWS).batch(0)
    variables = [*model.trainable_variables, *losses.variables]
    with tf.GradientTape() as tape:
        states, _ = model.hidden_states(batch["token_ids"], model.initial_memory(NUM_ROWS))
        nll = model.negative_log_likelihood(states[-1], batch["target_ids"])
        total = tf.reduce_mean(nll) + losses(states, batch["target_ids"], EVERY_ROW, tf.constant(0))
    gradients = tape.gradient(total, [variable.value for variable in variables])
    norm = tf.linalg.global_norm([tf.convert_to_tensor(each) for each in gradients])
    assert next(trainer.run()).gradient_norm == pytest.approx(float(norm), rel=1e-4)


def test_clusters_of_the_vocabulary_are_the_second_softmax_s_too():
    config = experiment_of(
        {"cutoffs": (4, 8), "division_factor": 2, "share_tail_projections": True}, **BOTH
    )
    model = TransformerXL(config.model)
    losses = AuxiliaryLosses(model, config)
    softmax = losses.second_softmax
    assert [tuple(table.shape) for table in softmax.tables] == [(4, 8), (4, 4), (5, 2)]
    assert all(projection is not None for projection in softmax.projections)
    batch = ToyBatches(toy_tokens(), NUM_ROWS).batch(0)
    states, _ = model.hidden_states(batch["token_ids"], model.initial_memory(NUM_ROWS))
    # Three layers, each with a whole and a half loss, but the last one's whole.
    almost_uniform = 3.5 * np.log(13)
    assert float(losses(states, batch["target_ids"], EVERY_ROW, tf.constant(0))) == pytest.approx(
        almost_uniform, rel=0.25
    )


def resumable_trainer():
    model = {"dropout": 0.2, "attention_dropout": 0.2}
    return trainer_of(model, average_weights_from_step=2, num_steps=6, **BOTH)


@pytest.mark.slow
def test_resuming_is_bit_identical():
    trainer, losses = resumable_trainer(), []
    states = [trainer.state()]
    for report in trainer.run():
        losses.append(report.nats_per_token)
        states.append(trainer.state())
    resumed = resumable_trainer()
    # The first layer's loss stops after the second step.
    resumed.load_state(states[1])
    assert [report.nats_per_token for report in resumed.run()] == losses[1:]
    for name, array in resumed.state().items():
        np.testing.assert_array_equal(array, states[-1][name], err_msg=name)
    names = [name for name in states[0] if name.startswith("auxiliary/")]
    assert [name.rpartition("/")[2] for name in names] == ["table", "bias"]
    assert all(np.abs(states[-1][name] - states[0][name]).max() > 1e-3 for name in names)
