"""Findings about TensorFlow, from a probe that runs in a separate process."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from txl_tf.errors import InputMissingError, JobError, MismatchError, NonFiniteError, StorageError

from . import Finding
from .machine_checks import BUILDS, MachineFacts
from .tensorflow_probe import STAGES
from .version_checks import TestedVersions, tpu_install_command

COMMAND = (sys.executable, "-m", f"{__package__}.tensorflow_probe")
"""What is run; it reads a request and prints what it does."""
# Many workers name themselves in it; the probe is of one machine.
_LEFT_OUT = ("TF_CONFIG",)
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS_ONLY = "2"


@dataclasses.dataclass(frozen=True)
class ProbeReport:
    """Outcome of the TensorFlow probe."""

    answers: Mapping[str, Mapping[str, Any]]
    """The answer of each stage, which has `result` or `error`."""
    last_stage: str | None
    """The stage that was begun and not ended."""
    exit_code: int | None
    """Exit code, negative for a signal; `None` if the process took too long and was killed."""
    last_line: str
    """Last line of the standard error."""


def run_probe(
    request: Mapping[str, Any],
    timeout_seconds: float,
    environment: Mapping[str, str],
    command: Sequence[str] = COMMAND,
) -> ProbeReport:
    """Runs the probe to its end, or kills it when its time is over.

    Args:
        request: mapping, see `tensorflow_probe.main`.
        timeout_seconds: float.
        environment: mapping. The environment variables of the process.
        command: list of str. The command of the probe.
    """
    variables = {name: each for name, each in environment.items() if name not in _LEFT_OUT}
    # The parent silences TensorFlow's log, which here says why the process ended.
    variables[_LOG_LEVEL] = _ERRORS_ONLY
    # Wherever it is called from, the copy of the code that asks is the one that answers.
    variables["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each)
    exit_code: int | None = None
    # Files, not pipes: what a killed process has written is there to be read.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with contextlib.suppress(subprocess.TimeoutExpired):
            exit_code = subprocess.run(
                command,
                input=json.dumps(request).encode(),
                stdout=output,
                stderr=errors,
                timeout=timeout_seconds,
                env=variables,
                check=False,
            ).returncode
        return _report(_lines_of(output), exit_code, _lines_of(errors))


def _report(output: list[str], exit_code: int | None, errors: list[str]) -> ProbeReport:
    answers: dict[str, dict[str, Any]] = {}
    last_stage = None
    for line in output:
        # Libraries print to the standard output too.
        if not line.startswith('{"stage": '):
            continue
        answer = json.loads(line)
        is_end = len(answer) > 1
        last_stage = None if is_end else answer["stage"]
        if is_end:
            answers[answer["stage"]] = answer
    return ProbeReport(answers, last_stage, exit_code, errors[-1][:200] if errors else "")


def _lines_of(file: IO[bytes]) -> list[str]:
    file.seek(0)
    text = file.read().decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


_NAMES = {
    "import": "import",
    "devices": "devices",
    "folders": "remote folders",
    "all_reduce": "all-reduce",
    "text": "text operations",
}
_ERRORS: dict[str, type[JobError]] = {
    "import": MismatchError,
    "text": MismatchError,
    "devices": InputMissingError,
    "folders": StorageError,
    "all_reduce": NonFiniteError,
}
# Time, severity and place in TensorFlow's source.
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+: [A-Z] (\S+\] )?")
_REINSTALL = "pip install --no-deps --force-reinstall"


def tensorflow_findings(
    report: ProbeReport, facts: MachineFacts, tested: TestedVersions
) -> list[Finding]:
    """Turns the report of the probe into findings, in the order of the stages."""
    findings: list[Finding] = []
    for stage in STAGES:
        answer = report.answers.get(stage)
        if answer is None:
            findings.append(_ended_in(stage, report, tested, facts))
            break
        if answer.get("error") is not None:
            findings.append(_failed(stage, answer, tested, facts))
        else:
            findings += _judge(stage, answer["result"], facts, tested)
    if "import" in report.answers and report.answers["import"].get("error") is not None:
        return findings[:1]
    return findings


def _judge(stage: str, result: Any, facts: MachineFacts, tested: TestedVersions) -> list[Finding]:
    if stage == "folders":
        return [_folder_finding(values) for values in result]
    if stage == "devices":
        return [_judge_devices(result, facts, tested)]
    if stage == "all_reduce":
        return [_judge_sums(result)]
    said = result if stage == "import" else "they are loaded and work"
    return [Finding.ok(_NAMES[stage], said)]


def _judge_devices(counts: dict[str, int], facts: MachineFacts, tested: TestedVersions) -> Finding:
    shown = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    # Where the library is not to be loaded, that is said elsewhere or meant.
    is_hidden = facts.environment.get("TPU_LOAD_LIBRARY") == "0"
    if not facts.tpu_files or "TPU" in counts or is_hidden:
        return Finding.ok(_NAMES["devices"], shown)
    return Finding.fault(
        _NAMES["devices"],
        f"{facts.tpu_files[0]} is there, but TensorFlow sees only {shown}",
        f"pip uninstall -y tensorflow; {tpu_install_command(tested)}",
        InputMissingError,
    )


def _judge_sums(result: dict[str, Any]) -> Finding:
    count, sums = result["num_replicas"], result["sums"]
    name = _NAMES["all_reduce"]
    wanted = count * (count + 1) / 2
    if sums and all(value == wanted for value in sums):
        return Finding.ok(name, f"{result['strategy']} of {count}: the sum is right")
    return Finding.fault(
        name,
        f"{result['strategy']} of {count} gives {sums}; right is {wanted}",
        "Restart the machine; if it stays so, it is broken: take another one.",
        NonFiniteError,
    )


def _folder_finding(values: dict[str, Any]) -> Finding:
    if values["status"] == "ok":
        return Finding.ok(values["check"], values["what"])
    return Finding.fault(values["check"], values["what"], values["remedy"], StorageError)


def _failed(stage: str, answer: Any, tested: TestedVersions, facts: MachineFacts) -> Finding:
    error = _ERRORS[stage]
    if answer.get("exit_code") == InputMissingError.exit_code:
        error = InputMissingError
    return Finding.fault(_NAMES[stage], answer["error"], _remedy(stage, tested, facts), error)


def _ended_in(
    stage: str, report: ProbeReport, tested: TestedVersions, facts: MachineFacts
) -> Finding:
    error = _ERRORS[stage]
    if report.exit_code is None:
        what = "it hangs"
        # A TPU that does not answer is waited for without end.
        error = InputMissingError if stage == "all_reduce" else error
    elif report.exit_code < 0:
        what = f"the process was ended by {_signal_name(-report.exit_code)}"
    else:
        what = f"the process ended with exit code {report.exit_code}"
    if report.last_line:
        what = f"{what}; it said last: {_LOG_PREFIX.sub('', report.last_line)}"
    return Finding.fault(_NAMES[stage], what, _remedy(stage, tested, facts), error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _remedy(stage: str, tested: TestedVersions, facts: MachineFacts) -> str:
    if stage == "import":
        builds = [build for build in BUILDS if build in facts.packages] or ["tensorflow"]
        pins = f"{builds[0]}=={tested.packages['tensorflow']} keras=={tested.packages['keras']}"
        return f"Mend the faults above; where there are none: {_REINSTALL} {pins}"
    if stage == "text":
        return f"{_REINSTALL} tensorflow-text=={tested.packages['tensorflow-text']}"
    if stage == "folders":
        return "gcloud auth application-default print-access-token says who this machine is"
    return "Check --tpu, that no other process has the TPU (sudo lsof /dev/accel* /dev/vfio/*)."
