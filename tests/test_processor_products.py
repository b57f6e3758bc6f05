"""The library of products: oneDNN wherever it can be, and what the user says where he says it."""

import os
import platform
import subprocess
import sys

import pytest

from tests.pipelines.txl_process import environment
from txl_tf import processor_products

SETTING = "TF_ENABLE_ONEDNN_OPTS"
_CODE = """
import pipelines.command_line
import tensorflow
from tensorflow.python.framework.test_util import IsMklEnabled
print(IsMklEnabled())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is chosen on x86 only")
@pytest.mark.parametrize(("setting", "is_used"), [(None, True), ("0", False)])
def test_jobs_multiply_with_onednn_unless_the_user_says_no(setting, is_used):
    variables = {name: value for name, value in environment().items() if name != SETTING}
    if setting is not None:
        variables[SETTING] = setting
    finished = subprocess.run(
        [sys.executable, "-c", _CODE],
        capture_output=True,
        text=True,
        env=variables,
        check=False,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == [str(is_used)]


@pytest.mark.parametrize(
    ("machine", "before", "after"),
    [("x86_64", None, "1"), ("AMD64", None, "1"), ("x86_64", "0", "0"), ("aarch64", None, None)],
)
def test_only_x86_processors_are_decided_for(monkeypatch, machine, before, after):
    variables = {} if before is None else {SETTING: before}
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(os, "environ", variables)
    processor_products.choose_processor_products()
    assert variables.get(SETTING) == after
