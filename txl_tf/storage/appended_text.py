"""Text that grows: a file on a local disk, or in a store a folder of parts."""

import concurrent.futures
import os
import re
from collections.abc import Iterator

from txl_tf.storage.files import flush_to_disk, path_exists, read_file
from txl_tf.storage.writable_folder import WritableFolder

_PART = re.compile(r"part-(\d{10})\.txt")
_NUM_READERS = 16


class LocalText:
    """Text in a file on a local disk, which one process appends to.

    Lines reach the operating system before `append` returns, so they survive the process.
    """

    def __init__(self, folder: WritableFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._path = os.path.join(folder.path, name)

    def lines(self) -> Iterator[bytes] | None:
        """Returns the lines with their ends; `None` if there is no text."""
        if not path_exists(self._path):
            return None
        return iter(read_file(self._path).splitlines(keepends=True))

    def begin(self, header: str) -> None:
        """Replaces the whole text by a header."""
        self._folder.write(self._name, header.encode())

    def cut(self, num_bytes: int) -> None:
        """Keeps only the first `num_bytes`; call `lines` first."""
        self._folder.check()
        os.truncate(self._path, num_bytes)
        self.flush()

    def append(self, text: str, number: int) -> None:
        """Appends text; `number` grows from part to part, and names a part that begins here."""
        self._folder.check()
        with open(self._path, "ab") as file:
            file.write(text.encode())

    def flush(self) -> None:
        """Makes the appended text survive the machine."""
        flush_to_disk(self._path)


class StoredText:
    """Text in a store, where objects cannot be appended to: a folder of parts.

    `append` rewrites the last part until `flush` begins the next. Other methods as `LocalText`.
    """

    def __init__(self, folder: WritableFolder) -> None:
        self._folder = folder
        self._part = ""
        self._text = ""
        self._sizes: dict[str, int] = {}

    def lines(self) -> Iterator[bytes] | None:
        names = [name for name in self._folder.names() if _PART.fullmatch(name)]
        with concurrent.futures.ThreadPoolExecutor(_NUM_READERS) as executor:
            contents = [*executor.map(self._content, names)]
        self._sizes = {name: len(content) for name, content in zip(names, contents, strict=True)}
        return iter(b"".join(contents).splitlines(keepends=True)) if contents else None

    def begin(self, header: str) -> None:
        self.cut(0)
        self.append(header, 0)

    def cut(self, num_bytes: int) -> None:
        self._folder.remove_temporaries()
        end = sum(self._sizes.values())
        # Last part first, so that a kill leaves a text that is cut less.
        for name, size in reversed(self._sizes.items()):
            begin = end - size
            if num_bytes <= begin:
                self._folder.remove_file(name)
            elif num_bytes < end:
                self._folder.write(name, self._content(name)[: num_bytes - begin])
            end = begin
        self.flush()

    def append(self, text: str, number: int) -> None:
        self._part = self._part or f"part-{number:010d}.txt"
        self._text += text
        self._folder.write(self._part, self._text.encode())

    def flush(self) -> None:
        """Begins a new part, because every object is durable once written."""
        self._part = self._text = ""

    def _content(self, name: str) -> bytes:
        return read_file(os.path.join(self._folder.path, name))


def appended_text(path: str, folder: WritableFolder | None) -> LocalText | StoredText:
    """Returns the text in a local file or in a store's folder."""
    parent, name = os.path.split(path)
    folder = folder or WritableFolder(parent or ".")
    return StoredText(folder.subfolder(name)) if folder.is_remote else LocalText(folder, name)
