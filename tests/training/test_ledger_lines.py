"""A ledger line is read as it was written, to the last bit."""

import dataclasses
import math

import numpy as np
import pytest

from txl_tf.training.ledger_lines import LedgerLine, describe_positions, parse_positions

LINE = LedgerLine(12, "0+4096*22", 0x1A2B3C4D, 3.0, 0.140625, "applied")


def test_the_text_of_a_line():
    assert str(LINE) == (
        "step=12 rows=0+4096*22 checksum=1a2b3c4d loss=0x1.8p+1 norm=0x1.2p-3 status=applied"
    )


def test_a_line_is_read_as_it_was_written():
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 2000, dtype=np.uint32)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, np.finfo("float32").max, 1.0, 16.0]
    for step, value in enumerate([*bits.view("float32"), *special], start=1):
        line = LedgerLine(step, "7", int(step * 2654435761 % 2**32), value, -value, "skipped")
        read = LedgerLine.parse(str(line))
        assert (read == line) and (hash(read) == hash(line))
        assert str(read) == str(line)
        np.testing.assert_array_equal(np.float32(read.loss), np.float32(value))
        assert "\n" not in str(line)


def test_any_difference_is_a_difference():
    changes = {
        "step": 13,
        "positions": "0+4096*21",
        "checksum": 0,
        "loss": np.nextafter(np.float32(3.0), np.float32(4.0)),
        "gradient_norm": 0.0,
        "status": "skipped",
    }
    for name, value in changes.items():
        assert dataclasses.replace(LINE, **{name: value}) != LINE
    assert dataclasses.replace(LINE) == LINE
    assert str(LINE) != LINE


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ([5], "5"),
        ([5, 5], "5+0*2"),
        (np.arange(22) * 4096, "0+4096*22"),
        ([9, 6, 3, 0], "9-3*4"),
        ([3, 10, 17, 0, 7, 14], "3+7*3,0+7*3"),
        ([0, 1, 2, 9], "0+1*3,9"),
    ],
)
def test_the_text_of_positions(positions, text):
    assert describe_positions(np.asarray(positions)) == text
    np.testing.assert_array_equal(parse_positions(text), positions)
    assert str(LedgerLine(1, np.asarray(positions), 0, 0.0, 0.0, "applied")).split()[1][5:] == text


def test_positions_of_any_kind_are_read_as_they_were_written():
    generator = np.random.default_rng(1)
    for case in range(3000):
        size = generator.integers(1, 12)
        if case % 2:
            positions = generator.integers(0, 5, size)
        else:
            runs = generator.integers(0, 50, [size, 2])
            positions = np.concatenate(
                [first + stride * np.arange(1 + first % 5) for first, stride in runs]
            )
        text = describe_positions(positions)
        np.testing.assert_array_equal(parse_positions(text), positions)
        assert LedgerLine.parse(str(LedgerLine(1, positions, 1, 1.0, 1.0, "a"))).positions == text


@pytest.mark.parametrize("positions", [[], [[1]], [-1], [0.5]])
def test_what_is_no_position_is_refused(positions):
    with pytest.raises(ValueError, match=r"vector of token positions.*Received"):
        describe_positions(np.asarray(positions))


@pytest.mark.parametrize("text", ["", "a", "1+2", "1,,2", "1+2*3,", "-1", "1 "])
def test_what_is_no_text_of_positions_is_refused(text):
    with pytest.raises(ValueError, match="Received"):
        parse_positions(text)
    with pytest.raises(ValueError, match="Received"):
        LedgerLine(1, text, 0, 0.0, 0.0, "applied")


@pytest.mark.parametrize(
    ("name", "value"), [("step", 0), ("checksum", 2**32), ("checksum", -1), ("status", "a b")]
)
def test_what_is_no_line_is_refused(name, value):
    with pytest.raises(ValueError, match="Received"):
        dataclasses.replace(LINE, **{name: value})


def test_every_cut_and_most_changes_of_a_line_are_refused():
    text = str(LINE)
    for length in range(len(text) - len("applied") + 1):
        with pytest.raises(ValueError, match="must be a line"):
            LedgerLine.parse(text[:length])
    for place in range(len(text)):
        with pytest.raises(ValueError, match="must be a line"):
            LedgerLine.parse(f"{text[:place]}#{text[place + 1 :]}")
