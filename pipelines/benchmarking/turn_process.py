"""Processes that take turns: this end of the line to a `turn_server`."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self, cast

from txl_tf.errors import JobError
from txl_tf.storage.files import first_line

from . import turn_server

Figures = dict[str, Any]
"""Answer to a turn: `seconds`, `peak_bytes`, and what the work says of itself."""

_MOST_ERROR_BYTES = 1 << 16
# One that was interrupted may be in the middle of a turn.
_MAX_END_SECONDS = 10.0


class TurnProcess:
    """A process that does some work whenever it is asked to; a context that ends it.

    Args:
        name: str. Whose work it is, for errors.
        command: sequence of str. Command line that answers as `turn_server` does.
        request: dict. What it is to do.
        environment: mapping. The variables of the process.
        folder: optional `TemporaryDirectory` that goes when the process has ended.

    Raises:
        JobError: If it cannot be started, or ends before it is ready.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        request: Mapping[str, Any],
        environment: Mapping[str, str],
        folder: "tempfile.TemporaryDirectory[str] | None" = None,
    ) -> None:
        self._name = name
        self._folder = folder
        self._command = command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` ends it
        begin = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                text=True,
            )
        except OSError as error:
            self._clean()
            raise JobError(
                f"The process of {name} cannot be started: {first_line(error)}", where=command[0]
            ) from error
        try:
            self._ask(json.dumps(request))
            self.ready = self._answer()
        except BaseException:
            self.close()
            raise
        self.ready_seconds = time.perf_counter() - begin
        """Wall time from its start until it was ready."""

    @classmethod
    def of_this_project(cls, request: Mapping[str, Any]) -> Self:
        """Starts the work of this project, see `own_work`."""
        command = [sys.executable, "-W", "ignore", "-m", f"{__package__}.own_work"]
        folder = tempfile.TemporaryDirectory()
        request = {**request, "folder": folder.name}
        return cls("txl", command, request, own_environment(), folder)

    @classmethod
    def of_program(
        cls, name: str, python: str, program: Path, request: Mapping[str, Any], **environment: str
    ) -> Self:
        """Starts a program with `create` in another Python.

        Args:
            name: str. Whose work it is.
            python: str. Path of the Python.
            program: path of the file.
            request: dict. What it is to do.
            **environment: str. Variables for the process.
        """
        command = [python, "-W", "ignore", turn_server.__file__, str(program)]
        return cls(name, command, request, {**os.environ, **environment})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def turn(self, count: int) -> Figures:
        """Does the work so many times.

        Raises:
            JobError: If the process ends instead.
        """
        self._ask(str(count))
        return self._answer()

    def close(self) -> None:
        """Ends the process, which has nothing more to read."""
        for stream in (self._process.stdin, self._process.stdout):
            # What was to be written to a process that has ended is lost.
            with contextlib.suppress(BrokenPipeError):
                cast(IO[str], stream).close()
        try:
            self._process.wait(_MAX_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._clean()

    def _clean(self) -> None:
        self._errors.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _ask(self, line: str) -> None:
        # The answer says so where it has ended.
        with contextlib.suppress(BrokenPipeError):
            requests = cast(IO[str], self._process.stdin)
            requests.write(f"{line}\n")
            requests.flush()

    def _answer(self) -> Figures:
        line = cast(IO[str], self._process.stdout).readline()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and "peak_bytes" in answer:
            return answer
        raise JobError(
            f"The process of {self._name} {self._end(line)}",
            where=" ".join(self._command)[:200],
            remedy="See that it has what the work needs, and enough memory.",
        )

    def _end(self, line: str) -> str:
        if line:
            return f"answered {line[:100]!r}."
        exit_code = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _MOST_ERROR_BYTES))
        said = self._errors.read().decode(errors="replace").split("\n")
        last = next((each.strip() for each in reversed(said) if each.strip()), "it said nothing")
        return f"ended with exit code {exit_code}: {last[:300]}"


def own_environment() -> dict[str, str]:
    """Returns the variables of a process that imports this copy of the code."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)}
