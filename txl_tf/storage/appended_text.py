"""Text that one process appends to: a file on a local disk, or a folder of parts in a store.

A writer reads `lines` first and `cut`s what it does not trust, or replaces everything with `begin`.
Then it calls `append` and `flush` in turn.
"""

import concurrent.futures
import os
import re
from collections.abc import Iterator

from txl_tf.storage.files import flush_to_disk, path_exists, read_file
from txl_tf.storage.writable_folder import WritableFolder

_PART = re.compile(r"part-(\d{10})\.txt")
_NUM_READERS = 16


class LocalText:
    """Text in a file on a local disk.

    The operating system has the text when `append` returns, so the text survives a kill of this
    process. Only `flush` makes it survive a power cut.
    """

    def __init__(self, folder: WritableFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._path = os.path.join(folder.path, name)

    def lines(self) -> Iterator[bytes] | None:
        """Returns the lines with their line ends; `None` if there is no text."""
        if not path_exists(self._path):
            return None
        return iter(read_file(self._path).splitlines(keepends=True))

    def begin(self, header: str) -> None:
        """Replaces the whole text by a header."""
        self._folder.write(self._name, header.encode())

    def cut(self, num_bytes: int) -> None:
        """Keeps only the first `num_bytes` of the text that `lines` has read."""
        self._folder.check()
        os.truncate(self._path, num_bytes)
        self.flush()

    def append(self, text: str, number: int) -> None:
        """Appends text.

        `number` names the part that begins with this text, if one begins here. It must not fall
        between calls, because parts are read in the order of their names.
        """
        self._folder.check()
        with open(self._path, "ab") as file:
            file.write(text.encode())

    def flush(self) -> None:
        """Makes the appended text survive a power cut."""
        flush_to_disk(self._path)


class StoredText:
    """Text in a store, which cannot append to an object, as a folder of parts.

    `append` rewrites the newest part until `flush` ends it. The methods have the same meaning as in
    `LocalText`.
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
        # The last part is removed first: a kill then leaves a longer text, but no gap in it.
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
        """Ends the newest part. Its text is durable already, because a store keeps every object."""
        self._part = self._text = ""

    def _content(self, name: str) -> bytes:
        return read_file(os.path.join(self._folder.path, name))


def appended_text(path: str, folder: WritableFolder | None) -> LocalText | StoredText:
    """Returns the text at a path; its kind depends on whether the path is local.

    Without `folder`, no lock is asked before the text changes.
    """
    parent, name = os.path.split(path)
    folder = folder or WritableFolder(parent or ".")
    return StoredText(folder.subfolder(name)) if folder.is_remote else LocalText(folder, name)
