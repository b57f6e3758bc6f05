"""Order of examples by arithmetic, and their batches."""

import numpy as np

from tests.tasks.small_examples import BYTES, example, task_of
from txl_tf.tasks.encoding import encode_examples
from txl_tf.training.objectives.example_reader import ExamplePlan, ExampleReader

T = 4
EXAMPLES = [example("a" * length, label="no" if length % 2 else "yes") for length in range(1, 8)]


def reader_of(num_rows=3):
    encoded = encode_examples(task_of("classification"), BYTES, EXAMPLES)
    plan = ExamplePlan(num_examples=7, num_rows=num_rows, seed=0, fingerprint="f")
    return encoded, plan, ExampleReader(encoded, plan, T)


def expected_batch(encoded, numbers, length):
    texts = [encoded.token_ids[slice(*encoded.offsets[n:][:2])] for n in numbers]
    token_ids = np.zeros((len(numbers), length), np.int32)
    for row, text in enumerate(texts):
        token_ids[row, : len(text)] = text
    return token_ids, np.array([len(text) for text in texts])


def test_a_batch_has_the_examples_of_its_step_and_names_them():
    encoded, plan, reader = reader_of()
    batches = list(reader.dataset_fn(2, range(3), 3, 5).as_numpy_iterator())
    assert len(batches) == 5
    num_tokens = 0
    for step, batch in enumerate(batches, start=2):
        positions = plan.examples_of(step, 1)[0]
        token_ids, counts = expected_batch(encoded, positions, reader.length)
        np.testing.assert_array_equal(batch["token_ids"], token_ids)
        np.testing.assert_array_equal(batch["num_tokens"], counts)
        np.testing.assert_array_equal(batch["targets"], encoded.targets[positions])
        name = f"row 1 ({EXAMPLES[positions[1]].where})"
        assert reader.describe_row(step, 1) == name
        num_tokens += counts.sum()
    assert reader.count_tokens(2, 7) == num_tokens


def test_replicas_take_turns_and_share_out_all_rows():
    _, _, reader = reader_of()
    whole = list(reader.dataset_fn(0, range(4), 4, 3).as_numpy_iterator())
    parts = list(reader.dataset_fn(0, range(4), 2, 3).as_numpy_iterator())
    hosts = [list(reader.dataset_fn(0, range(n, n + 2), 2, 3).as_numpy_iterator()) for n in (0, 2)]
    for step, batch in enumerate(whole):
        for name, array in batch.items():
            pair = parts[2 * step][name], parts[2 * step + 1][name]
            np.testing.assert_array_equal(array, np.concatenate(pair))
            np.testing.assert_array_equal(
                array, np.concatenate([host[step][name] for host in hosts])
            )
        # The fourth row of three is made up of the first.
        np.testing.assert_array_equal(batch["token_ids"][3], batch["token_ids"][0])


def plan_of(num_examples=23, num_rows=4, seed=0, fingerprint="f"):
    return ExamplePlan(
        num_examples=num_examples, num_rows=num_rows, seed=seed, fingerprint=fingerprint
    )


def test_every_epoch_has_every_example_once_in_an_order_of_its_own():
    stream = plan_of().examples_of(0, 23).ravel()  # four epochs
    epochs = stream.reshape(4, 23)
    for epoch in epochs:
        assert sorted(epoch) == list(range(23))
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_later_step_is_arithmetic():
    whole = plan_of().examples_of(0, 40)
    assert plan_of().examples_of(23, 0).shape == (0, 4)
    for first_step in (0, 1, 5, 17, 39):
        np.testing.assert_array_equal(plan_of().examples_of(first_step, 1)[0], whole[first_step])
        np.testing.assert_array_equal(
            plan_of().examples_of(first_step, 40 - first_step), whole[first_step:]
        )


def test_seed_and_examples_decide_an_order_that_is_the_same_in_every_version():
    assert plan_of(num_examples=8).examples_of(0, 2).ravel().tolist() == [0, 6, 7, 4, 5, 1, 3, 2]
    for change in ({"seed": 1}, {"fingerprint": "g"}):
        other = plan_of(**change).examples_of(0, 6)
        assert not np.array_equal(plan_of().examples_of(0, 6), other)
