"""Documents read whole, for comparison."""

import pytest


@pytest.fixture
def read_documents():
    """Joins the pieces of every document, in order."""

    def read(documents):
        return [
            document if isinstance(document, bytes) else b"".join(document)
            for document in documents
        ]

    return read
