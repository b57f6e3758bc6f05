"""The doctor as a user calls it, on the machine of the tests."""

import json

import pytest

from tests.pipelines.txl_process import error_lines, run_new_txl


def findings_of(finished):
    return {finding["check"]: finding for finding in json.loads(finished.stdout)}


@pytest.mark.slow
def test_this_machine_is_well_and_a_bad_folder_is_said(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    remote = "ram://doctor/run"

    finished = run_new_txl("doctor", "--json", "--folder", tmp_path, "--folder", remote)
    findings = findings_of(finished)
    bad = run_new_txl(
        "doctor", "--json", "--folder", blocked, "--folder", "ram://x/y", "--timeout-seconds", "0.1"
    )

    assert finished.returncode == 0, finished.stdout
    assert {each["status"] for each in findings.values()} <= {"ok", "warning"}
    assert {"import", "devices", "all-reduce", "text operations", f"folder {remote}"} <= set(
        findings
    )
    # The first fault decides; that TensorFlow had no time at all is the second.
    assert bad.returncode == 74
    assert 1 <= len(error_lines(bad)) <= 3
    assert findings_of(bad)["import"]["what"].startswith("it hangs")


@pytest.mark.parametrize(
    "arguments", [["--timeout-seconds", "0"], ["--timeout-seconds", "nan"], ["--tpu", ""]]
)
def test_an_argument_that_means_nothing_is_refused(arguments):
    finished = run_new_txl("doctor", *arguments)

    assert finished.returncode == 2
    assert arguments[0] in finished.stderr
