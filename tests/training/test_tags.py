"""The list of tags, and a page of TensorBoard for each chart."""

import pytest

from tests.small_models import small_result
from txl_tf.evaluation.result import TaskResult
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus
from txl_tf.training.metrics import (
    PAGES,
    TAGS,
    TASK_PAGES,
    describe_tag,
    evaluation_figures,
    training_figures,
)
from txl_tf.training.tensorboard import pages_layout


def report_of(**changes):
    record = StepRecord(
        step=10, nats_per_token=2.0, gradient_norm=0.5, checksum=1, status=StepStatus.APPLIED
    )
    values = {"num_tokens": 400, "learning_rate": 0.1, "seconds": 4.0, "has_compiled": False}
    return LoopReport(records=(record, record), **{**values, **changes})


def test_every_figure_that_is_written_is_listed():
    report = report_of(update_ratio=1e-3, data_wait_seconds=0.01)
    figures = training_figures(report, 2.0, peak_tokens_per_second=1000.0)
    assert figures["performance/peak_share"] == 0.1
    assert figures["performance/step_seconds"] == 2.0
    assert figures.keys() | evaluation_figures(small_result()).keys() <= TAGS.keys()
    # What is not known is left out, not guessed.
    left_out = {f"performance/{name}" for name in ("peak_share", "data_wait_seconds")} | {
        "optimizer/update_ratio"
    }
    assert figures.keys() - training_figures(report_of(), 2.0).keys() == left_out


def test_a_task_has_a_page_of_its_own():
    layout = pages_layout(has_peak=False, has_task=True)
    assert [category.title for category in layout.category] == list(TASK_PAGES)
    charts = {chart.title for chart in layout.category[0].chart}
    assert charts == {"task/loss", "task/metric"}
    figures = training_figures(report_of(), None)
    assert figures["task/loss"] == 2.0
    assert not any(name.startswith("loss/") for name in figures)
    result = TaskResult(
        split="valid", step=3, figures={"accuracy": 0.5}, num_examples=2, num_tokens=9, seconds=1.0
    )
    assert evaluation_figures(result)["task/metric/accuracy"] == 0.5
    assert describe_tag("task/metric/accuracy") is TAGS["task/metric"]


@pytest.mark.parametrize("has_peak", [False, True])
def test_the_layout_has_a_chart_for_every_tag_of_a_page(has_peak):
    layout = pages_layout(has_peak)
    assert [category.title for category in layout.category] == list(PAGES)
    patterns = [
        pattern
        for page in layout.category
        for chart in page.chart
        for pattern in chart.multiline.tag
    ]
    expected = {tag.name for tag in TAGS.values() if tag.page in PAGES}
    if not has_peak:
        expected.remove("performance/peak_share")
    assert {pattern.strip("^$/") for pattern in patterns} == expected
