"""The import of TensorFlow by a job: without packages that no job uses, and with them later."""

import subprocess
import sys

import pytest

from tests.pipelines.txl_process import environment

_CODE = """
import gc, sys
from pipelines.quick_import import import_tensorflow_quickly
import_tensorflow_quickly()
import_tensorflow_quickly()
before = list(sys.meta_path)
import json.tool, tensorflow as tf
found = {name for name in ("jax", "matplotlib", "pandas", "sklearn") if name in sys.modules}
assert not found, found
assert len(sys.meta_path) < len(before) or sys.meta_path[0] is not before[0]
assert gc.isenabled() and gc.get_freeze_count() > 100_000
assert tf.__spec__.loader is tf.__loader__ and "quick_import" not in type(tf.__loader__).__module__
import importlib, importlib.util
for name in ("matplotlib", "sklearn"):
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(name)
print(tf.constant(2).numpy())
"""


def test_tensorflow_comes_alone_and_the_others_when_they_are_asked_for():
    finished = subprocess.run(
        [sys.executable, "-c", _CODE],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=100,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "2\n"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_process_that_has_tensorflow_is_left_as_it_is(monkeypatch, is_there):
    from pipelines import quick_import

    if not is_there:
        monkeypatch.delitem(sys.modules, "tensorflow")
    before = list(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", list(before))
    quick_import.import_tensorflow_quickly()
    assert (sys.meta_path == before) is is_there
    if not is_there:
        # Until TensorFlow is imported, nothing is refused.
        assert sys.meta_path[0].find_spec("matplotlib") is None
