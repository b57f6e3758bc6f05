import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_tf.storage.json_text import MAX_DEPTH, parse_json

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
_VALUES = st.recursive(
    _SCALARS,
    lambda each: st.lists(each) | st.dictionaries(st.text(max_size=5), each),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(_VALUES)
def test_every_value_that_json_writes_is_read_back(value):
    assert parse_json(json.dumps(value).encode()) == json.loads(json.dumps(value))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused_by_a_value_error(content):
    try:
        parse_json(content)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "once"),
        ('{"deep": [{"a": 1, "a": 1}]}', "once"),
        ("NaN", "finite"),
        ("[-Infinity]", "finite"),
        ("1e999", "float64"),
        ("9" * 400, "64 bits"),
        ("9" * 5000, "digits"),
        (str(2**64), "64 bits"),
        (str(-(2**63) - 1), "64 bits"),
        ('"\\ud800"', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ("[" * 100_000 + "]" * 100_000, "deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "deep"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deep"),
        ("[1] 2", "Extra data"),
        ("", "Expecting value"),
    ],
)
def test_what_a_program_cannot_rely_on_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_json(text)


def test_bytes_that_are_not_utf8_are_refused():
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b'{"a": "\xff"}')


def test_the_deepest_nesting_that_is_allowed_is_read():
    value = parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)

    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []
    assert math.isclose(parse_json("1e308"), 1e308)
