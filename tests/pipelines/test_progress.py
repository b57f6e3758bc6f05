import pytest

from pipelines import progress as module
from pipelines.progress import byte_progress


@pytest.mark.parametrize(("total", "shown"), [(4_000_000, "2.0 of 4.0 MB"), (None, "2.0 MB")])
def test_plain_lines_tell_how_far_it_is(capsys, monkeypatch, total, shown):
    monkeypatch.setattr(module.time, "monotonic", iter([0.0, 5.0, 12.0, 12.0]).__next__)
    with byte_progress(total, "preparing") as report:
        report("train", 1_000_000)
        report("train", 1_000_000)
    assert capsys.readouterr().err == f"preparing train: {shown}\n"


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    with byte_progress(10, "verifying") as report:
        report("train", 10)
    assert "verifying train:" not in capsys.readouterr().err
