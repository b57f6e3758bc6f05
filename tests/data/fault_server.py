"""A server on this machine that fails as it is told to."""

import contextlib
import dataclasses
import hashlib
import http.server
import re
import threading

from txl_tf.data.sources.downloads import PublishedFile


@dataclasses.dataclass
class Fault:
    """What goes wrong with one request."""

    status: int | None = None
    cut_after_bytes: int | None = None
    ignore_range: bool = False
    without_length: bool = False


class FaultServer(http.server.ThreadingHTTPServer):
    """Serves `body` under every path, with one fault of `faults` for each request."""

    daemon_threads = True

    def __init__(self, body):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body = body
        self.faults = []
        self.ranges = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/corpus.zip"

    def published(self, **changes):
        values = {
            "name": "corpus.zip",
            "url": self.url,
            "size_bytes": len(self.body),
            "sha256": hashlib.sha256(self.body).hexdigest(),
        }
        return PublishedFile(**values | changes)

    def handle_error(self, request, client_address):
        """A client that went away is part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers.get("Range"))
        fault = server.faults.pop(0) if server.faults else Fault()
        if fault.status:
            self.send_error(fault.status)
            return
        start = self._wanted_start(fault)
        if start is not None and start >= len(server.body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.body)}")
            self.end_headers()
            return
        self._send(start, fault)

    def _wanted_start(self, fault):
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(match[1]) if match and not fault.ignore_range else None

    def _send(self, start, fault):
        body = self.server.body[start or 0 :]
        self.send_response(200 if start is None else 206)
        if start is not None:
            size = len(self.server.body)
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        if not fault.without_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if fault.cut_after_bytes is None else body[: fault.cut_after_bytes])
        self.close_connection = True


@contextlib.contextmanager
def fault_server(body):
    """A `FaultServer` in a thread of its own."""
    with FaultServer(body) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
