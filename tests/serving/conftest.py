"""One small model, and the servers of it."""

import pytest

from tests.serving.byte_model import write_version
from tests.serving.servers import SERVERS, TRANSPORTS, running_server


@pytest.fixture(scope="session")
def versions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("versions")
    write_version(folder, 1)
    return folder


@pytest.fixture(scope="session", params=SERVERS)
def server(request, versions):
    with running_server(request.param, versions) as address:
        yield address


@pytest.fixture(params=TRANSPORTS)
def transport(request, server):
    transport = server.transport(request.param)
    yield transport
    transport.close()
