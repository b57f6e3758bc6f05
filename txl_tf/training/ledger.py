"""A text file with a line for every step of a run."""

import concurrent.futures
import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.storage.files import first_line, open_regular_file, path_exists, read_file
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.ledger_lines import MAX_LINE_BYTES, LedgerLine, LedgerReader

_PART = re.compile(r"part-(\d{10})\.txt")
_NUM_READERS = 16


class StepLedger:
    """Ledger of a run: one text line per step.

    Two runs took the same steps if their ledgers are the same, byte for byte.
    The first line names the first step that is in it: 1, unless the ledger was
    lost or is younger than the run. A line for every step follows, in order.

    A local ledger is a file. Lines are with the operating system when `append`
    returns, so they survive the process; `flush_to_disk` lets them survive the
    machine and belongs before a checkpoint. Objects in a store cannot be
    appended to, so a remote ledger is a folder of parts of which the last one
    is written anew by each `append`; `flush_to_disk` begins the next part.

    `resume` comes before the first `append`. One process writes at a time, which
    has the folder of its lock, see `DirectoryLock`.

    Args:
        path: path of the file, or of the remote folder.
        folder: optional `WritableFolder` that the path is in.
    """

    def __init__(self, path: str | os.PathLike[str], folder: WritableFolder | None = None) -> None:
        self._path = os.fspath(path)
        parent, name = os.path.split(self._path)
        folder = folder or WritableFolder.at(parent or ".")
        if folder.is_remote:
            self._files: _Parts | _OneFile = _Parts(folder.subfolder(name))
        else:
            self._files = _OneFile(folder, name)
        self._first_step = 1
        self._next_step: int | None = None
        self._hash = hashlib.sha256()

    @property
    def first_step(self) -> int:
        """The first step that is in it, once `resume` has been called."""
        return self._first_step

    @property
    def digest(self) -> dict[str, Any]:
        """Its first step, and SHA-256 of all its bytes so far.

        A checkpoint keeps it, so that a line that is altered later is found.
        """
        return {"first_step": self._first_step, "sha256": self._hash.hexdigest()}

    def resume(
        self, step: int, expected: dict[str, Any] | None = None, latest: int | None = None
    ) -> list[LedgerLine]:
        """Removes the lines after a step and continues from there.

        A line that a kill cut short is dropped. Where there is no ledger, or
        none of so early a step, a new one begins after the step.

        Args:
            step: int. Steps done; 0 begins a new run.
            expected: optional dict. The `digest` that the checkpoint of the
                step keeps.
            latest: optional int. The last step that can be in it, since no
                checkpoint came later. One that goes on beyond is left alone.

        Returns:
            The lines of later steps, which were done and are to be done again.

        Raises:
            DataDamagedError: If the lines up to the step are not one for each,
                or not those of `expected`, or if later checkpoints are gone.
            StorageError: If it cannot be read or written.
        """
        cut: list[LedgerLine] = []
        with self._storage_errors():
            reader = self.reader()
            if reader is None:
                self._begin(step)
            else:
                cut = self._cut(reader, step, expected, latest)
        self._next_step = step + 1
        return cut

    def reader(self) -> LedgerReader | None:
        """Returns a reader of the ledger from its first line, if there is a ledger.

        Raises:
            DataDamagedError: If it does not begin as a ledger does.
            OSError: If it cannot be read.
        """
        lines = self._files.lines()
        return None if lines is None else LedgerReader(lines, self._path)

    def append(self, lines: Sequence[LedgerLine]) -> None:
        """Writes lines for the next steps, which are consecutive.

        Raises:
            ValueError: If they are not of the steps that come next.
            StorageError: If they cannot be written.
        """
        steps = [line.step for line in lines]
        begin = self._next_step
        if begin is None or steps != [*range(begin, begin + len(steps))]:
            raise ValueError(
                f"`lines` must be of the steps from {begin} on, after `resume`. "
                f"Received: steps={steps[:5]}"
            )
        if not steps:
            return
        text = "".join(f"{line}\n" for line in lines)
        with self._storage_errors():
            self._files.append(text, begin)
        self._hash.update(text.encode())
        self._next_step = begin + len(steps)

    def flush_to_disk(self) -> None:
        """Makes sure that what was appended survives the machine, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _begin(self, step: int) -> None:
        self._first_step = step + 1
        header = f"txl ledger format=1 first={self._first_step}\n"
        self._hash = hashlib.sha256(header.encode())
        self._files.begin(header)

    def _cut(
        self,
        reader: LedgerReader,
        step: int,
        expected: dict[str, Any] | None,
        latest: int | None,
    ) -> list[LedgerLine]:
        self._first_step = reader.first_step
        reader.read_until(step)
        reader.check(expected)
        self._hash = reader.copied_hash()
        num_bytes = reader.num_bytes
        cut, _ = reader.read_rest()
        reached = reader.last_step + len(cut)
        if latest is not None and reached > latest:
            raise DataDamagedError(
                f"The run has reached step {reached}, and the checkpoints of its later steps are "
                f"missing: the newest that can be read is of step {step}.",
                where=self._path,
                remedy="Restore them from a copy. To go back on purpose, move the ledger away; "
                "to begin anew, remove the folder or name a new one.",
            )
        if step + 1 < self._first_step:
            self._begin(step)
        else:
            self._files.cut(num_bytes)
        return cut

    @contextlib.contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"The ledger of the run cannot be read or written: {first_line(error)}",
                where=self._path,
                remedy="Make room or check the permissions, and start again.",
            ) from error


class _OneFile:
    """A ledger on a local disk."""

    def __init__(self, folder: WritableFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._path = os.path.join(folder.path, name)

    def lines(self) -> Iterator[bytes] | None:
        return self._read_lines() if path_exists(self._path) else None

    def _read_lines(self) -> Iterator[bytes]:
        with open_regular_file(self._path) as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line

    def begin(self, header: str) -> None:
        self._folder.write(self._name, header.encode())

    def cut(self, num_bytes: int) -> None:
        # The file ends earlier, at once or not at all; its beginning is not touched.
        self._folder.truncate(self._name, num_bytes)

    def append(self, text: str, first_step: int) -> None:
        self._folder.append(self._name, text.encode())

    def flush(self) -> None:
        self._folder.flush(self._name)


class _Parts:
    """A ledger in a store whose objects cannot be appended to."""

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
        self._part, self._text = _part_name(0), header
        self._folder.write(self._part, header.encode())

    def cut(self, num_bytes: int) -> None:
        self._folder.remove_temporaries()
        end = sum(self._sizes.values())
        # From the end on, so that what a kill leaves is a ledger that was cut less.
        for name, size in reversed(self._sizes.items()):
            begin = end - size
            if num_bytes <= begin:
                self._folder.remove_file(name)
            elif num_bytes < end:
                self._folder.write(name, self._content(name)[: num_bytes - begin])
            end = begin
        self.flush()

    def append(self, text: str, first_step: int) -> None:
        self._part = self._part or _part_name(first_step)
        self._text += text
        self._folder.write(self._part, self._text.encode())

    def flush(self) -> None:
        """Every object is durable when it is written; the next one is a new part."""
        self._part = self._text = ""

    def _content(self, name: str) -> bytes:
        return read_file(os.path.join(self._folder.path, name))


def _part_name(first_step: int) -> str:
    return f"part-{first_step:010d}.txt"
