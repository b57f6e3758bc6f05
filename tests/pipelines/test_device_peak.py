"""Peak of the devices, and the share of it in the figures of a run."""

import contextlib
import time
from unittest import mock

import pytest
import tensorflow as tf

from pipelines.device_peak import measured_peak, product_rate, published_peak
from tests.pipelines.toy_run import toy_run_experiment, toy_training, train
from txl_tf.models.sizes import run_flops_per_token
from txl_tf.training.metrics import PROCESS_RUN, TRAINING_RUN, MetricsLog

RATE = 3e11


@pytest.fixture
def rates(monkeypatch):
    """The precisions that were measured."""
    asked = []

    def rate(dtype):
        asked.append(dtype)
        return RATE

    monkeypatch.setattr("pipelines.device_peak.product_rate", rate)
    return asked


def tpu(num_replicas):
    strategy = mock.Mock(spec=tf.distribute.TPUStrategy, num_replicas_in_sync=num_replicas)
    strategy.extended = None
    return strategy


@pytest.mark.parametrize(
    ("name", "num_replicas", "teraflops"),
    [("v5litepod-16", 16, 16 * 197), ("v3-8", 8, 4 * 123), ("v4-8", 4, 4 * 275)],
)
def test_a_tpu_has_the_published_peak_of_its_chips(monkeypatch, name, num_replicas, teraflops):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", name)
    found = published_peak(tpu(num_replicas))
    assert found.flops_per_second == pytest.approx(teraflops * 1e12)
    assert "published" in found.source


@pytest.mark.parametrize(
    ("policy", "dtype"), [("float32", "float32"), ("mixed_bfloat16", "bfloat16")]
)
def test_the_peak_is_measured_in_the_precision_of_the_run(rates, policy, dtype):
    experiment = toy_run_experiment(dtype_policy=policy)
    found = measured_peak(experiment, tf.distribute.get_strategy())
    assert rates == [dtype] and dtype in found.source
    assert found.flops_per_second == RATE


def test_replicas_share_the_cores_of_a_process_and_have_a_gpu_each(rates, monkeypatch):
    replicas = mock.Mock(spec=tf.distribute.MirroredStrategy, num_replicas_in_sync=4)
    monkeypatch.setattr("pipelines.device_peak.num_workers", lambda strategy: 1)
    assert measured_peak(toy_run_experiment(), replicas).flops_per_second == RATE
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["one"])
    assert measured_peak(toy_run_experiment(), replicas).flops_per_second == 4 * RATE


def test_the_machine_multiplies_as_fast_as_is_said(monkeypatch):
    monkeypatch.setattr("pipelines.device_peak._CPU_WIDTH", 512)
    monkeypatch.setattr("pipelines.device_peak._SECONDS", 0.05)
    rate = product_rate("float32")
    matrix = tf.ones((512, 512))
    begin = time.perf_counter()
    for _ in range(3):
        tf.matmul(matrix, matrix).numpy()
    # Other work on the machine slows either down, so that only the order of magnitude is sure.
    assert 0.01 < rate / (3 * 2 * 512**3 / (time.perf_counter() - begin)) < 100


def log_of_run(folder, seconds_before_peak):
    patch = mock.patch("pipelines.training_figures._SECONDS_BEFORE_PEAK", seconds_before_peak)
    with contextlib.ExitStack() as patches:
        patches.enter_context(toy_training())
        patches.enter_context(patch)
        train(folder)
    return MetricsLog(folder / "metrics.jsonl").read()


def test_the_share_times_the_peak_is_the_work_of_the_model(rates, tmp_path):
    log = log_of_run(tmp_path / "run", 0.0)
    (peak,) = (line["peak"] for line in log.lines if line["run"] == PROCESS_RUN)
    assert peak == {"flops_per_second": RATE, "source": "measured by products in float32"}
    assert len(rates) == 1
    steps = log.merged()[TRAINING_RUN]
    shares = {step: x for step, x in steps.items() if "performance/peak_share" in x}
    # The first loop of a process compiles, and the peak is not yet known.
    assert shares and min(shares) > min(steps)
    work = run_flops_per_token(toy_run_experiment())
    for figures in shares.values():
        achieved = figures["performance/peak_share"] * peak["flops_per_second"]
        assert achieved == pytest.approx(work * figures["performance/tokens_per_second"])


def test_a_run_of_less_than_a_second_measures_nothing(rates, tmp_path):
    log = log_of_run(tmp_path / "run", 1.0)
    assert rates == []
    assert not any("performance/peak_share" in line for line in log.lines)
