"""Text of any shape is read in little memory."""

import subprocess
import sys

import pytest

LIMIT_BYTES = 300 << 20
PROGRAM = """
import resource, sys
from txl_tf.data.documents import FileDocuments
from txl_tf.data.documents import LineDocuments
from txl_tf.data.documents import SeparatedDocuments
from txl_tf.data.splits import split_by_fraction
paths = [sys.argv[1]]
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for documents in (
    SeparatedDocuments(paths, b""),
    LineDocuments(paths),
    split_by_fraction(FileDocuments(paths, check_utf8=True))["test"],
):
    print(sum(len(piece) for document in documents for piece in document))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) * 1024)
"""


def test_a_line_of_a_hundred_megabytes_needs_little_memory(tmp_path):
    path = tmp_path / "line"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write("€".encode() * 333_334)
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True
    )
    *sizes, memory_bytes = map(int, finished.stdout.split())
    whole = path.stat().st_size
    assert sizes == [whole, whole, pytest.approx(whole * 0.05, rel=0.2)]
    # A tenth of what is promised: the rest is for all else that preparation does.
    assert memory_bytes < LIMIT_BYTES / 10
