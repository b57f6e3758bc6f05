"""The harness without its extra."""

import sys

import pytest

import txl_tf.harness
from txl_tf.errors import UsageError
from txl_tf.harness.__main__ import main

REMEDY = "Install the extra in the checkout: pip install -e '.[harness]'"


@pytest.fixture(autouse=True)
def without_the_harness(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "txl_tf.harness.harness_model", raising=False)


def test_the_command_line_names_the_extra(capsys):
    assert main() == UsageError.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["The harness needs lm_eval, which is not installed.", REMEDY]


def test_the_model_names_the_extra():
    assert txl_tf.harness.__all__ == ["HarnessModel"]
    with pytest.raises(UsageError, match="pip install -e"):
        _ = txl_tf.harness.HarnessModel
