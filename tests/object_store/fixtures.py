"""The test store as fixtures: one process for a session, empty of faults for every test."""

import pytest

from tests.object_store.object_store import running_store


@pytest.fixture(scope="session")
def store_process(tmp_path_factory):
    with running_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def object_store(store_process, monkeypatch):
    """A store that this process reaches under `gs://`; each test has a bucket of its own name."""
    for name, value in store_process.environment.items():
        monkeypatch.setenv(name, value)
    store_process.reset()
    yield store_process
    store_process.reset()
