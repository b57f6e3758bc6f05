"""Answers text completions over HTTP, in the form of OpenAI's API: `txl serve`.

    txl serve --workdir runs/mine
    curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once upon a time"}'

The model is a run, a checkpoint, a converted model or an export. Open http://127.0.0.1:8000 in a
browser to try it. The server runs until it is interrupted or terminated.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from txl_tf import __version__
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.errors import StorageError
from txl_tf.imports import require_extra
from txl_tf.model_folder import open_model, required_tokenizer

from ..run.memory_needs import require_reading_memory
from ..shell.arguments import (
    MAX_COUNT,
    add_evaluation_argument,
    add_number,
    add_step_argument,
    override_evaluation,
)

if TYPE_CHECKING:
    from txl_tf.serving.text_server import TextServer

_HIGHEST_PORT = 65535
_KEY_VARIABLE = "TXL_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument(
        "--workdir",
        "--model",
        metavar="DIR",
        required=True,
        help="folder of a run, checkpoint, converted model or export",
    )
    add_step_argument(parser)
    add_evaluation_argument(parser)
    parser.add_argument("--name", help="name of the model in requests (default: the folder's)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0: all addresses (default: 127.0.0.1)",
    )
    add_number(parser, "--port", 0, _HIGHEST_PORT, "port; 0: a free one", default=8000)
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"key for all paths but /, /health, /ping (default: ${_KEY_VARIABLE})",
    )
    parser.add_argument(
        "--allowed-origin",
        metavar="URL",
        action="append",
        help="pages of this origin may ask; *: of any; may be repeated",
    )
    parser.add_argument(
        "--client-header",
        metavar="NAME",
        default="",
        help="header that names a client behind a proxy: X-Forwarded-For, Authorization",
    )
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="write a line for each request to the standard error",
    )
    limits = parser.add_argument_group("limits")
    add_number(limits, "--rows", 1, 1024, "texts written side by side", default=8)
    for option, meaning, default in (
        ("--queue", "most requests that wait; clients share it equally", 16),
        ("--max-prompt-tokens", "most tokens of a prompt", 65536),
        ("--max-tokens", "most tokens written for a text", 4096),
        ("--sessions", "most sessions kept; above, the longest unused ends", 32),
    ):
        add_number(limits, option, 1, MAX_COUNT, meaning, default=default)
    add_number(
        limits,
        "--session-minutes",
        0.01,
        1e6,
        "minutes without a request after which a session ends",
        default=30.0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeJob:
    """Checked arguments of the job."""

    socket: socket.socket
    """Socket of the address, bound before the model is loaded."""
    evaluation: EvaluationConfig
    """Lengths of the scores of prompts, as in `txl evaluate`."""
    arguments: argparse.Namespace


def check_arguments(arguments: argparse.Namespace) -> ServeJob:
    """Checks what can be checked before TensorFlow is imported."""
    require_extra("serving", "aiohttp", "prometheus_client", purpose="Serving")
    source = open_model(arguments.workdir, arguments.step)
    required_tokenizer(source, f"--workdir {arguments.workdir}")
    description = override_evaluation(source.description, arguments.overrides)
    model, rows = description.model, arguments.rows + arguments.sessions
    require_reading_memory(
        "Serving",
        model,
        rows,
        1,
        model.effective_memory_length,
        f"--rows {arguments.rows} --sessions {arguments.sessions}",
    )
    return ServeJob(
        socket=_listening_socket(arguments.host, arguments.port),
        evaluation=description.evaluation,
        arguments=arguments,
    )


def _listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise StorageError(
            f"The server cannot listen: {getattr(error, 'strerror', None) or error}",
            where=f"--host {host} --port {port}",
            remedy="Choose another port or address.",
        ) from error


def run(job: ServeJob) -> None:
    """Serves until the process is interrupted or terminated."""
    from txl_tf.serving.text_server import TextServer

    arguments = job.arguments
    name = arguments.name or os.path.basename(os.path.normpath(arguments.workdir))
    server = TextServer(
        name,
        arguments.api_key or os.environ.get(_KEY_VARIABLE, ""),
        version=__version__,
        client_header=arguments.client_header,
        allowed_origins=arguments.allowed_origin or (),
        max_prompt_tokens=arguments.max_prompt_tokens,
        max_tokens=arguments.max_tokens,
    )
    # 1. The server answers in a thread while TensorFlow and the model are loaded.
    host, port = job.socket.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"{name}: loading", flush=True)
    with _listening(server, job):
        # 2. From here it writes text.
        server.engine = _loaded_engine(server, job)
        print(f"{name}: {url}", flush=True)
        # 3. This thread waits for a signal, which ends the server.
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: stop.set())
        while not stop.wait(0.5):  # a thread may get the signal, which does not wake this one
            pass
    # Otherwise Python looks through a million objects at its end, for 2.5 s.
    gc.freeze()


def _loaded_engine(server: "TextServer", job: ServeJob) -> Any:
    import txl_tf
    from txl_tf.serving.text_engine import TextEngine

    arguments = job.arguments
    lm = txl_tf.load(arguments.workdir, arguments.step)
    return TextEngine(
        txl_tf.TransformerXLCausalLM(lm.model, lm.tokenizer, job.evaluation),
        server.metrics,
        max_rows=arguments.rows,
        max_waiting=arguments.queue,
        max_sessions=arguments.sessions,
        session_seconds=60 * arguments.session_minutes,
    )


@contextlib.contextmanager
def _listening(server: "TextServer", job: ServeJob) -> Iterator[None]:
    """Answers requests in a thread of its own, also while the model is loaded."""
    from aiohttp import web

    from txl_tf.serving.text_server import SHUTDOWN_SECONDS

    loop, log = asyncio.new_event_loop(), logging.getLogger("aiohttp.access")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler())

    def stop() -> None:
        raise web.GracefulExit

    thread = threading.Thread(
        target=web.run_app,
        args=[server.application()],
        kwargs={
            "sock": job.socket,
            "print": None,
            "access_log": log if job.arguments.log_requests else None,
            "access_log_format": '%a %t "%r" %s %b %Tf s',
            "handle_signals": False,
            "handler_cancellation": True,
            "shutdown_timeout": SHUTDOWN_SECONDS,
            "loop": loop,
        },
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop)
        thread.join()
