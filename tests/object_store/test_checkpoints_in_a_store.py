"""Checkpoints in a store that fails: whole or not there, and never taken for damaged."""

import pytest

from tests.training.test_checkpoint_store import IDENTITY, arrays_of, assert_is_state_of
from txl_tf.errors import StorageError
from txl_tf.training.checkpoint_store import CheckpointStore

FOLDER = "gs://checkpoints/run/checkpoints"


@pytest.mark.slow
def test_a_store_that_stays_away_is_no_damage_at_whatever_request(object_store):
    CheckpointStore(FOLDER, IDENTITY).save(5, arrays_of(5))
    object_store.requests(clear=True)
    assert_is_state_of(5, CheckpointStore(FOLDER, IDENTITY).load(5))
    # The client asks ten times more, so each outage begins with one request and ends one reading.
    num_requests = len(object_store.requests(clear=True))
    for skipped in range(0, num_requests, 2):
        object_store.set_faults({"kinds": ["503"], "skip": skipped, "count": 11})
        try:
            loaded = CheckpointStore(FOLDER, IDENTITY).load_latest()
        except (StorageError, OSError):
            continue
        step, arrays, complaints = loaded
        assert (step, complaints) == (5, [])
        assert_is_state_of(5, arrays)
    object_store.set_faults({"kinds": ["503"], "path": "state"})
    with pytest.raises(StorageError):
        CheckpointStore(FOLDER, IDENTITY).load(5)


@pytest.mark.slow
def test_what_was_not_saved_whole_is_not_there(object_store):
    store = CheckpointStore(FOLDER, IDENTITY)
    store.save(10, arrays_of(10))
    object_store.set_faults({"kinds": ["503"], "method": "PUT|POST", "skip": 3})
    with pytest.raises(StorageError):
        store.save(15, arrays_of(15))
    object_store.set_faults()
    assert CheckpointStore(FOLDER, IDENTITY).load_latest()[0] == 10
    store.save(15, arrays_of(15))
    assert CheckpointStore(FOLDER, IDENTITY).load_latest()[0] == 15


@pytest.mark.slow
def test_a_listing_that_lags_behind_costs_no_checkpoint(object_store):
    folder = "gs://lagging/run/checkpoints"
    CheckpointStore(folder, IDENTITY).save(5, arrays_of(5))
    object_store.control(lag_seconds=600.0)
    store = CheckpointStore(folder, IDENTITY)
    store.save(10, arrays_of(10))
    CheckpointStore(folder, IDENTITY).remove_leftovers()
    object_store.control(lag_seconds=0.0)
    step, arrays, complaints = CheckpointStore(folder, IDENTITY).load_latest()
    assert (step, complaints) == (10, [])
    assert_is_state_of(10, arrays)
