"""Runs the probe of TensorFlow, and gives up on it when it hangs."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

COMMAND = (sys.executable, "-m", "pipelines.diagnosis.tensorflow_probe")
"""What is run; it reads a request and prints what it does."""
# Many workers name themselves in it; the probe is of one machine.
_LEFT_OUT = ("TF_CONFIG",)
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_ERRORS_ONLY = "2"


@dataclasses.dataclass(frozen=True)
class ProbeReport:
    """What became of the probe.

    Attributes:
        answers: dict from stage to its answer, which has `result` or `error`.
        last_stage: optional str. The stage that was begun and not ended.
        exit_code: optional int. Of the process, negative for a signal; `None`
            if it was killed because it took too long.
        last_line: str. What the process said last on its standard error.
    """

    answers: Mapping[str, Mapping[str, Any]]
    last_stage: str | None
    exit_code: int | None
    last_line: str


def run_probe(
    request: Mapping[str, Any],
    timeout_seconds: float,
    environment: Mapping[str, str],
    command: Sequence[str] = COMMAND,
) -> ProbeReport:
    """Runs the probe to its end, or until its time is over.

    Args:
        request: mapping, see `tensorflow_probe.main`.
        timeout_seconds: float. Then the process is killed.
        environment: mapping. The environment variables of the process.
        command: list of str. What is run.

    Returns:
        The `ProbeReport`.
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
