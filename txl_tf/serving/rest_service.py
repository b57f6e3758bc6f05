"""The REST interface of TensorFlow Serving, as far as PREDICT needs it."""

import json
import logging
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format

from txl_tf.serving.json_tensors import arrays_of_request, json_of_answer
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode
from txl_tf.serving.version_watcher import VersionWatcher

_LOGGER = logging.getLogger(__name__)
_PATH = re.compile(r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+))?(?P<rest>.*)")
_MAX_BODY_BYTES = 256 << 20
_IDLE_SECONDS = 120


class RestService(ThreadingHTTPServer):
    """Answers over HTTP on this machine; each connection has a thread.

    `POST /v1/models/NAME[/versions/N]:predict` asks a signature,
    `GET /v1/models/NAME[/versions/N]` says what is loaded, and
    `GET /v1/models/NAME[/versions/N]/metadata` what its signatures are. Errors
    are `{"error": ...}`.

    Args:
        model_name: str. The name of the model in paths.
        versions: `VersionWatcher`.
        port: int. Port of 127.0.0.1; 0 for a free one.
    """

    daemon_threads = True

    def __init__(self, model_name: str, versions: VersionWatcher, port: int) -> None:
        self.model_name = model_name
        self.versions = versions
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: RestService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *arguments: Any) -> None:
        _LOGGER.debug(format, *arguments)

    def _answer(self, function) -> None:
        try:
            status, answer = 200, function()
        except RequestError as error:
            status, answer = error.code.http_status, {"error": error.message}
        except Exception as error:  # a request must not end the connections of others
            _LOGGER.exception("A request failed.")
            status, answer = 500, {"error": f"{type(error).__name__}: {error}"}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _target(self) -> tuple[int | None, str]:
        match = _PATH.fullmatch(self.path)
        if match is None:
            raise RequestError(StatusCode.INVALID_ARGUMENT, f"Malformed request: {self.path}")
        if match["name"] != self.server.model_name:
            message = f"Servable not found: {match['name']}."
            raise RequestError(StatusCode.NOT_FOUND, message)
        return (int(match["version"]) if match["version"] else None), match["rest"]

    def _get(self) -> dict[str, Any]:
        version, rest = self._target()
        loaded = self.server.versions.current(version)
        if rest == "":
            status = {"error_code": "OK", "error_message": ""}
            found = {"version": str(loaded.number), "state": "AVAILABLE", "status": status}
            return {"model_version_status": [found]}
        if rest != "/metadata":
            raise RequestError(StatusCode.INVALID_ARGUMENT, f"Malformed request: {self.path}")
        signatures = {
            name: json_format.MessageToDict(
                definition,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            for name, definition in loaded.signatures.items()
        }
        spec = {"name": self.server.model_name, "version": str(loaded.number), "signature_name": ""}
        metadata = {"signature_def": {"signature_def": signatures}}
        return {"model_spec": spec, "metadata": metadata}

    def _post(self) -> dict[str, Any]:
        content = self._content()  # first, so that the connection can be used again
        version, rest = self._target()
        if rest != ":predict":
            raise RequestError(StatusCode.INVALID_ARGUMENT, f"Malformed request: {self.path}")
        body = _json_object(content)
        name = body.get("signature_name", "")
        if not isinstance(name, str):
            raise RequestError(StatusCode.INVALID_ARGUMENT, "`signature_name` must be a string.")
        loaded = self.server.versions.current(version)
        inputs = arrays_of_request(body, loaded.signature(name))
        return json_of_answer(loaded.predict(name, inputs), in_rows="instances" in body)

    def _content(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True  # what follows cannot be told from a request
            message = f"The body must have a Content-Length of 0 to {_MAX_BODY_BYTES} bytes."
            raise RequestError(StatusCode.INVALID_ARGUMENT, message)
        return self.rfile.read(int(length))


def _json_object(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        message = f"JSON Parse error: {error}"
        raise RequestError(StatusCode.INVALID_ARGUMENT, message) from error
    if not isinstance(body, dict):
        raise RequestError(StatusCode.INVALID_ARGUMENT, "The body must be a JSON object.")
    return body
