"""Slow cases of parametrized tests, and flags that make slow processes faster."""

import pytest

QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""Value of `XLA_FLAGS` for a process that compiles far longer than it computes."""


def slow_case(*values):
    """Marks the values of one case of `pytest.mark.parametrize` as slow."""
    return pytest.param(*values, marks=pytest.mark.slow)
