"""A text file with a line for every step of a run."""

import concurrent.futures
import os
import re
from collections.abc import Sequence

from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.file_storage import first_line, read_file
from txl_tf.training.ledger_line import LedgerLine
from txl_tf.writable_folder import WritableFolder

_HEADER = re.compile(r"txl ledger format=1 first=(\d+)")
_PART = re.compile(r"part-(\d{10})\.txt")
_NUM_READERS = 16


class StepLedger:
    """Writes down what every step read and what came out.

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

    @property
    def first_step(self) -> int:
        """The first step that is in it, once `resume` has been called."""
        return self._first_step

    def resume(self, step: int) -> list[LedgerLine]:
        """Cuts off what came after a step, and goes on from there.

        A line that a kill cut short is dropped. Where there is no ledger, or
        none of so early a step, a new one begins after the step.

        Args:
            step: int. Steps done; 0 begins a new run.

        Returns:
            The lines of later steps, which were done and are to be done again.

        Raises:
            DataDamagedError: If the lines up to the step are not one for each.
            StorageError: If it cannot be read or written.
            OutputExistsError: If this process may not write here any more.
        """
        try:
            text = self._files.read()
            cut = []
            if text is None:
                self._begin(step)
            else:
                header, *lines = text.split("\n")[:-1] or [""]
                cut = self._cut(header, lines, step)
        except OSError as error:
            raise self._storage_error(error) from error
        self._next_step = step + 1
        return cut

    def append(self, lines: Sequence[LedgerLine]) -> None:
        """Writes lines for the next steps.

        Args:
            lines: sequence of `LedgerLine`, of consecutive steps.

        Raises:
            ValueError: If they are not of the steps that come next.
            StorageError: If they cannot be written.
            OutputExistsError: If this process may not write here any more.
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
        try:
            self._files.append("".join(f"{line}\n" for line in lines), begin)
        except OSError as error:
            raise self._storage_error(error) from error
        self._next_step = begin + len(steps)

    def flush_to_disk(self) -> None:
        """Makes sure that what was appended survives the machine.

        Raises:
            StorageError: If that cannot be done.
        """
        try:
            self._files.flush()
        except OSError as error:
            raise self._storage_error(error) from error

    def _begin(self, step: int) -> None:
        self._first_step = step + 1
        self._files.begin(f"txl ledger format=1 first={self._first_step}\n")

    def _cut(self, header: str, lines: list[str], step: int) -> list[LedgerLine]:
        match = _HEADER.fullmatch(header)
        if match is None:
            raise self._damaged(1, "it does not begin as a ledger does")
        self._first_step = int(match.group(1))
        num_kept = max(step - self._first_step + 1, 0)
        for index, text in enumerate(lines[:num_kept]):
            self._check(index, text)
        if len(lines) < num_kept:
            missing = self._first_step + len(lines)
            raise self._damaged(len(lines) + 2, f"the line of step {missing} is missing")
        cut = self._later_lines(lines, num_kept)
        if step + 1 < self._first_step:
            self._begin(step)
        else:
            self._files.cut(sum(len(line) + 1 for line in [header, *lines[:num_kept]]))
        return cut

    def _check(self, index: int, text: str) -> None:
        expected = self._first_step + index
        try:
            step = LedgerLine.parse(text).step
        except ValueError as error:
            raise self._damaged(index + 2, f"not a line of a ledger: {text[:60]!r}") from error
        if step != expected:
            raise self._damaged(index + 2, f"of step {step} instead of {expected}")

    def _later_lines(self, lines: list[str], num_kept: int) -> list[LedgerLine]:
        """Parses to the first line that is none: a power cut may leave anything behind."""
        later: list[LedgerLine] = []
        for text in lines[num_kept:]:
            try:
                line = LedgerLine.parse(text)
            except ValueError:
                break
            if line.step != self._first_step + num_kept + len(later):
                break
            later.append(line)
        return later

    def _damaged(self, number: int, what: str) -> DataDamagedError:
        return DataDamagedError(
            f"The ledger of the run is damaged at line {number}: {what}.",
            where=self._path,
            remedy="Restore it from a copy, or move it away: a new one begins at this step.",
        )

    def _storage_error(self, error: OSError) -> StorageError:
        return StorageError(
            f"The ledger of the run cannot be read or written: {first_line(error)}",
            where=self._path,
            remedy="Make room or check the permissions, and start again.",
        )


class _OneFile:
    """A ledger on a local disk."""

    def __init__(self, folder: WritableFolder, name: str) -> None:
        self._folder = folder
        self._name = name

    def read(self) -> str | None:
        try:
            content = read_file(os.path.join(self._folder.path, self._name))
        except FileNotFoundError:
            return None
        # What is not text is found as a line that is none.
        return content.decode("ascii", errors="replace")

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

    def read(self) -> str | None:
        names = [name for name in self._folder.names() if _PART.fullmatch(name)]
        with concurrent.futures.ThreadPoolExecutor(_NUM_READERS) as executor:
            contents = [*executor.map(self._content, names)]
        self._sizes = {name: len(content) for name, content in zip(names, contents, strict=True)}
        return b"".join(contents).decode("ascii", errors="replace") if contents else None

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
