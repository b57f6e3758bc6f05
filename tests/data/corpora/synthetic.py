"""Small archives laid out as the published ones, and corpora that expect them."""

import dataclasses
import hashlib
import io
import tarfile
import zipfile


def published(path, archive):
    """The description of an archive that was just written."""
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    return dataclasses.replace(archive, size_bytes=len(content), sha256=sha256)


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


def resized(member, content):
    """A member that expects another content."""
    return dataclasses.replace(
        member,
        size_bytes=len(content),
        max_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def like(corpus_class, **attributes):
    """A corpus that expects other files, and is otherwise as published."""
    return type(f"Small{corpus_class.__name__}", (corpus_class,), attributes)


def archive_of(corpus_class, path):
    """The class with the archive at `path` as what is published."""
    return like(corpus_class, archive=published(path, corpus_class.archive))


def texts_of(splits):
    """Documents of every split, each joined."""
    return {
        name: [b"".join(document) for document in documents] for name, documents in splits.items()
    }
