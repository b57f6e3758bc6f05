"""Descriptor 2 of a job: the log of native libraries is filtered, what a dying process says is not.

Each test runs a process of its own, which writes as C++ does.
"""

import os
import signal
import subprocess
import sys
import time

import pytest

BEGIN = """
import os, sys, signal
from pipelines.native_log import divert_native_log, say_farewell
divert_native_log()
say = lambda text: os.write(2, text.encode())
"""
INFO = "I0000 00:00:1795568075.645688   11106 device_compiler.h:196] Compiled cluster\\n"
WARNING = "2025-11-25 00:53:46.123456: W external/xla/a_b.cc:51] slow\\n"
ERROR = "E0000 00:00:1795568075.645688   11106 cuda_dnn.cc:8310] Unable to register\\n"
FATAL = "F0000 00:00:1795568075.645688   11106 xla.cc:12] Check failed: a == b (1 vs. 2)\\n"
PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"


def run(code, *, level=None, **options):
    variables = {name: value for name, value in os.environ.items() if "LOG_LEVEL" not in name}
    if level is not None:
        variables["TF_CPP_MIN_LOG_LEVEL"] = level
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        text=True,
        env=variables,
        timeout=60,
        check=False,
        **{"capture_output": True, **options},
    )


def test_the_log_is_dropped_and_all_else_is_shown_at_once():
    finished = run(f"""
say("{PREAMBLE}\\n{INFO}rebuild TensorFlow\\n")
say("{WARNING}")
say("{ERROR}")
print("ours", file=sys.stderr)
import subprocess
subprocess.run([sys.executable, "-c", "raise SystemExit('of a child')"])
say_farewell()
""")
    assert sorted(finished.stderr.split("\n")) == ["", "of a child", "ours"]
    assert finished.returncode == 0


@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_the_variable_of_tensorflow_shows_it(level):
    assert run(f'say("{INFO}"); say_farewell()', level=level).stderr == INFO.replace("\\n", "\n")
    assert run(f'say("{INFO}"); say_farewell()', level="3").stderr == ""


def test_a_failed_check_is_shown_though_the_process_aborts_at_once():
    finished = run(f'say("{INFO}{ERROR}{FATAL}*** stack trace: ***\\n    @ 0x7f"); os.abort()')
    assert finished.returncode == -signal.SIGABRT
    shown = finished.stderr.splitlines()
    assert shown[:3] == [FATAL.removesuffix("\\n"), "*** stack trace: ***", "    @ 0x7f"]
    # The error before it may be the reason.
    assert shown[3:] == [ERROR.removesuffix("\\n")]


def test_the_process_ends_though_its_child_goes_on():
    code = """
import subprocess
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(child.pid)
say_farewell()
"""
    begin = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        child = int(process.stdout.readline())
        # The filter holds no stream of the job: this one ends with it.
        assert process.stdout.read() == b""
        assert process.wait() == 0
    assert time.monotonic() - begin < 30
    os.kill(child, signal.SIGKILL)
