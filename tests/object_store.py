"""Server like Google Cloud Storage on this machine, which tests can make slow or let fail.

    python -m tests.object_store CERTIFICATE KEY

TensorFlow's own client uses the server as its `https_proxy` and trusts its certificate. A request
without TLS is an order of a test. The server runs in a process of its own, because the client may
hold Python's lock.
"""

import contextlib
import http.client
import http.server
import json
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

_HOSTS = ("www.googleapis.com", "storage.googleapis.com")
_REWRITE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)")
_OBJECTS = re.compile(r"(/upload)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+))?)?")
_NO_FAULTS = {"rules": [], "latency_seconds": 0.0}


class ObjectStore:
    """Running store, and the environment in which TensorFlow's client finds it."""

    def __init__(self, port: int, certificate: str) -> None:
        self._port = port
        self.environment = {
            "https_proxy": f"http://127.0.0.1:{port}",
            "CURL_CA_BUNDLE": certificate,
            # No metadata server exists here, so the token comes from the environment.
            "NO_GCE_CHECK": "1",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        }

    def order(self, **order: object) -> dict:
        """Sets fields of the server, and returns its log and objects."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", "/", json.dumps(order))
            return json.loads(connection.getresponse().read())

    def fail(self, *, method: str = ".*", path: str = "", skip: int = 0, count: int = 1 << 30):
        """Answers 503 to `count` requests that match, after `skip` others."""
        self.order(rules=[{"method": method, "path": path, "skip": skip, "count": count}])

    def reset(self) -> None:
        self.order(**_NO_FAULTS, log=[])

    def requests(self) -> list[dict]:
        return self.order()["log"]

    def names(self, bucket: str) -> list[str]:
        return [name for place, name in self.order()["objects"] if place == bucket]

    def put(self, bucket: str, **contents: bytes) -> None:
        for name, content in contents.items():
            self.order(put=[bucket, name, content.hex()])

    def put_folder(self, folder: Path, bucket: str) -> None:
        self.put(bucket, **{f"data/{path.name}": path.read_bytes() for path in folder.iterdir()})


@pytest.fixture(scope="session")
def store_process(tmp_path_factory) -> Iterator[ObjectStore]:
    folder = tmp_path_factory.mktemp("store")
    certificate, key = str(folder / "authority.pem"), str(folder / "key.pem")
    names = ",".join(f"DNS:{host}" for host in _HOSTS)
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    words += f" -subj /CN={_HOSTS[0]} -addext subjectAltName={names}"
    subprocess.run(
        [*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    with subprocess.Popen(
        [sys.executable, "-m", "tests.object_store", certificate, key],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        yield ObjectStore(int(process.stdout.readline()), certificate)
        process.kill()


@pytest.fixture
def object_store(store_process, monkeypatch) -> Iterator[ObjectStore]:
    """Yields a store that this process reaches under `gs://`; tests use different buckets."""
    for name, value in store_process.environment.items():
        monkeypatch.setenv(name, value)
    store_process.reset()
    yield store_process
    store_process.reset()


class _Server(http.server.ThreadingHTTPServer):
    """Server with its objects, the rules of its faults, and a log of the requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, certificate: str, key: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(certificate, key)
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str], tuple[bytes, float]] = {}
        self.rules: list[dict] = []
        self.latency_seconds = 0.0
        self.log: list[dict] = []
        self.num_in_flight = 0

    def obey(self, order: dict) -> dict:
        with self.lock:
            if "put" in order:
                bucket, name, content = order.pop("put")
                self.put(bucket, name, bytes.fromhex(content))
            vars(self).update(order)
            return {"log": self.log, "objects": sorted(self.objects)}

    def must_fail(self, method: str, path: str) -> bool:
        for rule in self.rules:
            if re.fullmatch(rule["method"], method) and re.search(rule["path"], path):
                rule["skip"] -= 1
                if rule["skip"] < 0 and rule["count"] > 0:
                    rule["count"] -= 1
                    return True
        return False

    def put(self, bucket: str, name: str, content: bytes) -> tuple:
        self.objects[bucket, name] = content, time.time()
        return self.describe(bucket, name)

    def describe(self, bucket: str, name: str) -> tuple:
        if (bucket, name) not in self.objects:
            return 404, b""
        content, created = self.objects[bucket, name]
        return 200, {
            "name": name,
            "size": str(len(content)),
            "generation": str(int(created * 1e9)),
            "updated": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(created)),
        }

    def list_page(self, bucket: str, prefix: str, delimiter: str, page_size: int) -> tuple:
        items, prefixes = set(), set()
        for place, name in self.objects:
            if place == bucket and name.startswith(prefix):
                head, separator, _ = name[len(prefix) :].partition(delimiter or "\0")
                prefixes.add(prefix + head + separator) if separator else items.add(name)
        return 200, {
            "items": [{"name": name} for name in sorted(items)[:page_size]],
            "prefixes": sorted(prefixes)[:page_size],
        }

    def download(self, bucket: str, name: str, byte_range: str) -> tuple:
        if (bucket, name) not in self.objects:
            return 404, b""
        content = self.objects[bucket, name][0]
        limits = re.fullmatch(r"bytes=(\d+)-(\d*)", byte_range)
        if limits is None:
            return 200, content
        part = content[int(limits[1]) : int(limits[2] or len(content)) + 1]
        return (206, part) if part else (416, b"")

    def answer(self, method: str, host: str, target: str, headers: dict, body: bytes) -> tuple:
        """Returns the status and the content of an answer, and its headers if it has any."""
        path, _, query = target.partition("?")
        options = dict(urllib.parse.parse_qsl(query))
        if host == _HOSTS[1]:
            bucket, _, name = urllib.parse.unquote(path.lstrip("/")).partition("/")
            return self.download(bucket, name, headers.get("range", ""))
        if match := _REWRITE.fullmatch(path):
            bucket, name, new_bucket, new_name = map(urllib.parse.unquote, match.groups())
            if (bucket, name) not in self.objects:
                return 404, b""
            content = self.objects[bucket, name][0]
            return 200, {"done": True, "resource": self.put(new_bucket, new_name, content)[1]}
        is_upload, bucket, name = _OBJECTS.fullmatch(path).groups()
        name = urllib.parse.unquote(name or options.get("name", ""))
        if is_upload and method == "POST" and options["uploadType"] == "resumable":
            return 200, b"", {"Location": f"https://{host}{path}?upload_id=1&name={name}"}
        if is_upload:
            content_range = headers.get("content-range", "")
            if content_range.startswith("bytes */") and content_range != "bytes */0":
                return 308, b""  # the client asks how much is stored: nothing
            if options.get("ifGenerationMatch") == "0" and (bucket, name) in self.objects:
                return 412, b""
            return self.put(bucket, name, body)
        if not name:
            size = int(options.get("maxResults", 1 << 30))
            prefix, delimiter = options.get("prefix", ""), options.get("delimiter", "")
            return self.list_page(bucket, prefix, delimiter, size)
        if method == "DELETE":
            status, _ = self.describe(bucket, name)
            if status == 200:
                del self.objects[bucket, name]
            return (204 if status == 200 else status), b""
        return self.describe(bucket, name)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_CONNECT(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.wfile = self.connection.makefile("wb", buffering=0)
            self.close_connection = False

    def _serve(self) -> None:
        body = self._body()
        server = self.server
        if not isinstance(self.connection, ssl.SSLSocket):
            self._reply(200, server.obey(json.loads(body)), {})
            return
        host = self.headers["host"]
        path = f"{host}{urllib.parse.unquote(self.path)}"
        headers = {name.lower(): value for name, value in self.headers.items()}
        with server.lock:
            server.num_in_flight += 1
        time.sleep(server.latency_seconds)
        with server.lock:
            if server.must_fail(self.command, path):
                status, content, *more = 503, b"try again"
            else:
                status, content, *more = server.answer(self.command, host, self.path, headers, body)
            entry = {"path": path, "in_flight": server.num_in_flight}
            server.log.append(entry | {"sent": len(content)})
            server.num_in_flight -= 1
        self._reply(status, content, more[0] if more else {})

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _body(self) -> bytes:
        """Reads the body; an upload comes in chunks, so its header of the length is ignored."""
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = bytearray()
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    def _reply(self, status: int, content: bytes | dict, headers: dict) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        head = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        with contextlib.suppress(OSError):
            self.wfile.write(("\r\n".join(head) + "\r\n\r\n").encode() + body)

    def log_message(self, *arguments: object) -> None:
        """Prints nothing; the server logs the requests."""


def main() -> None:
    server = _Server(*sys.argv[1:3])
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # ends when the process of the tests ends, even by a signal


if __name__ == "__main__":
    main()
