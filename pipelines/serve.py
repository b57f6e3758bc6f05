"""Answers text completions over HTTP, in the form of OpenAI's API: `txl serve`.

    txl serve --model runs/mine
    curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once upon a time"}'

The model is a run, a checkpoint, a converted model or an export. Open http://127.0.0.1:8000 in a
browser to try it. The server runs until it is interrupted or terminated.
"""

import argparse
import dataclasses
import os
import socket

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.errors import StorageError
from txl_tf.imports import require_extra
from txl_tf.model_folder import open_model, required_tokenizer

from .arguments import (
    MAX_COUNT,
    add_evaluation_argument,
    add_number,
    add_step_argument,
    override_evaluation,
)
from .memory_needs import require_reading_memory

_HIGHEST_PORT = 65535
_KEY_VARIABLE = "TXL_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    meaning = "run, checkpoint, converted model or export"
    parser.add_argument("--model", "--export", metavar="DIR", required=True, help=meaning)
    add_step_argument(parser)
    add_evaluation_argument(parser)
    parser.add_argument("--name", help="name of the model in requests (default: the folder's)")
    address = "address to listen on; 0.0.0.0: all addresses (default: 127.0.0.1)"
    parser.add_argument("--host", default="127.0.0.1", help=address)
    add_number(parser, "--port", 0, _HIGHEST_PORT, "port; 0: a free one", default=8000)
    meaning = f"key for all paths but / and /health (default: {_KEY_VARIABLE} of the environment)"
    parser.add_argument("--api-key", metavar="KEY", help=meaning)
    limits = parser.add_argument_group("limits")
    add_number(limits, "--rows", 1, 1024, "texts written side by side", default=8)
    for option, meaning, default in (
        ("--queue", "most requests that wait, at most half of them from one address", 16),
        ("--max-prompt-tokens", "most tokens of a prompt", 65536),
        ("--max-tokens", "most tokens written for a request", 4096),
        ("--sessions", "most sessions kept; above, the longest unused ends", 32),
    ):
        add_number(limits, option, 1, MAX_COUNT, meaning, default=default)
    meaning = "minutes without a request after which a session ends"
    add_number(limits, "--session-minutes", 0.01, 1e6, meaning, default=30.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeJob:
    """Checked arguments of the job."""

    socket: socket.socket
    """Socket of the address, bound before the model is loaded."""
    evaluation: EvaluationConfig
    """Lengths of the scores of prompts, as of `txl evaluate`."""
    arguments: argparse.Namespace


def check_arguments(arguments: argparse.Namespace) -> ServeJob:
    """Checks what can be checked before TensorFlow is imported."""
    require_extra("serving", "aiohttp", purpose="Serving")
    source = open_model(arguments.model, arguments.step)
    required_tokenizer(source, f"--model {arguments.model}")
    described = override_evaluation(source.description, arguments.overrides)
    model, rows = described.model, arguments.rows + arguments.sessions
    where = f"--rows {arguments.rows} --sessions {arguments.sessions}"
    require_reading_memory("Serving", model, rows, 1, model.effective_memory_length, where)
    return ServeJob(
        socket=_listening_socket(arguments.host, arguments.port),
        evaluation=described.evaluation,
        arguments=arguments,
    )


def _listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        what = f"The server cannot listen: {getattr(error, 'strerror', None) or error}"
        where = f"--host {host} --port {port}"
        raise StorageError(what, where=where, remedy="Choose another port or address.") from error


def run(job: ServeJob) -> None:
    """Serves until the process is interrupted or terminated."""
    from aiohttp import web

    import txl_tf
    from txl_tf.serving.text_engine import TextEngine
    from txl_tf.serving.text_server import SHUTDOWN_SECONDS, TextServer

    arguments = job.arguments
    name = arguments.name or os.path.basename(os.path.normpath(arguments.model))
    lm = txl_tf.load(arguments.model, arguments.step)
    engine = TextEngine(
        txl_tf.TransformerXLCausalLM(lm.model, lm.tokenizer, job.evaluation),
        max_rows=arguments.rows,
        max_waiting=arguments.queue,
        max_sessions=arguments.sessions,
        session_seconds=60 * arguments.session_minutes,
    )
    server = TextServer(
        engine,
        name,
        arguments.api_key or os.environ.get(_KEY_VARIABLE, ""),
        max_prompt_tokens=arguments.max_prompt_tokens,
        max_tokens=arguments.max_tokens,
    )
    host, port = job.socket.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"{name}: {url}", flush=True)
    web.run_app(
        server.application(),
        sock=job.socket,
        print=None,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
