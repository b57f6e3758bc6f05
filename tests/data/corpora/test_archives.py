import gzip
import io
import lzma
import os
import random
import tarfile
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.corpora.synthetic import resized, write_tar, write_zip
from txl_tf.data.corpora.archives import CorpusMember, ZipFiles, open_corpus_files, unpack_tar
from txl_tf.data.partial_download import PublishedFile
from txl_tf.errors import DataDamagedError, JobError, StorageError

TEXT = random.Random(8).randbytes(50_000).hex().encode()
MEMBER = CorpusMember(path="folder/text", max_bytes=len(TEXT))
ARCHIVE = PublishedFile(name="archive", urls=())


def read(path, member=MEMBER):
    return b"".join(ZipFiles(str(path), [member]).blocks(member))


def test_files_are_read_from_the_archive(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"other": b"x", "folder/text": TEXT})
    assert read(path) == TEXT
    assert list(tmp_path.iterdir()) == [path]


def test_more_than_a_file_can_be_is_refused(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"folder/text": bytes(50_000_000)})
    assert path.stat().st_size < 100_000
    with pytest.raises(DataDamagedError, match="must have at most 100000 bytes, but has 50000000"):
        read(path)


def test_a_missing_file_and_a_wrong_size_are_named(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"folder/text": TEXT})
    with pytest.raises(DataDamagedError, match="has no other"):
        read(path, CorpusMember(path="other", max_bytes=10))
    with pytest.raises(DataDamagedError, match="must have 7 bytes"):
        read(path, CorpusMember(path="folder/text", max_bytes=len(TEXT), size_bytes=7))


GENERATOR = random.Random(10)
FILES = {f"root/data/{name}": GENERATOR.randbytes(20_000) for name in ("a", "b", "c")}
MEMBERS = [CorpusMember(path=name, max_bytes=20_000) for name in ("root/data/a", "root/data/c")]


def files_below(folder):
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


def test_only_the_files_asked_for_are_unpacked_and_only_once(tmp_path):
    path = write_tar(tmp_path / "a.tgz", FILES)
    folder = tmp_path / "unpacked"
    unpack_tar(str(path), MEMBERS, str(folder))
    assert files_below(folder) == ["root/data/a", "root/data/c"]
    assert (folder / "root/data/c").read_bytes() == FILES["root/data/c"]
    path.write_bytes(b"")
    unpack_tar(str(path), MEMBERS, str(folder))
    os.remove(folder / "root/data/a")
    with pytest.raises(DataDamagedError):
        unpack_tar(str(path), MEMBERS, str(folder))


def test_what_is_left_of_an_interrupted_unpacking_is_completed(tmp_path):
    path = write_tar(tmp_path / "a.tgz", FILES)
    folder = tmp_path / "unpacked"
    unpack_tar(str(path), MEMBERS[:1], str(folder))
    unpack_tar(str(path), MEMBERS, str(folder))
    assert files_below(folder) == ["root/data/a", "root/data/c"]


def test_a_cut_archive_leaves_only_whole_files(tmp_path):
    path = write_tar(tmp_path / "a.tgz", FILES)
    content = path.read_bytes()
    # The padding at the end of a tar archive may be missing.
    for length in [*range(0, 60, 3), *range(60, len(content) - 2_000, 4999)]:
        folder = tmp_path / str(length)
        path.write_bytes(content[:length])
        with pytest.raises(DataDamagedError):
            unpack_tar(str(path), MEMBERS, str(folder))
        for name in files_below(folder):
            assert (folder / name).read_bytes() == FILES[name]


def test_a_flipped_bit_never_makes_a_wrong_file(tmp_path):
    """A tar archive has no checksum of what is in it; those of the members are checked."""
    path = write_tar(tmp_path / "a.tgz", FILES)
    content = path.read_bytes()
    members = [resized(member, FILES[member.path]) for member in MEMBERS]
    refused = 0
    for number in range(30):
        bad = bytearray(content)
        bad[GENERATOR.randrange(20, len(bad) * 9 // 10)] ^= 1 << GENERATOR.randrange(8)
        path.write_bytes(bad)
        folder = tmp_path / str(number)
        try:
            unpack_tar(str(path), members, str(folder))
        except DataDamagedError:
            refused += 1
        for name in files_below(folder):
            assert (folder / name).read_bytes() == FILES[name]
    # A third of the archive is a file that nobody asks for.
    assert refused > 12


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "root/data/b"),
        (tarfile.FIFOTYPE, ""),
        (tarfile.DIRTYPE, ""),
    ],
)
def test_links_and_devices_are_not_followed(tmp_path, kind, target):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("root/data/b")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
        archive.addfile(special("root/data/a", kind, target))
    with pytest.raises(DataDamagedError, match="is no file"):
        unpack_tar(str(path), MEMBERS, str(tmp_path / "unpacked"))
    assert files_below(tmp_path / "unpacked") == []


def test_names_that_lead_elsewhere_are_never_used(tmp_path):
    names = ["../outside", "/tmp/absolute", "root/data/../../../outside", "root/data/a/../c"]
    path = write_tar(tmp_path / "a.tgz", dict.fromkeys(names, b"evil") | FILES)
    folder = tmp_path / "folder" / "unpacked"
    unpack_tar(str(path), MEMBERS, str(folder))
    assert files_below(tmp_path) == [
        "a.tgz",
        "folder/unpacked/root/data/a",
        "folder/unpacked/root/data/c",
    ]
    assert (folder / "root/data/c").read_bytes() == FILES["root/data/c"]


def test_more_than_a_file_of_a_tar_archive_can_be_is_refused(tmp_path):
    path = write_tar(tmp_path / "a.tgz", FILES | {"root/data/a": bytes(20_000_000)})
    assert path.stat().st_size < 200_000
    with pytest.raises(DataDamagedError, match="must have at most 20000 bytes, but has 20000000"):
        unpack_tar(str(path), MEMBERS, str(tmp_path / "unpacked"))


def test_what_is_missing_is_named(tmp_path):
    path = write_tar(tmp_path / "a.tgz", {"./root/data/a": b"text"})
    with pytest.raises(DataDamagedError, match="has no root/data/c") as caught:
        unpack_tar(str(path), MEMBERS, str(tmp_path / "unpacked"))
    assert str(path) in str(caught.value)


def test_an_unpacking_that_cannot_be_written_is_an_error_of_storage(tmp_path):
    path = write_tar(tmp_path / "a.tgz", FILES)
    (tmp_path / "unpacked").write_text("in the way")
    with pytest.raises(StorageError, match="Unpacking failed"):
        unpack_tar(str(path), MEMBERS, str(tmp_path / "unpacked"))


def archives():
    """A small archive of every kind."""
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("folder/text", b"text" * 20)
    with tarfile.open(fileobj=tarred, mode="w") as archive:
        info = tarfile.TarInfo("folder/text")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"text"))
    tar = tarred.getvalue()
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
        if (tmp_path / "unpacked" / "folder" / "text").exists():
            os.remove(tmp_path / "unpacked" / "folder" / "text")
