import contextlib
import email.utils
import http.server
import threading
import time

import pytest

from pipelines.diagnosis.machine_facts import check_metadata
from tests.pipelines.diagnosis.made_up_machine import good_machine


@contextlib.contextmanager
def metadata_server(status=200, flavor="Google", clock_ahead_seconds=0.0):
    """A server on this machine; yields its address and the requests' flavors."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Metadata-Flavor"])
            self.send_response_only(status)
            self.send_header("Metadata-Flavor", flavor)
            self.send_header(
                "Date", email.utils.formatdate(time.time() + clock_ahead_seconds, usegmt=True)
            )
            self.end_headers()
            self.wfile.write(b"1")

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("behaviour", "status", "word"),
    [
        ({}, "ok", "answers"),
        ({"status": 403}, "warning", "403"),
        ({"flavor": "Other"}, "warning", "is none"),
        ({"clock_ahead_seconds": 3600}, "warning", "clock"),
    ],
)
def test_the_server_that_the_environment_names_is_asked(behaviour, status, word, tmp_path):
    with metadata_server(**behaviour) as (address, asked):
        facts = good_machine(tmp_path, environment={"GCE_METADATA_HOST": address})
        finding = check_metadata(facts)

    assert finding.status == status
    assert word in finding.what
    assert asked == ["Google"]


def test_no_answer_is_a_warning_on_google_cloud_and_nothing_elsewhere(tmp_path):
    with metadata_server() as (address, _):
        pass  # now nobody listens there
    facts = good_machine(tmp_path, environment={"GCE_METADATA_HOST": address})

    finding = check_metadata(facts)

    assert finding.status == "warning"
    assert address in finding.remedy
    assert check_metadata(good_machine(tmp_path)) is None
