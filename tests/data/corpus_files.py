"""Small archives and folders laid out as the published ones, and corpora that expect them."""

import dataclasses
import hashlib
import io
import tarfile
import zipfile


def write_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_folder(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def resized(member, content):
    """A member that expects another content."""
    size, sha256 = len(content), hashlib.sha256(content).hexdigest()
    return dataclasses.replace(member, size_bytes=size, sha256=sha256)


def of_files(corpus, files):
    """The corpus with these files, by path in the archive, as its members."""
    members = (each for each in corpus.members if each.name in files)
    members = tuple(resized(member, files[member.name]) for member in members)
    return dataclasses.replace(corpus, members=members)


def of_archive(corpus, path):
    """The corpus with the archive at `path` as the published one."""
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    archive = dataclasses.replace(corpus.archive, size_bytes=len(content), sha256=sha256)
    return dataclasses.replace(corpus, archive=archive)


def texts_of(splits):
    """Documents of every split, each joined."""
    return {
        name: [b"".join(document) for document in documents] for name, documents in splits.items()
    }
