"""The ledger has one line for every step, whatever happened meanwhile."""

import dataclasses

import pytest

from tests.storage.places import KINDS, place
from txl_tf.errors import DataDamagedError
from txl_tf.training.ledger import StepLedger, StepRecord, StepStatus, format_line, parse_line


def line(step, loss=1.5, **values):
    figures = {"gradient_norm": 0.25, "checksum": step, "status": StepStatus.APPLIED}
    return StepRecord(step=step, nats_per_token=loss, **{**figures, **values})


def lines(first, last):
    return [line(step) for step in range(first, last + 1)]


@pytest.fixture(params=KINDS)
def path(request, tmp_path):
    return place(request.param, tmp_path, "ledger.jsonl")


def begun(path, step):
    ledger = StepLedger(path)
    ledger.resume(step)
    return ledger


def append(ledger, records):
    ledger.hold(records)
    ledger.write()


def text_of(path):
    return b"".join(StepLedger(path)._files.lines()).decode()


def text_with(first, last, begin=1):
    header = f'{{"ledger": 1, "first_step": {begin}}}\n'
    return "".join([header, *(f"{format_line(each)}\n" for each in lines(first, last))])


@pytest.mark.parametrize("step", [0, 2, 4, 7])
def test_steps_to_be_done_again_are_cut_off_and_returned(path, step):
    ledger = begun(path, 0)
    for first in (1, 4, 5):
        append(ledger, lines(first, {1: 3, 4: 4, 5: 7}[first]))
        ledger.flush_to_disk()
    ledger = StepLedger(path)
    assert ledger.resume(step) == lines(step + 1, 7)
    assert text_of(path) == text_with(1, step)
    append(ledger, lines(step + 1, step + 2))
    ledger.flush_to_disk()
    append(ledger, lines(step + 3, step + 3))
    assert text_of(path) == text_with(1, step + 3)
    assert StepLedger(path).resume(step + 3) == []


def test_a_run_without_a_ledger_gets_one_that_says_where_it_begins(path):
    ledger = StepLedger(path)
    assert ledger.resume(40) == []
    append(ledger, lines(41, 43))
    assert text_of(path) == text_with(41, 43, begin=41)
    assert StepLedger(path).resume(41) == lines(42, 43)
    # A checkpoint older than the ledger: every line is to be done again.
    ledger = StepLedger(path)
    assert ledger.resume(30) == lines(41, 41)
    assert text_of(path) == text_with(31, 30, begin=31)


def test_a_line_cut_short_at_any_place_is_dropped(tmp_path):
    path = tmp_path / "ledger.jsonl"
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
        (lambda texts: texts.__setitem__(3, texts[3].replace("loss", "lost")), 4),
        (lambda texts: texts.__setitem__(1, ""), 2),
        (lambda texts: texts.pop(0), 1),
        (lambda texts: texts.pop(), 6),
        (lambda texts: texts.clear(), 1),
    ],
    ids=range(8),
)
def test_a_damaged_ledger_is_found_and_the_line_is_named(tmp_path, damage, number):
    path = tmp_path / "ledger.jsonl"
    texts = text_with(1, 5).splitlines()
    damage(texts)
    path.write_text("".join(f"{text}\n" for text in texts))
    before = path.read_bytes()
    with pytest.raises(DataDamagedError, match=f"damaged at line {number}:") as raised:
        StepLedger(path).resume(5)
    assert raised.value.where == str(path)
    assert path.read_bytes() == before


def test_a_line_altered_before_a_checkpoint_is_found(path):
    ledger = begun(path, 0)
    append(ledger, lines(1, 5))
    digest = ledger.digest
    append(ledger, lines(6, 7))
    assert StepLedger(path).resume(5, digest) == lines(6, 7)
    ledger = begun(path, 0)
    altered = dataclasses.replace(line(3), nats_per_token=2.5)
    append(ledger, [*lines(1, 2), altered, *lines(4, 5)])
    with pytest.raises(DataDamagedError, match="up to step 5 is not what was written"):
        StepLedger(path).resume(5, digest)
    # A ledger that replaces a lost one begins later, without the steps of the checkpoint.
    assert begun(f"{path}-anew", 5).digest != digest
    assert StepLedger(f"{path}-anew").resume(5, digest) == []


def test_a_line_has_one_form():
    text = format_line(line(12))
    assert text == (
        '{"step": 12, "checksum": "0000000c", "loss": "0x1.8000000000000p+0", '
        '"norm": "0x1.0000000000000p-2", "status": "applied"}'
    )
    changed = [f"{text[:index]}#{text[index + 1 :]}" for index in range(len(text))]
    assert [each for each in changed if parse_line(each) is not None] == []


def test_repeated_steps_are_compared_with_their_lines(tmp_path):
    path, messages = tmp_path / "ledger.jsonl", []
    append(begun(path, 0), lines(1, 3))
    ledger = StepLedger(path, say=messages.append)
    ledger.resume(1)
    ledger.hold([line(2, loss=1.6)])
    assert len(messages) == 1 and "The hardware may be faulty" in messages[0]
    with pytest.raises(DataDamagedError, match="done before with other tokens"):
        ledger.hold([line(3, checksum=4)])
