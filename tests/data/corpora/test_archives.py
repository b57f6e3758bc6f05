import random
import struct
import zipfile

import pytest

from tests.data.corpora.synthetic import write_zip
from txl_tf.data.corpora.archives import ZipFiles
from txl_tf.data.corpora.tar_unpacking import CorpusMember
from txl_tf.errors import DataDamagedError

TEXT = random.Random(8).randbytes(50_000).hex().encode()
MEMBER = CorpusMember(path="folder/text", max_bytes=len(TEXT))


def read(path, member=MEMBER):
    return b"".join(ZipFiles(str(path), [member]).blocks(member))


def test_files_are_read_from_the_archive(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"other": b"x", "folder/text": TEXT})
    assert read(path) == TEXT
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_archive_is_never_silent(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"folder/text": TEXT})
    good = path.read_bytes()
    generator = random.Random(9)
    refused = 0
    for _ in range(60):
        bad = bytearray(good)
        bad[generator.randrange(len(bad))] ^= 1 << generator.randrange(8)
        path.write_bytes(bad)
        try:
            assert read(path) == TEXT
        except DataDamagedError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 50
    for length in range(0, len(good), 4999):
        path.write_bytes(good[:length])
        with pytest.raises(DataDamagedError):
            read(path)


def test_more_than_a_file_can_be_is_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"folder/text": bytes(50_000_000)})
    assert path.stat().st_size < 100_000
    with pytest.raises(DataDamagedError, match="must have at most 100000 bytes, but has 50000000"):
        read(path)


def test_a_size_that_is_a_lie_is_refused(tmp_path):
    """More data than declared; only what was declared is ever decompressed."""
    path = write_zip(tmp_path / "a.zip", {"folder/text": bytes(50_000_000)})
    content = path.read_bytes()
    assert content.count(struct.pack("<I", 50_000_000)) == 2
    path.write_bytes(content.replace(struct.pack("<I", 50_000_000), struct.pack("<I", 1000)))
    with pytest.raises(DataDamagedError, match="cannot be read"):
        read(path)


def test_a_missing_file_and_a_wrong_size_are_named(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"folder/text": TEXT})
    with pytest.raises(DataDamagedError, match="has no other"):
        read(path, CorpusMember(path="other", max_bytes=10))
    with pytest.raises(DataDamagedError, match="must have 7 bytes"):
        read(path, CorpusMember(path="folder/text", max_bytes=len(TEXT), size_bytes=7))


def test_an_encrypted_archive_is_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"folder/text": TEXT})
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[start + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(DataDamagedError, match="encrypted"):
        read(path)
