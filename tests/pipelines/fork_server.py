"""Runs `txl` many times without importing TensorFlow each time.

A server process imports everything and initialises nothing: it has one thread
and no device, so that a fork is as good as a new process. It forks a
child for every run. Tests use `ForkServer`, since their own process has
TensorFlow running and must not be forked.

The server reads a line of JSON for every request and answers with one:
`{"run": [argument, ...], "output": path, "errors": path, "cwd": path, "environment":
{name: value}}` with `{"pid": 7}`, and `{"wait": 7, "blocks": true}` with `{"exit": 0}`,
or null while it runs.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from pipelines.shell.tensorflow_import import import_tensorflow

ROOT = Path(__file__).resolve().parent.parent.parent
_JOB_MODULES = (
    "pipelines.jobs.analyze",
    "pipelines.jobs.convert",
    "pipelines.jobs.evaluate",
    "pipelines.jobs.export",
    "pipelines.jobs.generate",
    "pipelines.jobs.prepare",
    "pipelines.jobs.quickstart",
    "pipelines.jobs.train",
    "pipelines.jobs.verify",
    "pipelines.run.training_data",
    "pipelines.run.training_run",
    "tensorflow_text",
    "txl_tf.data.prepared_dataset",
    "txl_tf.export",
    "txl_tf.generation",
)
_POLL_SECONDS = 0.0005


class ForkedRun:
    """A run of `txl` that was forked."""

    def __init__(self, server: "ForkServer", pid: int, output: Path) -> None:
        self._server = server
        self.pid = pid
        self._output = output
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        return self._asked(blocks=False)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended; it is killed after `timeout` seconds."""
        if timeout is not None and self._exit_code is None:
            descriptor = os.pidfd_open(self.pid)
            has_ended = select.select([descriptor], [], [], timeout)[0]
            os.close(descriptor)
            if not has_ended:
                self.send(signal.SIGKILL)
                self.wait()
                raise TimeoutError(f"It ran for {timeout} seconds: {self.output()}")
        exit_code = self._asked(blocks=True)
        assert exit_code is not None
        return exit_code

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Waits for a condition or the end, and returns whether the condition came first."""
        while not condition():
            if self.poll() is not None:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; one that comes after the end does nothing."""
        if self._exit_code is None:
            os.kill(self.pid, number)

    def output(self) -> str:
        """Its output so far."""
        return self._output.read_text()

    def _asked(self, blocks: bool) -> int | None:
        if self._exit_code is None:
            self._exit_code = self._server.ask({"wait": self.pid, "blocks": blocks})["exit"]
        return self._exit_code


class ForkServer:
    """The tests' end of the server; a context that ends it and its children."""

    def __enter__(self) -> Self:
        self._children: list[ForkedRun] = []
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.pipelines.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # The only threads that imports would start: of NumPy's matrix products, and of Arrow's
            # allocator, which Keras imports where pandas is installed.
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",
                "JE_ARROW_MALLOC_CONF": "background_thread:false",
            },
        )
        assert self._answer() == {"threads": 1}
        return self

    def __exit__(self, *unused: object) -> None:
        self.end_runs()
        # It ends when there is nothing more to read.
        with self._process:
            pass

    def end_runs(self) -> None:
        """Kills the runs that have not ended."""
        for child in self._children:
            if child.poll() is None:
                child.send(signal.SIGKILL)
                child.wait()
        self._children.clear()

    def start(
        self,
        *arguments: object,
        output: Path,
        errors: Path | None = None,
        cwd: str | Path | None = None,
    ) -> ForkedRun:
        """Begins a run, with the environment variables of this process."""
        request = {
            "run": [str(argument) for argument in arguments],
            "output": str(output),
            "errors": str(errors or output),
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ),
        }
        self._children.append(ForkedRun(self, self.ask(request)["pid"], output))
        return self._children[-1]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        assert line, f"the server has ended with {self._process.wait()}"
        return json.loads(line)


@functools.cache
def shared_server() -> ForkServer:
    """Returns the server of this process, which it starts on first use and ends at its exit."""
    server = ForkServer().__enter__()
    atexit.register(server.__exit__)
    return server


def fork_job(request: dict[str, Any]) -> int:
    """Forks a child that runs the job of a request and ends."""
    # Locks that another thread holds would be held for ever in the child.
    assert _num_threads() == 1
    pid = os.fork()
    if pid == 0:
        exit_code = 99
        try:
            _move_to(request)
            exit_code = _run(request["run"], [request["output"], request["errors"]])
        except KeyboardInterrupt:
            exit_code = 128 + signal.SIGINT
        finally:
            os._exit(exit_code)
    return pid


def serve() -> None:
    """Imports what jobs need, and answers requests until there are no more."""
    # A shell starts background jobs with it ignored, and a child would miss an early one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import_tensorflow()
    for module in _JOB_MODULES:
        importlib.import_module(module)
    # What was imported stays: collecting garbage in a child need not look through it.
    gc.freeze()
    print(json.dumps({"threads": _num_threads()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "run" in request:
            answer = {"pid": fork_job(request)}
        else:
            options = 0 if request["blocks"] else os.WNOHANG
            pid, status = os.waitpid(request["wait"], options)
            answer = {"exit": os.waitstatus_to_exitcode(status) if pid else None}
        print(json.dumps(answer), flush=True)


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _move_to(request: dict[str, Any]) -> None:
    """Gives the child the environment and folder of the client."""
    # A test runner that was started by `nohup` ignores SIGHUP.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])


def _run(arguments: list[str], outputs: Sequence[Path | str]) -> int:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for stream, path in zip((1, 2), outputs, strict=True):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(path, flags, 0o644), stream)
    from pipelines.command_line import main

    try:
        return main(arguments)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    serve()
