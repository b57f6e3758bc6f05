"""Archives of published corpora: only their members are read, whole and under no other names."""

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from tests.data.corpus_files import resized, write_tar, write_zip
from txl_tf.data.sources.archives import CorpusMember, unpacked_files
from txl_tf.data.sources.downloads import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError

GENERATOR = random.Random(10)
FILES = {f"root/data/{name}": GENERATOR.randbytes(20_000) for name in ("a", "b", "c")}
MEMBERS = [CorpusMember(name=name) for name in ("root/data/a", "root/data/c")]
WRITERS = {"zip": write_zip, "tgz": write_tar}


def read(path, members=MEMBERS, kind="tgz"):
    archive = PublishedFile(name=f"archive.{kind}", url="https://example.org/archive")
    result = zip(members, unpacked_files(str(path), archive, members), strict=True)
    return {member.name: Path(file).read_bytes() for member, file in result}


def files_below(folder):
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


@pytest.mark.parametrize("kind", WRITERS)
def test_only_the_files_asked_for_are_read_under_no_other_names(tmp_path, kind):
    names = ["../outside", "/tmp/absolute", "root/data/../../../outside", "root/data/a/../c"]
    path = WRITERS[kind](tmp_path / "folder.1", dict.fromkeys(names, b"evil") | FILES)
    expected = {member.name: FILES[member.name] for member in MEMBERS}
    assert read(path, kind=kind) == expected
    unpacked = [f"folder.1.unpacked/{name}" for name in expected]
    assert files_below(tmp_path) == ["folder.1", *unpacked]
    assert read(path, kind=kind) == expected


@pytest.mark.parametrize("kind", WRITERS)
def test_a_missing_file_is_named(tmp_path, kind):
    path = WRITERS[kind](tmp_path / "a", FILES)
    with pytest.raises(DataDamagedError, match=f"must have the file other.*\n{path}"):
        read(path, [MEMBERS[1], CorpusMember(name="other")], kind)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_damaged_archive_never_leaves_a_wrong_file(tmp_path, kind):
    """A tar archive has no checksum of its contents, but the members have."""
    path = WRITERS[kind](tmp_path / "a", FILES)
    content = path.read_bytes()
    members = [resized(member, FILES[member.name]) for member in MEMBERS]
    for place in (10_000, 50_000):
        flipped = bytearray(content)
        flipped[place] ^= 1
        for damage in (bytes(flipped), content[:place]):
            path.write_bytes(damage)
            with pytest.raises(DataDamagedError):
                read(path, members, kind)
            assert os.listdir(tmp_path) == ["a"]


def test_a_link_is_not_followed(tmp_path):
    path = tmp_path / "a"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("root/data/b")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("root/data/a")
        link.type, link.linkname = tarfile.SYMTYPE, "b"
        archive.addfile(link)
    with pytest.raises(DataDamagedError, match="must have the file root/data/a"):
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
