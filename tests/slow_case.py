"""A case of a parametrized test that is left to the slow tests."""

import pytest


def slow_case(*values):
    return pytest.param(*values, marks=pytest.mark.slow)
