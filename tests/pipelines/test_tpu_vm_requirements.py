"""What a TPU VM installs: the pins of the project, and a step lowered with it for a TPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.doctor import pinned_versions

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "pipelines" / "launch" / "requirements-tpu-vm.txt"
TESTED = pinned_versions()


def normal(pin):
    name, _, version = pin.partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def locked_pins():
    lines = REQUIREMENTS.read_text().replace("\\\n", " ").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def test_every_version_is_the_project_s_and_nothing_else_is_installed():
    versions = dict(normal(pin) for pin, *_ in locked_pins())
    expected = dict(TESTED)
    expected["tensorflow-tpu"] = expected.pop("tensorflow")
    del expected["tensorflow-text"]
    # The extra `tpu-kernel` with what it brings, in the versions that the tests run with.
    pins = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    constraints = dict(normal(pin) for pin in pins if not pin.startswith("#"))
    expected |= {name: constraints[name] for name in ("jax", "jaxlib", "scipy")}
    assert versions == expected


def installed(environment):
    """A virtual environment made as the script of `txl launch` makes it."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = str(environment / "bin" / "pip")
    text = f"tensorflow-text=={TESTED['tensorflow-text']}"
    for words in (["--require-hashes", "-r", str(REQUIREMENTS)], ["--no-deps", text]):
        finished = subprocess.run([pip, "install", *words], capture_output=True, text=True)
        if "connection" in finished.stderr.lower() and finished.returncode:
            pytest.skip("the package registry cannot be reached")
        assert finished.returncode == 0, finished.stderr
    return environment / "bin" / "python"


@pytest.mark.slow
def test_a_training_step_lowers_through_the_tpu_wheel(tmp_path):
    python = installed(tmp_path / "environment")
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    # Nobody answers questions about the machine, and another process may have the library.
    environment |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    finished = subprocess.run(
        [python, "-m", "tests.pipelines.lower_for_tpu"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout.splitlines()[-1])
    names = ("tensorflow", "tensorflow-text", "keras")
    assert report["versions"] == [TESTED[name] for name in names]
    # Every gradient, and the loss.
    assert report["summed"] == report["num_weights"] + 1
    on_host = {"infeed", "outfeed", "send", "recv"}
    assert on_host.isdisjoint(report["opcodes"])
    # Two blocks attend by the kernel, forwards and backwards.
    assert report["custom_call_targets"] == ["tpu_custom_call"]
    assert report["opcodes"]["custom-call"] == 4
    assert report["opcodes"]["dot"] > 0
