import io
import os
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.data.corpus_files import resized, write_tar, write_zip
from txl_tf.data.archives import CorpusMember, unpacked_files
from txl_tf.data.downloads import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError

GENERATOR = random.Random(10)
FILES = {f"root/data/{name}": GENERATOR.randbytes(20_000) for name in ("a", "b", "c")}
MEMBERS = [CorpusMember(name=name) for name in ("root/data/a", "root/data/c")]
WRITERS = {"zip": write_zip, "tgz": write_tar}


def read(path, members=MEMBERS, kind="tgz"):
    archive = PublishedFile(name=f"archive.{kind}", url="https://example.org/archive")
    found = zip(members, unpacked_files(str(path), archive, members), strict=True)
    return {member.name: Path(file).read_bytes() for member, file in found}


def files_below(folder):
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


@pytest.mark.parametrize("kind", WRITERS)
def test_only_the_files_asked_for_are_read_under_no_other_names(tmp_path, kind):
    names = ["other", "root/other", "data/a", "root/data/d", "root/data/b/../c"]
    path = WRITERS[kind](tmp_path / "folder.1", dict.fromkeys(names, b"other") | FILES)
    expected = {member.name: FILES[member.name] for member in MEMBERS}
    assert read(path, kind=kind) == expected
    unpacked = [f"folder.1.unpacked/{name}" for name in expected]
    assert files_below(tmp_path) == ["folder.1", *unpacked]
    assert read(path, kind=kind) == expected


@pytest.mark.parametrize("kind", WRITERS)
def test_a_missing_file_is_named(tmp_path, kind):
    path = WRITERS[kind](tmp_path / "a", FILES)
    with pytest.raises(DataDamagedError, match="other is missing") as caught:
        read(path, [MEMBERS[1], CorpusMember(name="other")], kind)
    assert str(path) in str(caught.value)
    assert os.listdir(tmp_path) == ["a"]


def test_more_than_a_file_of_a_tar_archive_can_be_is_refused(tmp_path):
    path = write_tar(tmp_path / "a", FILES | {"large": bytes(50_000_000)})
    with pytest.raises(DataDamagedError, match="must have 7 bytes, but has 50000000"):
        read(path, [MEMBERS[0], CorpusMember(name="large", size_bytes=7)])
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_damaged_archive_never_leaves_a_wrong_file(tmp_path, kind):
    """A tar archive has no checksum of what is in it; those of the members are checked."""
    path = WRITERS[kind](tmp_path / "a", FILES)
    content = path.read_bytes()
    members = [resized(member, FILES[member.name]) for member in MEMBERS]
    # The padding at the end of a tar archive may be missing.
    damages = [content[:length] for length in [*range(0, 60, 9), *range(60, 55_000, 4999)]]
    for _ in range(30):
        flipped = bytearray(content)
        flipped[GENERATOR.randrange(20, len(content) * 9 // 10)] ^= 1 << GENERATOR.randrange(8)
        damages.append(bytes(flipped))
    refused = 0
    for damage in damages:
        path.write_bytes(damage)
        try:
            assert read(path, members, kind)["root/data/a"] == FILES["root/data/a"]
            shutil.rmtree(tmp_path / "a.unpacked")
        except DataDamagedError:
            refused += 1
        assert os.listdir(tmp_path) == ["a"]
    # A third of the archive is a file that nobody asks for.
    assert refused > 30


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "b"),
        (tarfile.LNKTYPE, "root/data/b"),
        (tarfile.FIFOTYPE, ""),
        (tarfile.DIRTYPE, ""),
    ],
)
def test_links_and_devices_are_not_followed(tmp_path, kind, target):
    path = tmp_path / "a"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("root/data/b")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
        special = tarfile.TarInfo("root/data/a")
        special.type, special.linkname = kind, target
        archive.addfile(special)
    with pytest.raises(DataDamagedError, match="must be a file"):
        read(path)
    assert os.listdir(tmp_path) == ["a"]


def test_other_files_than_the_archive_are_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"text")
    with pytest.raises(DataDamagedError, match="The archive cannot be read"):
        read(tmp_path / "text")
    with pytest.raises(InputMissingError, match=r"the file root/data/a\."):
        read(tmp_path)
    with pytest.raises(InputMissingError, match="neither archive"):
        read(tmp_path / "absent")
