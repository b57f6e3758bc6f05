"""Notices of the end of a machine: signals and the metadata server."""

import contextlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.distribution.two_workers import free_ports
from txl_tf.distribution.preemption import PreemptionWatcher

PATIENCE_SECONDS = 10.0


@pytest.fixture(autouse=True)
def handler():
    """The handler of before, which each test finds."""
    # A test runner that was started by `nohup` ignores it.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    return signal.getsignal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def no_metadata_server(monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{free_ports(1)[0]}")


class Notice:
    """A function to be called once, and the thread it was called in."""

    def __init__(self):
        self.threads = []
        self._event = threading.Event()

    def __call__(self):
        self.threads.append(threading.current_thread())
        self._event.set()

    def wait(self):
        assert self._event.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_calls_the_function_once_in_another_thread(number):
    notice = Notice()
    with PreemptionWatcher(notice) as watcher:
        assert watcher.requested is None
        os.kill(os.getpid(), number)
        notice.wait()
        assert watcher.requested == f"the process received {number.name}"
        for later in (number, signal.SIGTERM, signal.SIGHUP) * 3:
            os.kill(os.getpid(), later)
        time.sleep(0.05)
        assert watcher.requested == f"the process received {number.name}"
    # What comes while the process ends must not change its exit code.
    for later in (signal.SIGTERM, signal.SIGHUP):
        assert signal.getsignal(later) == signal.SIG_IGN
    assert len(notice.threads) == 1
    assert notice.threads[0] is not threading.main_thread()


def test_a_function_set_later_is_called_whether_the_notice_was_before_or_after():
    late, never = Notice(), Notice()
    with PreemptionWatcher(never) as watcher:
        watcher.call_on_notice(late)
        os.kill(os.getpid(), signal.SIGTERM)
        late.wait()
        later = Notice()
        watcher.call_on_notice(later)
        assert later.threads == [threading.main_thread()]
    assert len(late.threads) == 1
    assert never.threads == []


def test_the_handler_of_before_is_back_without_a_notice(handler):
    wakeup = signal.set_wakeup_fd(-1)
    with PreemptionWatcher():
        assert signal.getsignal(signal.SIGTERM) != handler
    assert signal.getsignal(signal.SIGTERM) == handler
    assert signal.set_wakeup_fd(wakeup) == -1


def test_signals_that_nohup_ignores_stay_ignored_and_ctrl_c_is_a_notice():
    # A shell starts background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    notice = Notice()
    with PreemptionWatcher(notice) as watcher:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.05)
        assert watcher.requested is None
        os.kill(os.getpid(), signal.SIGINT)
        notice.wait()
        assert watcher.requested == "the process received SIGINT"
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    # A second Ctrl-C ends the process after the block.
    assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("signals", "code", "said"),
    [
        ([signal.SIGTERM], 75, "the process received SIGTERM\n"),
        ([signal.SIGINT, signal.SIGINT], 130, ""),
    ],
)
def test_a_main_thread_that_is_blocked_in_c_delays_no_signal(signals, code, said):
    program = (
        "import ctypes, os, signal, sys\n"
        "from txl_tf.distribution.preemption import PreemptionWatcher\n"
        "assert 'tensorflow' not in sys.modules\n"
        "libc = ctypes.CDLL(None)\n"
        "def act():\n"
        "    if watcher.requested.endswith('SIGTERM'):\n"
        "        print(watcher.requested, flush=True)\n"
        "        os._exit(75)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with PreemptionWatcher(act) as watcher:\n"
        "    print('ready', flush=True)\n"
        # Unlike a sleep, a mutex is waited for again after a handler has run.
        "    lock = ctypes.create_string_buffer(64)\n"
        "    libc.pthread_mutex_init(lock, None)\n"
        "    libc.pthread_mutex_lock(lock)\n"
        "    libc.pthread_mutex_lock(lock)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    begin = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.05)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (code, said)
    assert time.monotonic() - begin < 1.0


class MetadataServer:
    """Answers as the metadata server does: at once, or when a value changes.

    The first requests get `failures`: a status, or None for a connection that is closed without
    an answer.
    """

    def __init__(self):
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.changed = threading.Condition()
        self.requests = []
        self.failures = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                # A watcher that was left does not wait for its answer.
                with contextlib.suppress(ConnectionError):
                    server.answer(self)

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler):
        self.requests.append((handler.path, handler.headers["Metadata-Flavor"]))
        if self.failures:
            status = self.failures.pop(0)
            if status is not None:
                handler.send_error(status)
            return
        path, _, query = handler.path.partition("?")
        key = path.removeprefix("/computeMetadata/v1/instance/")
        if query.endswith(f"last_etag={self.tag(key)}"):
            with self.changed:
                self.changed.wait(PATIENCE_SECONDS)
        body = self.values[key].encode()
        handler.send_response(200)
        handler.send_header("Metadata-Flavor", "Google")
        handler.send_header("ETag", self.tag(key))
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def tag(self, key):
        return f"tag-of-{self.values[key]}"

    def change(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def close(self):
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metadata(monkeypatch):
    """A running `MetadataServer`, to which the environment points."""
    server = MetadataServer()
    monkeypatch.setenv("GCE_METADATA_HOST", server.host)
    # Through a proxy the server cannot be reached.
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    yield server
    server.close()


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("key", "harmless", "value", "reason"),
    [
        ("preempted", "false", "TRUE", "the machine is being preempted"),
        (
            "maintenance-event",
            "MIGRATE_ON_HOST_MAINTENANCE",
            "TERMINATE_ON_HOST_MAINTENANCE",
            "the host goes into maintenance",
        ),
    ],
)
@pytest.mark.parametrize("failures", [(), (503, None)])
def test_the_metadata_server_tells_of_the_end(metadata, key, harmless, value, reason, failures):
    server, notice = metadata, Notice()
    server.failures += failures
    with PreemptionWatcher(notice) as watcher:
        wait_until(lambda: len(server.requests) >= 4 + len(failures))
        assert all(flavor == "Google" for _, flavor in server.requests)
        # The second time it is asked to wait for another value than the first.
        assert any(
            "last_etag=tag-of-" in path and "timeout_sec=60" in path for path, _ in server.requests
        )
        server.change(key, harmless)
        num_requests = len(server.requests)
        wait_until(lambda: len(server.requests) > num_requests)
        assert watcher.requested is None
        server.change(key, value)
        notice.wait()
        assert watcher.requested == reason
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)
        assert watcher.requested == reason
    assert len(notice.threads) == 1


def test_leaving_does_not_wait_for_an_answer(metadata):
    with PreemptionWatcher():
        wait_until(lambda: len(metadata.requests) >= 4)
        begin = time.monotonic()
    assert time.monotonic() - begin < 0.4


def test_without_a_server_nothing_is_printed(capfd):
    before = threading.active_count()
    with PreemptionWatcher() as watcher:
        # The threads of the metadata give up.
        wait_until(lambda: threading.active_count() <= before + 1)
        assert watcher.requested is None
    assert capfd.readouterr() == ("", "")
