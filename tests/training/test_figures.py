"""Figures of a run and their tags."""

from tests.small_models import small_result
from txl_tf.evaluation.result import TaskResult
from txl_tf.training.figures import TAGS, describe_tag, evaluation_figures, training_figures
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus


def report_of():
    record = StepRecord(
        step=10, nats_per_token=2.0, gradient_norm=0.5, checksum=1, status=StepStatus.APPLIED
    )
    values = {"num_tokens": 400, "learning_rate": 0.1, "seconds": 4.0, "has_compiled": False}
    return LoopReport(records=(record, record), **values)


def test_every_figure_that_is_written_is_listed():
    figures = training_figures(report_of(), 2.0, peak_tokens_per_second=1000.0)
    assert figures["performance/peak_share"] == 0.1
    assert figures["performance/step_seconds"] == 2.0
    assert figures.keys() | evaluation_figures(small_result()).keys() <= TAGS.keys()
    # Unknown figures are left out, not guessed.
    left_out = figures.keys() - training_figures(report_of(), 2.0).keys()
    assert left_out == {"performance/peak_share"}


def test_figures_of_a_task_are_its_loss_and_its_metrics():
    figures = training_figures(report_of(), None)
    assert figures["task/loss"] == 2.0
    assert not any(name.startswith("loss/") for name in figures)
    result = TaskResult(
        split="valid", step=3, figures={"accuracy": 0.5}, num_examples=2, num_tokens=9, seconds=1.0
    )
    assert evaluation_figures(result)["task/metric/accuracy"] == 0.5
    assert describe_tag("task/metric/accuracy") is TAGS["task/metric"]
