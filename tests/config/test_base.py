"""Settings that differ are named, all others are not."""

import pytest

from txl_tf.config.base import describe_differences

STORED = {"model": {"num_layers": 2, "cutoffs": [4, 8]}, "data": {"fingerprint": "ab"}, "seed": 7}


def test_the_same_settings_do_not_differ():
    assert describe_differences(STORED, {key: STORED[key] for key in reversed(STORED)}) == ""
    assert describe_differences({}, {}) == ""


@pytest.mark.parametrize(
    ("current", "text"),
    [
        (STORED | {"seed": 8}, "1 differ: seed (stored 7, now 8)"),
        (
            STORED | {"model": {"num_layers": 2, "cutoffs": [4]}},
            "1 differ: model.cutoffs (stored [4, 8], now [4])",
        ),
        (STORED | {"data": {}}, "2 differ: data (stored None, now {}), data.fingerprint"),
        (STORED | {"new": True}, "1 differ: new (stored None, now True)"),
        (STORED | {"off": None}, ""),  # as if it were not there
    ],
)
def test_a_difference_is_named_with_both_values(current, text):
    found = describe_differences(STORED, current)
    assert found.startswith(text)
    assert "num_layers" not in found
    assert bool(found) == bool(text)
