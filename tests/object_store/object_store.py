"""Starts the test store, and speaks to it as a test does."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class ObjectStore:
    """A store that runs, and the environment in which TensorFlow's client finds it."""

    def __init__(self, port: int, authority: str) -> None:
        self._port = port
        self.environment = {
            "https_proxy": f"http://127.0.0.1:{port}",
            "CURL_CA_BUNDLE": authority,
            # There is no metadata server to ask for a token, and this asks nobody.
            "NO_GCE_CHECK": "1",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            # Retries at once; otherwise each waits up to a second by chance.
            "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "0",
        }

    def control(self, **order: object) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("POST", "/control", json.dumps(order))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def set_faults(self, *rules: dict[str, object], seed: int = 0) -> None:
        self.control(rules=rules, seed=seed)

    def requests(self, *, clear: bool = False) -> list[dict]:
        return self.control(clear=clear)["log"]

    def num_faults(self) -> int:
        return sum(self.control()["injected"].values())

    def names(self, prefix: str = "", bucket: str = "bucket") -> list[str]:
        names = self.control(bucket=bucket)["names"]
        return [name for name in names if name.startswith(prefix)]

    def put_folder(self, folder: Path, prefix: str, bucket: str = "bucket") -> None:
        """Takes over the files of a folder."""
        self.control(put_folder=[bucket, prefix, str(folder)])

    def put_many(self, names: list[str], bucket: str) -> None:
        """Makes empty objects."""
        self.control(put_many=[bucket, names])

    def put(self, name: str, content: bytes, bucket: str = "bucket") -> None:
        self.control(put=[bucket, name], content=content.hex())

    def reset(self) -> None:
        self.control(rules=[], latency_seconds=0.0, lag_seconds=0.0, clear=True)


@contextlib.contextmanager
def running_store(folder: Path) -> Iterator[ObjectStore]:
    """A store in a process of its own, with a throw-away authority in a folder."""
    certificate, key = _make_certificate(folder)
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.object_store.store_server", certificate, key],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
    )
    with process:
        try:
            yield ObjectStore(int(process.stdout.readline()), certificate)
        finally:
            process.kill()


def _make_certificate(folder: Path) -> tuple[str, str]:
    certificate, key = str(folder / "authority.pem"), str(folder / "key.pem")
    names = ",".join(f"DNS:{host}" for host in _HOSTS)
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    words += f" -subj /CN={_HOSTS[0]} -addext subjectAltName={names}"
    subprocess.run(
        [*words.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    return certificate, key
