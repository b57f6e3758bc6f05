"""The ledger has one line for every step, whatever happened meanwhile."""

import dataclasses
import errno
import math
import os
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from tests.storage.places import KINDS, place
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.storage.files import list_folder
from txl_tf.training.ledger import StepLedger
from txl_tf.training.ledger_lines import LedgerLine, describe_positions, parse_positions

LINE = LedgerLine(12, "0+4096*22", 0x1A2B3C4D, 3.0, 0.140625, "applied")


def line(step, loss=1.5):
    return LedgerLine(step, f"{step}+4*8", step, loss, 0.25, "applied")


def lines(first, last):
    return [line(step) for step in range(first, last + 1)]


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    return place(request.param, tmp_path, "ledger.txt")


def begun(path, step):
    ledger = StepLedger(path)
    ledger.resume(step)
    return ledger


def text_of(path):
    return b"".join(StepLedger(path)._files.lines()).decode()


def text_with(first, last, begin=1):
    return "".join(
        [f"txl ledger format=1 first={begin}\n", *(f"{each}\n" for each in lines(first, last))]
    )


@pytest.mark.parametrize("step", [0, 2, 4, 7])
def test_steps_to_be_done_again_are_cut_off_and_returned(path, step):
    ledger = begun(path, 0)
    for first in (1, 4, 5):
        ledger.append(lines(first, {1: 3, 4: 4, 5: 7}[first]))
        ledger.flush_to_disk()
    ledger = StepLedger(path)
    assert ledger.resume(step) == lines(step + 1, 7)
    assert text_of(path) == text_with(1, step)
    assert ledger.first_step == 1
    ledger.append(lines(step + 1, step + 2))
    ledger.flush_to_disk()
    ledger.append(lines(step + 3, step + 3))
    assert text_of(path) == text_with(1, step + 3)
    assert StepLedger(path).resume(step + 3) == []


def test_only_the_steps_that_come_next_are_taken(path):
    with pytest.raises(ValueError, match="after `resume`"):
        StepLedger(path).append(lines(1, 1))
    ledger = begun(path, 0)
    for wrong in (lines(2, 3), [line(1), line(3)], [line(2), line(1)]):
        with pytest.raises(ValueError, match="steps from 1 on"):
            ledger.append(wrong)
    ledger.append(lines(1, 2))
    with pytest.raises(ValueError, match="steps from 3 on"):
        ledger.append(lines(2, 3))


def test_a_run_without_a_ledger_gets_one_that_says_where_it_begins(path):
    ledger = StepLedger(path)
    assert ledger.resume(40) == []
    assert ledger.first_step == 41
    ledger.append(lines(41, 43))
    assert text_of(path) == text_with(41, 43, begin=41)
    assert StepLedger(path).resume(41) == lines(42, 43)
    # An older checkpoint than the ledger: all of it is to be done again.
    ledger = StepLedger(path)
    assert ledger.resume(30) == lines(41, 41)
    assert ledger.first_step == 31
    assert text_of(path) == text_with(31, 30, begin=31)


def test_a_line_cut_short_at_any_place_is_dropped(tmp_path):
    path = tmp_path / "ledger.txt"
    whole = text_with(1, 3).encode()
    end = len(text_with(1, 2))
    for length in range(end, len(whole)):
        path.write_bytes(whole[:length])
        assert StepLedger(path).resume(2) == []
        assert path.read_text() == text_with(1, 2)
    path.write_bytes(whole + b"\0" * 100 + b"\n" + b"\xff\n")  # as after a power cut
    assert StepLedger(path).resume(2) == lines(3, 3)
    assert path.read_text() == text_with(1, 2)


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        (lambda texts: texts.pop(2), 3),
        (lambda texts: texts.insert(2, texts[1]), 3),
        (lambda texts: texts.reverse(), 1),
        (lambda texts: texts.__setitem__(3, texts[3].replace("loss=", "lost=")), 4),
        (lambda texts: texts.__setitem__(1, ""), 2),
        (lambda texts: texts.pop(0), 1),
        (lambda texts: texts.pop(), 6),
        (lambda texts: texts.clear(), 1),
    ],
    ids=range(8),
)
def test_a_damaged_ledger_is_found_and_the_line_is_named(tmp_path, damage, number):
    path = tmp_path / "ledger.txt"
    texts = text_with(1, 5).splitlines()
    damage(texts)
    path.write_text("".join(f"{text}\n" for text in texts))
    before = path.read_bytes()
    with pytest.raises(DataDamagedError, match=f"damaged at line {number}:") as raised:
        StepLedger(path).resume(5)
    assert raised.value.where == str(path)
    assert path.read_bytes() == before


def test_a_full_disk_is_a_storage_error(tmp_path, monkeypatch):
    path = tmp_path / "ledger.txt"
    ledger = begun(path, 0)
    ledger.append(lines(1, 1))
    write = os.write

    def half(descriptor, content):
        if len(content) > 60:
            return write(descriptor, content[:60])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(StorageError, match="No space left"):
            ledger.append(lines(2, 2))
    assert begun(path, 1).first_step == 1
    assert path.read_text() == text_with(1, 1)


def test_parts_are_cut_from_the_end_so_that_a_kill_leaves_a_ledger(tmp_path, monkeypatch):
    path = f"file://{tmp_path}/ledger"
    ledger = begun(path, 0)
    for step in range(1, 7):
        ledger.append(lines(step, step))
        ledger.flush_to_disk()
    assert len(list_folder(path)) == 6
    removed = []

    def kill_at_third(file):
        if len(removed) == 2:
            raise KeyboardInterrupt
        removed.append(file)
        os.unlink(file.removeprefix("file://"))

    with monkeypatch.context() as patched:
        patched.setattr(tf.io.gfile, "remove", kill_at_third)
        with pytest.raises(KeyboardInterrupt):
            StepLedger(path).resume(1)
    assert text_of(path) == text_with(1, 4)
    assert StepLedger(path).resume(1) == lines(2, 4)


def test_a_line_altered_before_a_checkpoint_is_found(path):
    ledger = begun(path, 0)
    ledger.append(lines(1, 5))
    digest = ledger.digest
    ledger.append(lines(6, 7))
    assert StepLedger(path).resume(5, digest) == lines(6, 7)
    ledger = begun(path, 0)
    altered = dataclasses.replace(line(3), loss=line(3).loss + 1.0)
    ledger.append([*lines(1, 2), altered, *lines(4, 5)])
    with pytest.raises(DataDamagedError, match="up to step 5 is not what was written"):
        StepLedger(path).resume(5, digest)
    # What took the place of a lost ledger begins later, and has nothing of the checkpoint's.
    assert begun(f"{path}-anew", 5).digest != digest
    assert StepLedger(f"{path}-anew").resume(5, digest) == []


def test_a_line_without_an_end_takes_no_memory(tmp_path):
    path = tmp_path / "ledger.txt"
    path.write_bytes(text_with(1, 2).encode())
    with path.open("r+b") as file:
        file.seek(0, 2)
        file.truncate(64 << 30)  # a hole, which takes no disk
    tracemalloc.start()
    with pytest.raises(DataDamagedError, match="line 4: not a line"):
        StepLedger(str(path)).resume(3)
    assert StepLedger(str(path)).resume(2) == []
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()


def test_a_line_is_read_as_it_was_written_to_the_last_bit():
    assert str(LINE) == (
        "step=12 rows=0+4096*22 checksum=1a2b3c4d loss=0x1.8p+1 norm=0x1.2p-3 status=applied"
    )
    bits = np.random.default_rng(0).integers(0, 2**32, 500, dtype=np.uint32)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, np.finfo("float32").max, 1.0, 16.0]
    for step, value in enumerate([*bits.view("float32"), *special], start=1):
        written = LedgerLine(step, "7", int(step * 2654435761 % 2**32), value, -value, "skipped")
        read = LedgerLine.parse(str(written))
        assert (read == written) and (hash(read) == hash(written))
        np.testing.assert_array_equal(np.float32(read.loss), np.float32(value))


def test_any_change_of_a_line_is_a_difference_or_refused():
    loss = np.nextafter(np.float32(3.0), np.float32(4.0))
    for values in ({"step": 13}, {"positions": "0"}, {"checksum": 0}, {"loss": loss}):
        assert dataclasses.replace(LINE, **values) != LINE
    for values in ({"step": 0}, {"checksum": 2**32}, {"status": "a b"}):
        with pytest.raises(ValueError, match="Received"):
            dataclasses.replace(LINE, **values)


def test_positions_are_read_as_they_were_written():
    for positions, text in (
        ([5], "5"),
        ([5, 5], "5+0*2"),
        (np.arange(22) * 4096, "0+4096*22"),
        ([9, 6, 3, 0], "9-3*4"),
        ([3, 10, 17, 0, 7, 14], "3+7*3,0+7*3"),
        ([0, 1, 2, 9], "0+1*3,9"),
    ):
        assert describe_positions(np.asarray(positions)) == text
    generator = np.random.default_rng(1)
    for _ in range(500):
        positions = generator.integers(0, 5, generator.integers(1, 12))
        text = describe_positions(positions)
        np.testing.assert_array_equal(parse_positions(text), positions)
        assert LedgerLine(1, positions, 1, 1.0, 1.0, "a").positions == text


def test_what_is_no_text_of_positions_or_no_line_is_refused():
    for positions in ([], [[1]], [-1], [0.5]):
        with pytest.raises(ValueError, match=r"vector of token positions.*Received"):
            describe_positions(np.asarray(positions))
    for text in ("", "a", "1+2", "1,,2", "1+2*3,", "-1", "1 "):
        with pytest.raises(ValueError, match="Received"):
            parse_positions(text)
    text = str(LINE)
    for index in range(len(text)):
        with pytest.raises(ValueError, match="must be a line"):
            LedgerLine.parse(f"{text[:index]}#{text[index + 1 :]}")
