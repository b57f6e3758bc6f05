"""Archives made to harm: what they take is bounded, and where they write is ours to say."""

import gzip
import io
import lzma
import os
import struct
import tarfile
import tracemalloc
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from txl_tf.data.corpora.archives import CorpusMember, ZipFiles, open_corpus_files, unpack_tar
from txl_tf.data.partial_download import PublishedFile
from txl_tf.errors import DataDamagedError, JobError

MEMBER = CorpusMember(path="data/text", max_bytes=1000)
ARCHIVE = PublishedFile(name="archive", urls=())
MEBIBYTE = 1 << 20


def header(name, size, kind=tarfile.REGTYPE, **fields):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(content):
    return content + bytes(-len(content) % tarfile.BLOCKSIZE)


TEXT = padded(b"text")
GOOD = header("data/text", 4) + TEXT


def write_gzip(path, *parts):
    """Parts are bytes, or a byte and how many mebibytes of it."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in parts:
            if isinstance(part, bytes):
                file.write(part)
                continue
            byte, count = part
            for _ in range(count):
                file.write(byte * MEBIBYTE)
    return str(path)


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK]
)
def test_a_name_of_gigabytes_is_not_taken_into_memory(tmp_path, kind):
    claimed = header("././@LongLink", 60 * MEBIBYTE, kind)
    path = write_gzip(tmp_path / "a.tgz", claimed, (b"a", 60), GOOD)
    tracemalloc.start()
    try:
        with pytest.raises(DataDamagedError, match="unpacks to far more than its files need"):
            unpack_tar(path, [MEMBER], str(tmp_path / "unpacked"))
        assert tracemalloc.get_traced_memory()[1] < 24 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_a_file_that_is_skipped_is_not_unpacked_for_ever(tmp_path):
    path = write_gzip(tmp_path / "a.tgz", header("bomb", 200 * MEBIBYTE), (b"\0", 200), GOOD)
    assert os.path.getsize(path) < MEBIBYTE
    with pytest.raises(DataDamagedError, match="unpacks to far more than its files need"):
        unpack_tar(path, [MEMBER], str(tmp_path / "unpacked"))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (tarfile.SYMTYPE, {"linkname": "/etc/passwd"}),
        (tarfile.LNKTYPE, {"linkname": "../../etc/passwd"}),
        (tarfile.CHRTYPE, {"devmajor": 1, "devminor": 5}),
        (tarfile.FIFOTYPE, {}),
        (tarfile.DIRTYPE, {}),
    ],
)
def test_links_devices_and_folders_are_no_files(tmp_path, kind, fields):
    path = write_gzip(tmp_path / "a.tgz", header("data/text", 0, kind, **fields), GOOD)
    with pytest.raises(DataDamagedError, match="is no file, but a link or something else"):
        unpack_tar(path, [MEMBER], str(tmp_path / "unpacked"))
    assert not (tmp_path / "unpacked" / "data").exists()


@pytest.mark.parametrize("name", ["/data/text", "../data/text", "data/../data/text", "data//text"])
def test_other_names_are_no_paths(tmp_path, name):
    path = write_gzip(tmp_path / "a.tgz", header(name, 4) + padded(b"evil"), GOOD)
    unpack_tar(path, [MEMBER], str(tmp_path / "unpacked"))
    assert (tmp_path / "unpacked" / "data" / "text").read_bytes() == b"text"
    found = [name for _, _, names in os.walk(tmp_path) for name in names]
    assert sorted(found) == ["a.tgz", "text"]


def test_files_with_holes_are_refused(tmp_path):
    sparse = bytearray(header("data/text", 0, tarfile.GNUTYPE_SPARSE))
    sparse[483:495] = b"00000001000\0"  # the size with its holes
    sparse[148:156] = b"%06o\0 " % (256 + sum(sparse[:148]) + sum(sparse[156:]))
    path = write_gzip(tmp_path / "a.tgz", bytes(sparse), GOOD)
    with pytest.raises(DataDamagedError, match="holes"):
        unpack_tar(path, [MEMBER], str(tmp_path / "unpacked"))


def test_nothing_is_written_through_a_link(tmp_path):
    path = write_gzip(tmp_path / "a.tgz", GOOD)
    target = tmp_path / "mine"
    target.write_bytes(b"kept")
    folder = tmp_path / "unpacked" / "data"
    folder.mkdir(parents=True)
    (folder / f"text.{os.getpid()}.partial").symlink_to(target)
    unpack_tar(path, [MEMBER], str(tmp_path / "unpacked"))
    assert target.read_bytes() == b"kept"
    assert (folder / "text").read_bytes() == b"text"


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_zip_methods_that_choose_their_own_memory_are_refused(tmp_path, method):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("data/text", b"text")
    with pytest.raises(DataDamagedError, match="neither stored nor deflated"):
        ZipFiles(str(path), [MEMBER])


def test_a_zip_file_with_more_than_it_says_gives_no_more(tmp_path):
    contents = io.BytesIO()
    with zipfile.ZipFile(contents, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/text", bytes(64 * MEBIBYTE))
    content = bytearray(contents.getvalue())
    for place in (content.rfind(b"PK\x01\x02") + 24, 22):
        content[place : place + 4] = struct.pack("<I", 1000)
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(DataDamagedError):
        assert len(b"".join(ZipFiles(str(path), [MEMBER]).blocks(MEMBER))) <= 1000


def archives():
    """A small archive of every kind."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/text", b"text" * 20)
    tar = GOOD + bytes(1024)
    return {
        "zip": zipped.getvalue(),
        "tar": tar,
        "tgz": gzip.compress(tar, mtime=0),
        "txz": lzma.compress(tar),
    }


@pytest.mark.parametrize("kind", archives())
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    changes=st.lists(
        st.tuples(st.integers(-200, 200), st.integers(0, 255)), min_size=1, max_size=4
    ),
    length=st.none() | st.integers(0, 2000),
)
def test_any_damage_ends_in_the_text_or_in_three_lines(tmp_path, kind, changes, length):
    content = bytearray(archives()[kind])
    for place, byte in changes:
        content[place % len(content)] = byte
    path = tmp_path / "archive"
    path.write_bytes(content[:length])
    try:
        files = open_corpus_files(str(path), ARCHIVE, [MEMBER], str(tmp_path / "unpacked"))
        found = b"".join(files.blocks(MEMBER))
    except JobError as error:
        assert error.exit_code in (65, 66)
        assert len(str(error).splitlines()) <= 3
    else:
        assert len(found) <= MEMBER.max_bytes
    finally:
        if (tmp_path / "unpacked" / "data" / "text").exists():
            os.remove(tmp_path / "unpacked" / "data" / "text")
