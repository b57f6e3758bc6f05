import functools
import io
import math

import pytest
from rich.console import Console

from pipelines import progress as module
from pipelines.evaluation import loss_figure
from pipelines.progress import TrainingProgress
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus


def report(step, nats, tokens_per_second=123_456.0, has_compiled=False):
    record = StepRecord(
        step=step, nats_per_token=nats, gradient_norm=1.0, checksum=0, status=StepStatus.APPLIED
    )
    return LoopReport(
        records=(record,),
        num_tokens=1000,
        learning_rate=0.1,
        seconds=1000 / tokens_per_second,
        has_compiled=has_compiled,
    )


@pytest.fixture
def shown(monkeypatch):
    """Runs a function with the bar of a run on a terminal; returns its last line of text."""

    def run(act, *, has_words=False, columns=80, num_steps=400_000):
        terminal = io.StringIO()
        monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
        console = Console(file=terminal, force_terminal=True, width=columns, color_system=None)
        monkeypatch.setattr(module, "Console", lambda **_: console)
        describe_loss = functools.partial(loss_figure, bytes_per_token=4.0, has_words=has_words)
        with TrainingProgress(num_steps, describe_loss) as progress:
            act(progress)
            progress._bar.refresh()
            (line,) = console.render_lines(progress._bar.get_renderable(), pad=False)
        return "".join(segment.text for segment in line).rstrip()

    return run


def test_a_bar_of_80_columns_shows_everything_even_where_it_is_long(shown):
    def act(progress):
        progress.update(report(123_455, 9.0, 9_950.0, has_compiled=True))
        progress.update(report(123_456, 8 * math.log(2), 9_950.0))
        progress.show_validation("1.5000")

    line = shown(act)
    assert len(line) <= 80
    left = (400_000 - 123_456) * 1000 / 9_950
    clock = f"{left // 3600:.0f}:{left // 60 % 60:02.0f}:{left % 60:02.0f}"
    for part in (
        *("123456/400000", "━", f"{clock[:-3]}", "left", "2.0000 bits/byte"),
        *("10k tokens/s", "valid 1.5000"),
    ):
        assert part in line


def test_plain_lines_have_the_same_figures(capsys):
    with TrainingProgress(100, lambda nats: loss_figure(nats, 1.0, False)) as progress:
        progress.update(report(50, math.log(2), has_compiled=True))
        progress.show_validation("2.0000")
        progress.update(report(100, math.log(2)))
    first, last = capsys.readouterr().err.splitlines()
    assert first == (
        "step 50/100  loss 0.6931 nats  1.0000 bits/byte  123,456 tokens/s  left unknown"
    )
    assert last.endswith("123,456 tokens/s  valid 2.0000  left 0:00")
