"""Ordered batches of training: the segments of the plan, on any host, and damage while reading."""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.small_models import strategy_of
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.training_segments import TrainingSegments
from txl_tf.errors import DataDamagedError


def plan_of(dataset, num_rows, segment_length, **arguments):
    return SegmentPlan(
        num_tokens=dataset.num_tokens("train"),
        num_rows=num_rows,
        segment_length=segment_length,
        fingerprint=dataset.fingerprint,
        **arguments,
    )


def batches_of(dataset, plan, first_step, num_steps, rows=None, per_replica_rows=None):
    rows = range(plan.num_rows) if rows is None else rows
    reader = TrainingSegments(dataset, "train", plan)
    batches = reader.dataset_fn(first_step, rows, per_replica_rows or len(rows), num_steps)
    return list(batches.as_numpy_iterator())


def assert_batch_is_planned(batch, plan, step, tokens):
    """The oracle: tokens of the corpus, taken at the places of the plan."""
    assert batch["token_ids"].dtype == batch["target_ids"].dtype == np.int32
    windows = plan.positions(step)[:, None] + np.arange(plan.segment_length)
    np.testing.assert_array_equal(batch["token_ids"], tokens[windows])
    np.testing.assert_array_equal(batch["target_ids"], tokens[windows + 1])
    np.testing.assert_array_equal(batch["start_of_stream"], plan.starts(step))


def test_rows_beyond_the_plan_repeat_it(make_dataset):
    dataset, tokens = make_dataset(900)
    plan = plan_of(dataset, 3, 10, rotate=True)
    for step, batch in enumerate(batches_of(dataset, plan, 0, 40, rows=range(4))):
        assert_batch_is_planned(
            {name: values[:3] for name, values in batch.items()}, plan, step, tokens
        )
        for values in batch.values():
            np.testing.assert_array_equal(values[3], values[0])


@pytest.mark.parametrize("with_document_starts", [False, True])
def test_batches_say_on_request_where_documents_begin(tmp_path, with_document_starts):
    random = np.random.default_rng(4)
    documents = [random.bytes(size) for size in [1, 130, 64, 63, 1, 1, 400, 500, 2, 700, 90]]
    prepare_dataset(
        {"train": documents},
        ByteTokenizer(),
        str(tmp_path / "data"),
        "documents",
        tokens_per_record=64,
        shard_bytes=1000,
    )
    dataset = PreparedDataset.open(str(tmp_path / "data"))
    begins = np.zeros(dataset.num_tokens("train"), bool)
    begins[np.cumsum([0, *map(len, documents[:-1])])] = True
    np.testing.assert_array_equal(dataset.read_document_starts("train", 0, len(begins)), begins)
    plan = plan_of(dataset, 3, 20, rotate=True)
    reader = TrainingSegments(dataset, "train", plan, with_document_starts)
    num_steps = 3 * plan.steps_per_epoch
    batches = list(reader.dataset_fn(0, range(3), 3, num_steps).as_numpy_iterator())
    assert len(batches) == num_steps
    for step, batch in enumerate(batches):
        assert ("document_starts" in batch) == with_document_starts
        if with_document_starts:
            windows = plan.positions(step)[:, None] + np.arange(20)
            np.testing.assert_array_equal(batch["document_starts"], begins[windows])


@pytest.mark.parametrize("seed", range(4))
def test_random_combinations_are_planned(make_dataset, seed):
    random = np.random.default_rng(seed)
    num_rows = int(random.integers(1, 7))
    length = int(random.integers(1, 40))
    dataset, tokens = make_dataset(
        num_rows * length + 1 + int(random.integers(0, 900)),
        tokens_per_record=int(random.integers(1, 60)),
        records_per_shard=int(random.integers(1, 9)),
        is_wide=seed == 3,
    )
    plan = plan_of(dataset, num_rows, length, rotate=seed % 2 == 0, seed=seed)
    first_step = int(random.integers(0, 3 * plan.steps_per_epoch))
    num_steps = min(40, 2 * plan.steps_per_epoch + 1)
    batches = batches_of(dataset, plan, first_step, num_steps)
    assert len(batches) == num_steps
    for index, batch in enumerate(batches):
        assert_batch_is_planned(batch, plan, first_step + index, tokens)
    # Each row is on a host of its own; the last host starts two steps later.
    rows = [range(row, row + 1) for row in range(num_rows)]
    hosts = [batches_of(dataset, plan, first_step, num_steps, rows=each) for each in rows[:-1]]
    late = batches_of(dataset, plan, first_step + 2, num_steps - 2, rows=rows[-1])
    for index, batch in enumerate(batches):
        parts = [host[index] for host in hosts] + ([late[index - 2]] if index >= 2 else [])
        for name, values in batch.items():
            together = [part[name][0] for part in parts]
            np.testing.assert_array_equal(together, values[: len(parts)])


def test_shapes_are_static_and_nothing_but_tensorflow_operations_is_in_the_graph(make_dataset):
    dataset, _ = make_dataset(300)
    reader = TrainingSegments(dataset, "train", plan_of(dataset, 4, 10, rotate=True))
    stream = reader.dataset_fn(2, range(4), 4, 1)
    graph = stream._as_serialized_graph().numpy()
    assert b"TFRecordDatasetV2" in graph
    assert b"PyFunc" not in graph and b"GeneratorDataset" not in graph
    assert stream.element_spec == {
        "token_ids": tf.TensorSpec([4, 10], tf.int32),
        "target_ids": tf.TensorSpec([4, 10], tf.int32),
        "start_of_stream": tf.TensorSpec([4], tf.bool),
    }


def test_replicas_of_a_strategy_keep_their_rows(make_dataset):
    dataset, tokens = make_dataset(400)
    plan = plan_of(dataset, 4, 10, rotate=True)
    strategy = strategy_of(2)
    reader = TrainingSegments(dataset, "train", plan)
    num_steps = 2 * plan.steps_per_epoch
    batches = strategy.distribute_datasets_from_function(
        lambda context: reader.dataset_fn(0, range(4), 2, num_steps)
    )
    for step, batch in enumerate(batches):
        replicas = {
            name: [part.numpy() for part in strategy.experimental_local_results(values)]
            for name, values in batch.items()
        }
        assert [len(part) for part in replicas["token_ids"]] == [2, 2]
        together = {name: np.concatenate(parts) for name, parts in replicas.items()}
        assert_batch_is_planned(together, plan, step, tokens)
    assert step == num_steps - 1


def test_a_row_is_described_with_its_file_and_record(make_dataset):
    dataset, _ = make_dataset(1500)  # five records of 64 tokens in a shard
    reader = TrainingSegments(dataset, "train", plan_of(dataset, 3, 20))
    place = "train-00001-of-00005.tfrecord record 2"
    assert reader.describe_row(0, 1) == f"row 1 (tokens 480 to 499, from {place})"


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def damage_cut_at_record(path):
    os.truncate(path, os.path.getsize(path) // 5 * 2)


@pytest.mark.parametrize("damage", [damage_flip, damage_cut_at_record, os.remove])
def test_damage_found_while_reading_is_named(make_dataset, damage):
    dataset, _ = make_dataset(1500)
    plan = plan_of(dataset, 2, 20)
    damage(Path(dataset.folder, "train-00003-of-00005.tfrecord"))
    with pytest.raises(tf.errors.OpError) as error:
        batches_of(dataset, plan, 0, plan.steps_per_epoch)
    explained = TrainingSegments(dataset, "train", plan).explain_data_loss(error.value)
    assert isinstance(explained, DataDamagedError)
    assert "train-00003-of-00005.tfrecord" in str(explained)


def test_an_error_without_damage_is_explained_as_such(make_dataset):
    dataset, _ = make_dataset(300)
    reader = TrainingSegments(dataset, "train", plan_of(dataset, 2, 20))
    explained = str(reader.explain_data_loss(RuntimeError("odd\nmore")))
    assert "every file matches" in explained and "odd" in explained


def test_rows_that_replicas_cannot_share_are_refused(make_dataset):
    dataset, _ = make_dataset(300)
    with pytest.raises(ValueError, match="must divide 4 rows"):
        TrainingSegments(dataset, "train", plan_of(dataset, 4, 10)).dataset_fn(0, range(4), 3, 1)
