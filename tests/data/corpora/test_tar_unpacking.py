"""Members of tar archives, read and unpacked within limits."""

import io
import os
import random
import tarfile

import pytest

from tests.data.corpora.synthetic import resized, write_tar
from txl_tf.data.corpora.tar_unpacking import CorpusMember, byte_range, unpack_tar
from txl_tf.errors import DataDamagedError, StorageError

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
        (tarfile.SYMTYPE, "../../../secret"),
        (tarfile.LNKTYPE, "root/data/b"),
        (tarfile.FIFOTYPE, ""),
        (tarfile.CHRTYPE, ""),
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


def test_more_than_a_file_can_be_is_refused(tmp_path):
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


TEXT = bytes(range(200))


@pytest.mark.parametrize("size", [1, 7, 64, 500])
def test_ranges_do_not_depend_on_the_blocks(size):
    blocks = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    for start, stop in ((0, 200), (0, 1), (3, 150), (199, 200), (64, 128)):
        assert b"".join(byte_range(blocks, start, stop, where="text")) == TEXT[start:stop]


def test_nothing_is_read_beyond_the_end():
    def blocks():
        yield TEXT
        raise AssertionError

    assert b"".join(byte_range(blocks(), 10, 200, where="text")) == TEXT[10:]


def test_a_stream_that_is_too_short_is_named():
    with pytest.raises(DataDamagedError, match="must have 201 bytes, but has 200") as caught:
        list(byte_range([TEXT], 10, 201, where="text8"))
    assert "text8" in str(caught.value)
