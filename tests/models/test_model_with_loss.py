"""Keras' own loops on unusual data: unknown lengths, weighted rows, ids out of range."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from tests.slow_case import slow_case
from tests.small_models import SEGMENT_LENGTH, VOCABULARY_SIZE, strategy_of, toy_experiment
from txl_tf.models.stateful import StatefulTransformerXL

NUM_ROWS = SEGMENT_LENGTH  # so that weights of rows could be taken for weights of positions
CONFIG = toy_experiment(model={"num_layers": 1, "memory_length": 40}).model
IDS = np.random.default_rng(3).integers(0, VOCABULARY_SIZE, (3 * NUM_ROWS, SEGMENT_LENGTH + 1))
X, Y = IDS[:, :-1], IDS[:, 1:]


def known(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(NUM_ROWS, drop_remainder=True)


def unknown(x=X, y=Y):
    return known(x, y).filter(lambda *batch: True)


def stateful(rate=0.0, **options):
    keras.utils.set_random_seed(1)
    model = StatefulTransformerXL(CONFIG, NUM_ROWS)
    model.compile(keras.optimizers.SGD(rate), **options)
    return model


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_of_unknown_length_give_the_numbers_of_a_known_one():
    results = []
    for data in (known(), unknown()):
        model = stateful(0.1, jit_compile=False)
        fitted = model.fit(data, validation_data=data, verbose=0).history
        lengths = model.memory.valid_length.numpy().tolist()
        results.append(
            [fitted, lengths, int(model.optimizer.iterations), model.evaluate(data, verbose=0)]
        )
        lm = txl_tf.TransformerXLCausalLM(stateful().transformer_xl)
        lm.compile("sgd", jit_compile=False)
        results[-1].append(lm.fit(data, validation_data=data, verbose=0).history)
        task = txl_tf.TransformerXLWithHead(lm.model, txl_tf.layers.PooledHead(2, dropout=0.0))
        task.compile("sgd", jit_compile=False)
        labelled = data.map(lambda x, y: (x, y[:, 0] % 2))
        results[-1] += [
            task.fit(labelled, shuffle=False, verbose=0).history,
            int(task.optimizer.iterations),
        ]
    assert results[0] == results[1]
    assert results[0][1:3] == [[3 * SEGMENT_LENGTH] * NUM_ROWS, 3]


def test_weights_of_rows_weigh_all_tokens_of_their_rows():
    x, y, weights = X[:NUM_ROWS], Y[:NUM_ROWS], np.arange(1.0, NUM_ROWS + 1)
    model = stateful()
    nats = model.transformer_xl.score(x, y, model.transformer_xl.initial_memory(NUM_ROWS))[0]
    expected = np.mean(weights[:, None] * nats)
    assert model.evaluate(x, y, sample_weight=weights, verbose=0) == pytest.approx(expected)
    of_tokens = np.repeat(weights[:, None], SEGMENT_LENGTH, axis=1)
    assert model.evaluate(x, y, sample_weight=of_tokens, verbose=0) == pytest.approx(expected)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "sparse_categorical_crossentropy"},
        {"loss": keras.losses.SparseCategoricalCrossentropy()},
        {"loss": keras.losses.sparse_categorical_crossentropy},
        {"metrics": ["accuracy", "ce"]},
        {"weighted_metrics": [keras.metrics.SparseCategoricalCrossentropy()]},
    ],
)
def test_losses_and_metrics_of_probabilities_are_refused(options):
    with pytest.raises(ValueError, match=r"must take logits, such as .*Received: "):
        stateful(**options)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("jit_compile", [False, slow_case(True)])
@pytest.mark.parametrize("data_of", [known, lambda *pair: iter([pair])])
def test_ids_outside_the_vocabulary_are_refused_before_a_step(data_of, jit_compile):
    x, y = X[:NUM_ROWS], Y[:NUM_ROWS]
    bad = np.where(x == x[2, 1], VOCABULARY_SIZE, x)
    model = stateful(jit_compile=jit_compile)

    for pair in ((bad, y), (x, bad)):
        with pytest.raises(
            (ValueError, tf.errors.InvalidArgumentError), match=r"ids` must be in \["
        ):
            model.fit(data_of(*pair), verbose=0)
    assert int(model.optimizer.iterations) == 0
    model.fit(data_of(x, y), verbose=0)
    for read in (
        lambda: model.fit(bad, y, verbose=0),
        lambda: model.evaluate(bad, y, verbose=0),
        lambda: model.predict(bad, verbose=0),
        lambda: model.train_on_batch(bad, y),
        lambda: model.test_on_batch(bad, y),
        lambda: model.predict_on_batch(bad),
    ):
        with pytest.raises(ValueError, match=r"`token_ids` must be in \["):
            read()


def test_an_optimizer_of_other_variables_is_refused_with_the_remedy():
    lm = txl_tf.TransformerXLCausalLM(txl_tf.TransformerXL(CONFIG))
    lm.compile("adam", run_eagerly=True)
    lm.fit(known(), verbose=0)
    lm.model.blocks[0].attention.query.enable_lora(2)
    with pytest.raises(ValueError, match=r"call `lm.compile\(\)` again"):
        lm.fit(known(), verbose=0)
    lm.compile("adam", run_eagerly=True)
    lm.fit(known(), verbose=0)


def test_a_model_with_memory_is_no_part_of_another():
    model = stateful()
    with pytest.raises(ValueError, match=r"must not continue the memory of training"):
        model(keras.Input(batch_shape=(NUM_ROWS, SEGMENT_LENGTH), dtype="int32"))


def test_replicas_of_keras_fit_draw_masks_of_their_own():
    strategy = strategy_of(2)
    with strategy.scope():
        table = keras.layers.Embedding(8, 64, embeddings_initializer="zeros")
        dropout = txl_tf.layers.SeededDropout(0.5, seed=1)
        model = keras.Sequential([keras.Input((1,), dtype="int32"), table, dropout])
        model.compile(keras.optimizers.SGD(1.0), lambda y, outputs: keras.ops.sum(outputs, (1, 2)))
    rows = np.arange(8)[:, None]
    model.fit(rows, rows, batch_size=8, shuffle=False, verbose=0)
    dropped = model.get_weights()[0] == 0.0
    assert len({row.tobytes() for row in dropped}) == 8
