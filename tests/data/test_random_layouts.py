"""Rows, segments, replicas and hosts at random: the corpus is read in order by all.

python -m pytest -m slow tests/data/test_random_layouts.py --layouts 500
"""

import numpy as np
import pytest

from tests.data.test_segment_reader import assert_epoch_is_the_corpus
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.data.segment_reader import SegmentReader


def layout(random):
    """Hosts, replicas of a host, rows of a replica, tokens of a segment and of the corpus."""
    hosts, replicas, rows_per_replica = (int(random.integers(1, high)) for high in (5, 4, 4))
    segment_length = int(random.integers(1, 40))
    num_rows = hosts * replicas * rows_per_replica
    least = num_rows * segment_length + 1
    num_tokens = least + int(random.integers(0, 6 * least))
    return hosts, replicas, rows_per_replica, segment_length, num_tokens


def read(dataset, plan, first_step, num_steps, hosts, replicas):
    """All batches, put together from what every replica of every host reads."""
    per_host = plan.num_rows // hosts
    pieces = [
        list(
            SegmentReader(dataset, "train", plan)
            .dataset_fn(
                first_step,
                range(host * per_host, (host + 1) * per_host),
                per_host // replicas,
                num_steps,
            )
            .as_numpy_iterator()
        )
        for host in range(hosts)
    ]
    return [
        {
            name: np.concatenate(
                [
                    piece[step * replicas + replica][name]
                    for piece in pieces
                    for replica in range(replicas)
                ]
            )
            for name in pieces[0][0]
        }
        for step in range(num_steps)
    ]


@pytest.mark.slow
def test_all_hosts_together_read_the_corpus_in_order(make_dataset, pytestconfig):
    for seed in range(pytestconfig.getoption("layouts")):
        random = np.random.default_rng(seed)
        hosts, replicas, rows_per_replica, segment_length, num_tokens = layout(random)
        dataset, tokens = make_dataset(
            num_tokens,
            tokens_per_record=int(random.integers(1, 200)),
            records_per_shard=int(random.integers(1, 9)),
            name=f"data_{seed}",
        )
        plan = SegmentPlan(
            num_tokens=num_tokens,
            num_rows=hosts * replicas * rows_per_replica,
            segment_length=segment_length,
            fingerprint=dataset.fingerprint,
        )
        num_steps = plan.segments_per_epoch
        batches = read(dataset, plan, 0, num_steps, hosts, replicas)
        assert_epoch_is_the_corpus(batches, plan, tokens)
        # A host alone that starts later reads what the others read, from there on.
        first_step = int(random.integers(0, num_steps))
        alone = read(dataset, plan, first_step, num_steps - first_step, 1, 1)
        for step, batch in enumerate(alone, start=first_step):
            for name, values in batch.items():
                np.testing.assert_array_equal(batches[step][name], values, err_msg=f"seed {seed}")
