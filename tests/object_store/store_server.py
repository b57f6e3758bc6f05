"""A proxy on loopback that is Google Cloud Storage to whoever connects through it.

    python -m tests.object_store.store_server CERTIFICATE KEY

Prints its port. TensorFlow's own client connects to it with `https_proxy` and
trusts its certificate with `CURL_CA_BUNDLE`. A request that is not for the store
goes to the server itself: `/control` sets faults, and tells counts and names.
It runs in a process of its own, because the client may hold Python's lock.
"""

import http.server
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from tests.object_store.store_faults import StoreFaults
from tests.object_store.store_requests import StoreAnswer, StoreRequest, answer
from tests.object_store.stored_objects import StoredObjects

# What of a broken upload the store has kept: whole blocks of this size.
_UPLOAD_BLOCK_BYTES = 256 << 10
_SLOW_SECONDS = 0.2


class StoreServer(http.server.ThreadingHTTPServer):
    """Objects, faults and counts of one store."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, certificate: str, key: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        self.objects = StoredObjects()
        self.faults = StoreFaults()
        self.latency_seconds = 0.0
        self.lock = threading.Lock()
        self.log: list[dict[str, object]] = []
        self.num_in_flight = 0

    def note(self, request: StoreRequest, reply: StoreAnswer, kind: str | None) -> None:
        entry = {
            "method": request.method,
            "path": request.readable,
            "status": reply.status,
            "sent": len(reply.body),
            "received": len(request.body),
            "fault": kind,
            "time": time.time(),
            "in_flight": self.num_in_flight,
        }
        with self.lock:
            self.log.append(entry)

    def control(self, order: dict[str, object]) -> object:
        """Does what a test asks for."""
        if "rules" in order:
            self.faults.set_rules(order["rules"], order.get("seed", 0))
        if "latency_seconds" in order:
            self.latency_seconds = order["latency_seconds"]
        if "lag_seconds" in order:
            self.objects.lag_seconds = order["lag_seconds"]
        if "put" in order:
            self.objects.put(*order["put"], bytes.fromhex(order["content"]))
        if "put_folder" in order:
            bucket, prefix, folder = order["put_folder"]
            for path in Path(folder).iterdir():
                self.objects.put(bucket, f"{prefix}/{path.name}", path.read_bytes())
        if "put_many" in order:
            bucket, names = order["put_many"]
            for name in names:
                self.objects.put(bucket, name, b"")
        with self.lock:
            log = list(self.log)
            if order.get("clear"):
                self.log.clear()
        return {
            "log": log,
            "injected": dict(self.faults.injected),
            "names": self.objects.names(order.get("bucket", "bucket")),
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StoreServer

    def do_CONNECT(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.wfile.flush()
        self.close_connection = True
        try:
            self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        except OSError:
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.close_connection = False

    def _serve(self) -> None:
        num_bytes = int(self.headers.get("content-length", 0))
        if not isinstance(self.connection, ssl.SSLSocket):
            order = json.loads(self.rfile.read(num_bytes) or b"{}")
            self._reply(StoreAnswer(200, json.dumps(self.server.control(order)).encode()))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = StoreRequest(self.command, headers["host"], self.path, headers)
        kind = self.server.faults.draw(self.command, request.readable)
        with self.server.lock:
            self.server.num_in_flight += 1
        try:
            self._carry_out(request, kind, num_bytes)
        finally:
            with self.server.lock:
                self.server.num_in_flight -= 1

    def _carry_out(self, request: StoreRequest, kind: str | None, num_bytes: int) -> None:
        time.sleep(self.server.latency_seconds + (_SLOW_SECONDS if kind == "slow" else 0.0))
        if kind == "refused":
            self._drop(request)
        elif kind == "broken_request":
            self._break_upload(request, num_bytes)
        else:
            request.body = self._body(num_bytes)
            if kind in ("503", "429"):
                reply = StoreAnswer(int(kind), b"try again")
            else:
                reply = answer(request, self.server.objects)
            self.server.note(request, reply, kind)
            if kind == "lost_answer":
                self._close()
            else:
                self._reply(reply, is_cut=kind == "cut_answer")

    do_GET = _serve
    do_PUT = _serve
    do_POST = _serve
    do_DELETE = _serve
    do_HEAD = _serve

    def _body(self, num_bytes: int) -> bytes:
        """The body; that of an upload comes in chunks, beside a length that means nothing."""
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(num_bytes)
        body = bytearray()
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    def _reply(self, reply: StoreAnswer, is_cut: bool = False) -> None:
        head = [f"HTTP/1.1 {reply.status} Status", f"Content-Length: {len(reply.body)}"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        body = reply.body[: len(reply.body) // 2] if is_cut else reply.body
        try:
            self.wfile.write(("\r\n".join(head) + "\r\n\r\n").encode() + body)
        except OSError:
            is_cut = True
        if is_cut:
            self._close()

    def _break_upload(self, request: StoreRequest, num_bytes: int) -> None:
        """Takes half of a body. A resumable upload keeps the whole blocks of it."""
        request.body = self._body(num_bytes)[: num_bytes // 2]
        kept = len(request.body) // _UPLOAD_BLOCK_BYTES * _UPLOAD_BLOCK_BYTES
        asked = request.headers.get("content-range", "").removeprefix("bytes ")
        first, _, total = asked.replace("-", "/").partition("/")
        upload = urllib.parse.parse_qs(request.target.partition("?")[2]).get("upload_id")
        if kept and upload and first.isdecimal():
            total_bytes = int(total.rpartition("/")[2])
            self.server.objects.extend_upload(
                upload[0], int(first), request.body[:kept], total_bytes
            )
        self._drop(request, "broken_request")

    def _drop(self, request: StoreRequest, kind: str = "refused") -> None:
        self.server.note(request, StoreAnswer(0), kind)
        self._close()

    def _close(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """The requests are counted, not printed."""


def main() -> None:
    server = StoreServer(*sys.argv[1:3])
    # A test process that is killed leaves no server behind.
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(server.server_port, flush=True)
    server.serve_forever()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
