"""What becomes of the folder of a run, and of its lock, while a writer is frozen."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import time

import tensorflow as tf

from txl_tf.storage.files import list_folder, path_exists, read_file, remove_folder, write_file

FORGED = {"host": "elsewhere", "pid": 1, "since": "long ago", "token": "0" * 32}


class _Changes:
    """Changes to a folder `run` and what was moved away or copied of it.

    Args:
        base: str. Folder that all of it is in.
        source: `random.Random`.
    """

    def __init__(self, base: str, source: random.Random) -> None:
        self._base = base
        self._random = source
        self._num_copies = 0


class LocalChanges(_Changes):
    """Changes to a folder on a disk."""

    def __init__(self, base: str, source: random.Random) -> None:
        super().__init__(base, source)
        # What a writer has open at this moment it shares with a copy made of links.
        self._has_links = False
        self.run = os.path.join(base, "run")
        self._victim = os.path.join(base, "victim.txt")
        write_file(self._victim, b"not to be written to\n")
        self.kinds = {
            "nothing": lambda: None,
            "delete the folder": self._delete,
            "rename the folder": self._rename,
            "copy the folder": self._copy,
            "copy the folder by links": self._copy_by_links,
            "put a copy in its place": self._put_copy,
            "put an older one in its place": self._put_older,
            "delete the lock": lambda: os.unlink(self._lock),
            "replace the lock": self._replace_lock,
            "write over the lock": self._write_lock,
            "make the lock a link": self._link_lock,
            "empty the folder": self._empty,
        }

    def change(self, kind: str) -> None:
        """Makes a change; one that cannot be made now is none."""
        with contextlib.suppress(FileNotFoundError):
            self.kinds[kind]()

    def clear_links(self) -> None:
        """Removes a lock that is a link, as its error says."""
        if os.path.islink(self._lock):
            os.unlink(self._lock)

    def victim_is_whole(self) -> bool:
        """Whether the file that the lock was made a link to is as it was."""
        return read_file(self._victim) == b"not to be written to\n"

    def states(self) -> dict[int, str]:
        """A hash of each folder, by its inode."""
        found = {}
        for name in os.listdir(self._base):
            path = os.path.join(self._base, name)
            if os.path.isdir(path):
                found[os.stat(path).st_ino] = digest_of(path, self._has_links)
        return found

    @property
    def _lock(self) -> str:
        return os.path.join(self.run, ".lock")

    def _aside(self) -> str:
        self._num_copies += 1
        return os.path.join(self._base, f"aside-{self._num_copies}")

    def _delete(self) -> None:
        shutil.rmtree(self.run)

    def _rename(self) -> None:
        os.rename(self.run, self._aside())

    def _copy(self) -> None:
        shutil.copytree(self.run, self._aside(), symlinks=True)

    def _copy_by_links(self) -> None:
        self._has_links = True
        shutil.copytree(self.run, self._aside(), symlinks=True, copy_function=os.link)

    def _put_copy(self) -> None:
        aside = self._aside()
        os.rename(self.run, aside)
        copy = self._random.choice([shutil.copy2, os.link])
        self._has_links = self._has_links or copy is os.link
        shutil.copytree(aside, self.run, symlinks=True, copy_function=copy)

    def _put_older(self) -> None:
        older = [name for name in os.listdir(self._base) if name.startswith("aside-")]
        if older:
            with contextlib.suppress(FileNotFoundError):
                self._rename()
            os.rename(os.path.join(self._base, self._random.choice(sorted(older))), self.run)

    def _replace_lock(self) -> None:
        os.unlink(self._lock)
        write_file(self._lock, json.dumps(FORGED).encode())

    def _write_lock(self) -> None:
        if not os.path.islink(self._lock):
            with open(self._lock, "r+b") as file:
                file.truncate()
                file.write(json.dumps(FORGED).encode())

    def _link_lock(self) -> None:
        os.unlink(self._lock)
        os.symlink(self._victim, self._lock)

    def _empty(self) -> None:
        for name in os.listdir(self.run):
            path = os.path.join(self.run, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


class StoreChanges(_Changes):
    """Changes to a folder of a store."""

    def __init__(self, base: str, source: random.Random) -> None:
        super().__init__(base, source)
        self.run = f"{base}/run"
        self.kinds = {
            "nothing": lambda: None,
            "wait until the lock is stale": lambda: time.sleep(0.3),
            "delete the folder": lambda: remove_folder(self.run),
            "rename the folder": self._rename,
            "copy the folder": self._copy,
            "put an older one in its place": self._put_older,
            "delete the lock": lambda: tf.io.gfile.remove(self._lock),
            "replace the lock": lambda: write_file(self._lock, json.dumps(FORGED).encode()),
            "spoil the lock": lambda: write_file(self._lock, b"{"),
        }

    def change(self, kind: str) -> None:
        """Makes a change; one that cannot be made now is none."""
        if path_exists(self.run):
            with contextlib.suppress(tf.errors.NotFoundError):
                self.kinds[kind]()

    def clear_links(self) -> None:
        """A store has none."""

    def victim_is_whole(self) -> bool:
        """A store has no links, and so no victim."""
        return True

    def states(self) -> dict[str, str]:
        """A hash of each folder, by its name; what is hidden, such as a lock, left out."""
        names = list_folder(self._base)
        return {name: _remote_digest(f"{self._base}/{name}") for name in names}

    @property
    def _lock(self) -> str:
        return f"{self.run}/.lock"

    def _aside(self) -> str:
        self._num_copies += 1
        return f"{self._base}/aside-{self._num_copies}"

    def _copy(self) -> None:
        _copy_remotely(self.run, self._aside())

    def _rename(self) -> None:
        self._copy()
        remove_folder(self.run)

    def _put_older(self) -> None:
        older = [name for name in list_folder(self._base) if name.startswith("aside-")]
        if older:
            remove_folder(self.run)
            _copy_remotely(f"{self._base}/{self._random.choice(older)}", self.run)


def digest_of(folder: str | os.PathLike[str], skips_open_files: bool = False) -> str:
    """A hash of all files of a local folder, with their names.

    Args:
        folder: path of the folder.
        skips_open_files: bool. Whether to leave out what a writer may have open.
    """
    digest = hashlib.sha256()
    for parent, folders, files in sorted(os.walk(folder)):
        for name in sorted(folders + files):
            path = os.path.join(parent, name)
            digest.update(os.path.relpath(path, folder).encode() + b"\0")
            if os.path.islink(path):
                digest.update(os.readlink(path).encode())
            elif os.path.isfile(path) and not (skips_open_files and _may_be_open(path, folder)):
                digest.update(read_file(path))
    return digest.hexdigest()


def _may_be_open(path: str, folder: str | os.PathLike[str]) -> bool:
    parts = os.path.relpath(path, folder).split("/")
    return any(part.startswith((".", "events.", "ledger.", "metrics.")) for part in parts)


def _remote_digest(folder: str) -> str:
    digest = hashlib.sha256()
    for parent, _, files in sorted(tf.io.gfile.walk(folder)):
        for name in sorted(files):
            path = os.path.join(parent, name)
            if not any(part.startswith(".") for part in path.removeprefix(folder).split("/")):
                digest.update(path.encode() + b"\0" + read_file(path))
    return digest.hexdigest()


def _copy_remotely(source: str, target: str) -> None:
    for parent, _, files in tf.io.gfile.walk(source):
        below = target + parent.removeprefix(source)
        tf.io.gfile.makedirs(below)
        for name in files:
            tf.io.gfile.copy(os.path.join(parent, name), os.path.join(below, name))
