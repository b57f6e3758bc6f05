"""Slow tests: a case of a parametrized test that is one, and how to make some faster."""

import pytest

QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""`XLA_FLAGS` of a process that compiles far longer than it computes."""


def slow_case(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
