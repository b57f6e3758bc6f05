"""Set-up of every test process: two logical CPUs stand in for two replicas."""

import collections
import gc
import os
import signal
from pathlib import Path

from txl_tf.storage.files import set_read_ahead

os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# For jobs in processes of their own with another current folder.
_PATHS = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))
# Read when TensorFlow is loaded: its client of stores tries again at once.
os.environ.setdefault("GCS_RETRY_CONFIG_INIT_DELAY_TIME_US", "0")
set_read_ahead()

import hypothesis
import pytest

# The same examples everywhere: what a loaded machine takes must not decide a test.
hypothesis.settings.register_profile(
    "reproducible",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("reproducible")

from pipelines.shell.tensorflow_import import import_tensorflow
from tests.object_store import object_store, store_process  # noqa: F401
from tests.pipelines.fork_server import shared_server

# Searches of young objects, each after 7,000 more: below, there is little to free.
_MANY_SEARCHES = 20
# Slow ones and others together: a file without selected tests costs no time.
_LONGEST_FILES = (
    "tpu_compiler/test_executed_program",
    "distribution/test_pod",
    "test_readme",
    "pipelines/run/test_kill",
    "pipelines/run/test_initial_weights",
    "pipelines/run/test_preemption",
    "test_documentation",
    "pipelines/jobs/test_finetune",
    "pipelines/run/test_elastic",
    "tpu_compiler/test_tpu_wheel",
    "models/test_stateful",
    "models/test_jax_backend",
    "tpu_kernels/test_attention_kernels",
    "pipelines/jobs/test_serve",
    "pipelines/jobs/test_quickstart",
    "data/test_preparation_interruption",
    "export/test_clean_process",
    "tpu_compiler/test_traced_programs",
    "training/test_equal_runs",
    "training/test_trainer",
)


def pytest_configure(config):
    """Sets up TensorFlow in a process that runs tests, but not in one that hands them out."""
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if hands_out or os.environ["KERAS_BACKEND"] != "tensorflow":
        return
    tf = import_tensorflow()
    from tensorflow.python import pywrap_tfe

    # Idle threads of a pool spin, and the arrays here are too small to be shared among them.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()],
    )

    # Every seed would also drop all kernels, and functions that tests share would be optimized
    # again for each. Only random operations with a state of their own need it; there are none here.
    pywrap_tfe.TFE_ContextClearCaches = lambda context: None

    # Tuning is off for the reason that `TrainingSegments` gives; iterators of replicas and of Keras
    # have it on.
    options = tf.data.Options()
    options.autotune.enabled = False
    # Every iterator calls this method, and TensorFlow has no default options to set.
    tf.data.Dataset._apply_debug_options = lambda dataset: dataset.with_options(options)


def pytest_collection_modifyitems(config, items):
    """Begins with the files that take longest, or one process would wait for another at the end."""
    if not hasattr(config, "workerinput"):
        return
    places = {f"{name}.py": place for place, name in enumerate(_LONGEST_FILES)}
    sizes = collections.Counter(item.path for item in items)

    def order(item):
        name = str(item.path.relative_to(Path(__file__).parent))
        return places.get(name, len(places)), -sizes[item.path], name

    items.sort(key=order)


def pytest_collection_finish():
    """What was imported stays: collecting garbage of tests need not look through it."""
    gc.collect()
    gc.freeze()
    # A search of all live objects, mostly traced functions, takes seconds each time.
    gc.set_threshold(700, 10, 1_000)


@pytest.fixture(scope="module", autouse=True)
def garbage_of_a_file_ends_with_it():
    """Collected rarely, the garbage of all files would grow to gigabytes in one process."""
    yield
    if gc.get_count()[-1] >= _MANY_SEARCHES:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def seeded():
    """The same initial weights in every run of a test."""
    import keras

    keras.utils.set_random_seed(1234)


@pytest.fixture(autouse=True)
def chips_as_before(monkeypatch):
    """A job that runs in this process leaves the chips alone; the next test may look for them."""
    before = os.environ.get("TPU_LOAD_LIBRARY")
    monkeypatch.setenv("TPU_LOAD_LIBRARY", before or "")
    if before is None:
        monkeypatch.delenv("TPU_LOAD_LIBRARY")


@pytest.fixture(autouse=True)
def signals_as_before():
    """A run that was stopped in this process ignores signals, and so would what it starts."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(scope="module")
def server():
    """The `ForkServer` of this process."""
    yield shared_server()
    shared_server().end_runs()
