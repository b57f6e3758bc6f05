import hashlib

import pytest

from txl_tf.data.partial_download import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError

URL = "https://example.org/corpus.zip"


def test_size_and_checksum_are_checked_as_far_as_they_are_known(tmp_path):
    path = tmp_path / "corpus.zip"
    path.write_bytes(b"text")
    right = hashlib.sha256(b"text").hexdigest()
    file = PublishedFile(name="corpus.zip", urls=(URL,))
    file.check(str(path))
    PublishedFile(name="corpus.zip", urls=(URL,), size_bytes=4, sha256=right).check(str(path))
    for values, message in (
        ({"size_bytes": 5}, "must have 5 bytes, but has 4"),
        ({"sha256": "0" * 64}, f"but has {right}"),
    ):
        with pytest.raises(DataDamagedError, match=message) as caught:
            PublishedFile(name="corpus.zip", urls=(URL,), **values).check(str(path))
        assert str(path) in str(caught.value)
    with pytest.raises(InputMissingError, match=r"no corpus\.zip"):
        file.check(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "values",
    [
        {"name": "../corpus.zip"},
        {"name": ""},
        {"name": ".."},
        {"urls": ("file:///etc/passwd",)},
        {"sha256": "abc"},
    ],
)
def test_what_is_no_published_file_is_refused(values):
    with pytest.raises(ValueError, match="Received: "):
        PublishedFile(**{"name": "corpus.zip", "urls": (URL,)} | values)
