"""The probe's report, made by processes that behave badly and by answers made up."""

import os
import sys

import pytest

from pipelines.diagnosis.tensorflow_checks import ProbeReport, run_probe, tensorflow_findings
from pipelines.diagnosis.tensorflow_probe import STAGES
from tests.pipelines.diagnosis.made_up_machine import TESTED, good_machine, good_tpu_machine

GOOD = {
    "import": "TensorFlow",
    "devices": {"CPU": 1},
    "folders": [],
    "all_reduce": {"strategy": "MirroredStrategy", "num_replicas": 2, "sums": [3.0, 3.0]},
    "text": 1,
}
SAY = 'print(\'{"stage": "import"}\', flush=True);'


def report_of(**changes):
    answers = {stage: {"result": {**GOOD, **changes}[stage]} for stage in STAGES}
    return ProbeReport(answers, None, 0, "")


def by_status(findings, status):
    return [finding for finding in findings if finding.status == status]


def probe(program, timeout_seconds=30.0):
    return run_probe({}, timeout_seconds, os.environ, [sys.executable, "-c", program])


def test_good_answers_are_no_faults(tmp_path):
    findings = tensorflow_findings(report_of(), good_machine(tmp_path), TESTED)

    assert len(findings) == 4
    assert by_status(findings, "ok") == findings


@pytest.mark.parametrize(
    ("program", "timeout_seconds", "words"),
    [
        (
            f"{SAY} import os, sys; print('bad libtpu', file=sys.stderr, flush=True); os.abort()",
            30.0,
            ("SIGABRT", "bad libtpu"),
        ),
        (f"{SAY} import sys; sys.exit('nothing works')", 30.0, ("exit code 1", "nothing works")),
        (
            f"{SAY} import sys, time; print('waiting', file=sys.stderr, flush=True);time.sleep(60)",
            1.0,
            ("hangs", "waiting"),
        ),
    ],
)
def test_a_probe_that_ends_or_hangs_is_a_fault(program, timeout_seconds, words, tmp_path):
    report = probe(program, timeout_seconds)

    (finding,) = tensorflow_findings(report, good_machine(tmp_path), TESTED)

    assert report.last_stage == "import"
    assert (finding.check, finding.status, finding.error.exit_code) == ("import", "fault", 78)
    for word in words:
        assert word in finding.what


def test_what_the_log_says_is_shown_without_its_prefix(tmp_path):
    line = "2026-01-02 03:04:05.678901: F xla/executor.inc:128] Free not available"
    report = ProbeReport({}, "import", -6, line)

    (finding,) = tensorflow_findings(report, good_tpu_machine(tmp_path), TESTED)

    assert finding.what.endswith("SIGABRT; it said last: Free not available")
    assert "--force-reinstall tensorflow-tpu==2.20.0" in finding.remedy


def test_the_probe_is_alone_and_not_silent():
    program = (
        "import json, os; print(json.dumps({'stage': 'import', 'result': "
        "[os.environ.get('TF_CONFIG'), os.environ['TF_CPP_MIN_LOG_LEVEL']]}))"
    )
    environment = {**os.environ, "TF_CONFIG": "{}", "TF_CPP_MIN_LOG_LEVEL": "3"}

    report = run_probe({}, 30.0, environment, [sys.executable, "-c", program])

    assert report.answers["import"]["result"] == [None, "2"]
    assert report.exit_code == 0


def test_an_import_that_fails_is_the_only_finding(tmp_path):
    answers = {"import": {"error": "ImportError: undefined symbol", "exit_code": None}}
    report = ProbeReport(answers, None, 0, "")

    (finding,) = tensorflow_findings(report, good_machine(tmp_path), TESTED)

    assert finding.error.exit_code == 78
    assert "undefined symbol" in finding.what


def test_chips_that_tensorflow_does_not_see_need_the_other_wheel(tmp_path):
    facts = good_tpu_machine(tmp_path)

    (fault,) = by_status(tensorflow_findings(report_of(), facts, TESTED), "fault")

    assert (fault.check, fault.error.exit_code) == ("devices", 66)
    assert f"tensorflow-tpu==2.20.0 libtpu=={TESTED.libtpu}" in fault.remedy
    seen = tensorflow_findings(report_of(devices={"CPU": 1, "TPU": 4}), facts, TESTED)
    assert by_status(seen, "fault") == []


@pytest.mark.parametrize("sums", [[3.0, 2.0], [1.0, 2.0], [float("nan")] * 2, []])
def test_a_wrong_sum_is_a_fault(sums, tmp_path):
    wrong = {**GOOD["all_reduce"], "sums": sums}

    findings = tensorflow_findings(report_of(all_reduce=wrong), good_machine(tmp_path), TESTED)

    (fault,) = by_status(findings, "fault")
    assert (fault.check, fault.error.exit_code) == ("all-reduce", 70)


@pytest.mark.parametrize(("exit_code", "expected"), [(None, 66), (-6, 70)])
def test_a_tpu_that_does_not_answer_is_missing(exit_code, expected, tmp_path):
    answers = {stage: {"result": GOOD[stage]} for stage in ("import", "devices", "folders")}
    report = ProbeReport(answers, "all_reduce", exit_code, "")

    findings = tensorflow_findings(report, good_machine(tmp_path), TESTED)

    assert findings[-1].error.exit_code == expected


def test_the_exit_code_of_the_job_that_failed_is_kept(tmp_path):
    report = report_of()
    answers = {**report.answers, "all_reduce": {"error": "No TPU answers", "exit_code": 66}}
    report = ProbeReport(answers, None, 0, "")

    (fault,) = by_status(tensorflow_findings(report, good_machine(tmp_path), TESTED), "fault")

    assert fault.error.exit_code == 66
    assert by_status(tensorflow_findings(report, good_machine(tmp_path), TESTED), "ok")[-1].check


def test_remote_folders_keep_their_remedy(tmp_path):
    values = {"check": "folder gs://a", "status": "fault", "what": "no", "remedy": "do this"}

    findings = tensorflow_findings(report_of(folders=[values]), good_machine(tmp_path), TESTED)

    (fault,) = by_status(findings, "fault")
    assert (fault.what, fault.remedy, fault.error.exit_code) == ("no", "do this", 74)
