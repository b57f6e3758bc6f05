"""Serves an export on this machine, for tests and demonstrations: `txl serve`.

    txl serve --export DIR
    txl serve --export DIR --port 8501 --grpc-port 8500
    curl -d '{"instances": ["Once upon a time"]}' http://127.0.0.1:8501/v1/models/txl:predict

It answers PREDICT as TensorFlow Serving does, over REST and gRPC, on 127.0.0.1
only. It serves the highest version in `DIR` that matches its checksums, and the
next one when it appears. It runs until it is interrupted, terminated or hung up,
and then ends within ten seconds.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from txl_tf.errors import InputMissingError, JobError, StorageError, UsageError
from txl_tf.export.export_verification import CARD_FILE, CHECKSUMS_FILE, verify_export
from txl_tf.imports import require_extra
from txl_tf.storage.files import is_remote, list_folder
from txl_tf.storage.untrusted_files import read_json_object

from .arguments import add_number
from .command_line import run_job

_HIGHEST_PORT = 65535
_LEAST_POLL_SECONDS, _MOST_POLL_SECONDS = 0.001, 86_400.0
_END_SECONDS = 6.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MODULES = ("aiohttp", "tensorflow_serving")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument("--export", metavar="DIR", required=True, help="folder of all versions")
    parser.add_argument("--name", default="txl", help="name of the model (default: txl)")
    for option, default, protocol in (("--port", 8501, "REST"), ("--grpc-port", 8500, "gRPC")):
        add_number(
            parser, option, 0, _HIGHEST_PORT, f"port of {protocol}; 0: a free one", default=default
        )
    add_number(
        parser,
        "--poll-seconds",
        _LEAST_POLL_SECONDS,
        _MOST_POLL_SECONDS,
        "time between two looks for a new version",
        default=2.0,
        metavar="S",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    if not arguments.name or set(arguments.name) & set("/:"):
        what = "A name goes into paths: it has a letter, and neither `/` nor `:`."
        raise UsageError(what, where=f"--name {arguments.name}")
    require_extra("serving", *_MODULES, purpose="Serving")
    if not is_remote(arguments.export):
        _require_version(arguments.export)


def run(arguments: argparse.Namespace) -> None:
    """Serves until the process is told to end.

    Raises:
        InputMissingError: If no version is complete and as it was written.
        StorageError: If a port is taken.
    """
    ends, answers = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            _serve(arguments, ends, answers)
        except BaseException as error:  # the main thread reports it
            failures.append(error)
        finally:
            ends.set()

    # Only the main thread hears signals, and only where it waits: loading and
    # verifying are done by another one.
    serving = threading.Thread(target=serve, name="serving", daemon=True)
    with _told_by_signals(ends):
        serving.start()
        ends.wait()
        if answers.is_set() or failures:
            serving.join(_END_SECONDS)
    if failures:
        raise failures[0]
    if serving.is_alive():
        # TensorFlow is being loaded, or a version, or a request does not end.
        sys.stdout.flush()
        os._exit(0)


def _serve(arguments: argparse.Namespace, ends: threading.Event, answers: threading.Event) -> None:
    from txl_tf.serving import LoopbackServer

    try:
        server = LoopbackServer(
            arguments.export,
            verify_export,
            model_name=arguments.name,
            rest_port=arguments.port,
            grpc_port=arguments.grpc_port,
            poll_seconds=arguments.poll_seconds,
        )
    except OSError as error:
        ports = f"--port {arguments.port} --grpc-port {arguments.grpc_port}"
        what = f"A port cannot be used: {error.strerror or error}"
        raise StorageError(what, where=ports, remedy="Choose another port.") from error
    try:
        server.start()
        answers.set()
        if not ends.is_set():
            _report(server, arguments)
        ends.wait()
    finally:
        if not server.stop() and ends.is_set():
            threading.Event().wait()  # `run` ends the process


def _report(server: Any, arguments: argparse.Namespace) -> None:
    if server.versions.refused and not server.versions.has_version:
        number, why = max(server.versions.refused.items())
        where = os.path.join(arguments.export, str(number))
        remedy = "See `txl verify`, or export the model again."
        raise InputMissingError(why, where=where, remedy=remedy)
    number = server.versions.current().number
    url = f"http://127.0.0.1:{server.rest_port}/v1/models/{urllib.parse.quote(arguments.name)}"
    print(f"version: {number}")
    print(f"REST: {url}")
    print(f"gRPC: 127.0.0.1:{server.grpc_port}, model {arguments.name}")
    card = os.path.join(arguments.export, str(number), CARD_FILE)
    print(f"try: {_example_command(card, url)}", flush=True)


def _example_command(card: str, url: str) -> str:
    """Returns the command of a request that the version answers."""
    example = None
    # The server answers whether or not there is a card that can be read.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, JobError):
        example = read_json_object(card)["serving"]["completion"]["example"]
    if not isinstance(example, list):
        # An export of an earlier version has no signature with a single input.
        return f"curl {shlex.quote(url + '/metadata')}"
    body = json.dumps({"instances": example})
    return f"curl -d {shlex.quote(body)} {shlex.quote(url + ':predict')}"


@contextlib.contextmanager
def _told_by_signals(ends: threading.Event) -> Iterator[None]:
    """Sets an event when the process is told to end, for as long as the block takes."""
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in previous.items():
            # `nohup` wants hanging up to end nothing.
            if number != signal.SIGHUP or handler != signal.SIG_IGN:
                signal.signal(number, lambda *_: ends.set())
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _require_version(folder: str) -> None:
    if not os.path.isdir(folder):
        raise InputMissingError("There is no such folder.", where=f"--export {folder}")
    names = list_folder(folder)
    if any(name.isdecimal() for name in names):
        return
    is_version = CHECKSUMS_FILE in names
    raise InputMissingError(
        "This is one version; the folder above it is served."
        if is_version
        else "The folder has no versions.",
        where=f"--export {folder}",
        remedy="Name the folder that `txl export --out` was given.",
    )


if __name__ == "__main__":
    raise SystemExit(run_job("serve"))
