"""Set-up of every test process, and fixtures that every test uses.

Each process has two logical CPUs, which stand in for two replicas.
"""

import collections
import gc
import os
import signal
from pathlib import Path

from txl_tf.storage.files import set_read_ahead

os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Jobs in processes of their own have another current folder and must find this checkout.
_PATHS = [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PATHS))
# TensorFlow reads it when it is loaded. Its client of stores then retries at once.
os.environ.setdefault("GCS_RETRY_CONFIG_INIT_DELAY_TIME_US", "0")
set_read_ahead()

import hypothesis
import pytest

# Examples are the same everywhere, and the time on a loaded machine must not decide a test.
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

# A search of young objects follows every 7,000 new ones. After fewer searches there is little to
# free.
_MANY_SEARCHES = 20
# The list has slow files and others, because a file without selected tests costs no time.
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

    # Idle threads of a pool spin, and the arrays of the tests are too small to be divided.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()],
    )

    # Each call that sets a seed would also drop all kernels, so functions that tests share would be
    # optimized again. Only random operations with a state need this, and the tests have none.
    pywrap_tfe.TFE_ContextClearCaches = lambda context: None

    # Tuning is off for the reason that `TrainingSegments` gives. Iterators of replicas and of Keras
    # would turn it on.
    options = tf.data.Options()
    options.autotune.enabled = False
    # Every iterator calls this method, and TensorFlow has no default options to set.
    tf.data.Dataset._apply_debug_options = lambda dataset: dataset.with_options(options)


def pytest_collection_modifyitems(config, items):
    """Puts the longest files first, so that no process waits for another at the end."""
    if not hasattr(config, "workerinput"):
        return
    places = {f"{name}.py": place for place, name in enumerate(_LONGEST_FILES)}
    sizes = collections.Counter(item.path for item in items)

    def order(item):
        name = str(item.path.relative_to(Path(__file__).parent))
        return places.get(name, len(places)), -sizes[item.path], name

    items.sort(key=order)


def pytest_collection_finish():
    """Excludes imported objects from searches for garbage, because they stay until the end."""
    gc.collect()
    gc.freeze()
    # Each search of all live objects, which are mostly traced functions, takes seconds.
    gc.set_threshold(700, 10, 1_000)


@pytest.fixture(scope="module", autouse=True)
def collected_garbage():
    """Frees the garbage of a file after its tests; else it would grow to gigabytes."""
    yield
    if gc.get_count()[-1] >= _MANY_SEARCHES:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def seeded():
    """Seeds Keras, so that every run of a test has the same initial weights."""
    import keras

    keras.utils.set_random_seed(1234)


@pytest.fixture(autouse=True)
def chips_as_before(monkeypatch):
    """Restores `TPU_LOAD_LIBRARY`, which jobs in this process set; the next test may need a TPU."""
    before = os.environ.get("TPU_LOAD_LIBRARY")
    monkeypatch.setenv("TPU_LOAD_LIBRARY", before or "")
    if before is None:
        monkeypatch.delenv("TPU_LOAD_LIBRARY")


@pytest.fixture(autouse=True)
def signals_as_before():
    """Restores handlers of signals; a stopped run ignores signals, and new processes would too."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture
def rounds_products():
    """Lets TensorFlow round products, and returns the function that tells whether it may."""
    from tensorflow import config

    rounds = config.experimental.tensor_float_32_execution_enabled
    before = rounds()
    config.experimental.enable_tensor_float_32_execution(True)
    yield rounds
    config.experimental.enable_tensor_float_32_execution(before)


@pytest.fixture(scope="module")
def server():
    """Yields the `ForkServer` of this process, and ends its runs after the tests of a file."""
    yield shared_server()
    shared_server().end_runs()
