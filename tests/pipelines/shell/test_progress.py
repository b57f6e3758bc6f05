"""Progress of training, in plain lines and as a bar."""

import io
import math

from rich.console import Console

from pipelines.run.training_data import loss_figure
from pipelines.shell import progress as module
from pipelines.shell.progress import TrainingProgress
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


def test_plain_lines_have_the_same_figures(capsys):
    with TrainingProgress(100, lambda nats: loss_figure(nats, 1.0, False)) as progress:
        progress.update(report(50, math.log(2), has_compiled=True))
        progress.show_validation("2.0000")
        progress.update(report(100, math.log(2)))
    first, last = capsys.readouterr().err.splitlines()
    assert first == "step 50/100  loss 0.6931 nats  1.0000 bits/byte  123,456 tokens/s"
    assert last.endswith("123,456 tokens/s  valid 2.0000  0:00 left")


def test_a_terminal_of_80_columns_has_a_bar_with_all_figures(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    console = Console(file=terminal, force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(module, "Console", lambda **_: console)
    with TrainingProgress(400_000, lambda nats: loss_figure(nats, 4.0, False)) as progress:
        progress.update(report(123_456, 8 * math.log(2), 9_950.0))
        progress.show_validation("1.5000")
    for part in ("123456/400000", "left", "2.0000 bits/byte", "10k tokens/s", "valid 1.5000"):
        assert part in terminal.getvalue()
