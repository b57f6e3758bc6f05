"""Checks the metadata server of Google Cloud."""

import email.utils
import http.client
import time

from pipelines.diagnosis.finding import Finding
from pipelines.diagnosis.machine_facts import MachineFacts

_HOST_VARIABLE = "GCE_METADATA_HOST"
_HOST = "169.254.169.254"
_HEADERS = {"Metadata-Flavor": "Google"}
_TIMEOUT_SECONDS = 3.0
# Access tokens are refused by a clock that is further off than some minutes.
_LARGEST_SKEW_SECONDS = 60.0


def check_metadata(facts: MachineFacts) -> Finding | None:
    """Asks the metadata server, which gives access to `gs://` and tells of preemption.

    Args:
        facts: `MachineFacts`; `GCE_METADATA_HOST` of its environment names
            another server.

    Returns:
        The `Finding`; `None` on a machine that is not of Google Cloud.
    """
    named = facts.environment.get(_HOST_VARIABLE)
    if named is None and not facts.is_google_machine:
        return None
    host = named or _HOST
    check = "metadata server"
    remedy = f"curl -H 'Metadata-Flavor: Google' http://{host}/computeMetadata/v1/instance/id"
    try:
        status, flavor, date = _ask(host)
    except (OSError, http.client.HTTPException) as error:
        what = f"{host} does not answer ({type(error).__name__}): no access to gs://, and no word"
        return Finding.warning(check, f"{what} of preemption", remedy)
    if status != 200 or flavor != "Google":
        return Finding.warning(check, f"{host} answers, but is none: status {status}", remedy)
    skew_seconds = _skew_seconds(date)
    if abs(skew_seconds) > _LARGEST_SKEW_SECONDS:
        what = f"this machine's clock is off by {skew_seconds:.0f} s; gs:// may refuse it"
        return Finding.warning("clock", what, "sudo chronyc makestep")
    return Finding.ok(check, f"{host} answers, and the clocks agree")


def _ask(host: str) -> tuple[int, str | None, str | None]:
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/computeMetadata/v1/instance/id", headers=_HEADERS)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["Metadata-Flavor"], response.headers["Date"]
    finally:
        connection.close()


def _skew_seconds(date: str | None) -> float:
    if date is None:
        return 0.0
    try:
        return time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
