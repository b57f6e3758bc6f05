"""Random orders of events of two and three writers of one folder."""

import collections
import os
import random
import time
from pathlib import Path

import tensorflow as tf

from tests.pipelines.folder_changes import LocalChanges, StoreChanges
from tests.pipelines.frozen_writer import FrozenWriter, freezable_writers
from tests.pipelines.toy_run import NUM_STEPS
from txl_tf.storage.files import list_folder, read_file, remove_folder

LOCKED, DAMAGED, MISSING, STORAGE = 73, 65, 66, 74
MAX_RESTARTS = 5


class Interleavings:
    """Tries orders of events, and counts what came of them.

    Args:
        base: str. Path of a new folder, local or in a store.
        seed: int. Decides the orders.
    """

    def __init__(self, base: str, seed: int) -> None:
        self._base = base
        self._place = "store" if "://" in base else "local"
        self._random = random.Random(f"{self._place} {seed}")
        self.exit_codes = collections.Counter()
        self.changes = collections.Counter()
        self.num_writers = collections.Counter()
        self.num_tried = 0
        self.num_begun_anew = 0
        self.num_woken_to_another_folder = 0
        with self._freezable():
            folder = self._folder("unbroken")
            writer = FrozenWriter(folder.run)
            writer.run()
            assert writer.wait() == 0, writer.error
            self._expected = result_of(folder.run)
            self.num_operations = writer.num_operations

    def run(self, count: int) -> None:
        """Tries so many orders, each in a folder of its own."""
        with self._freezable():
            for _ in range(count):
                self._try()

    def _freezable(self):
        return freezable_writers(self._place == "store")

    def _folder(self, name: str) -> LocalChanges | StoreChanges:
        base = os.path.join(self._base, name)
        tf.io.gfile.makedirs(base)
        return (StoreChanges if self._place == "store" else LocalChanges)(base, self._random)

    def _try(self) -> None:
        self.num_tried += 1
        folder = self._folder(f"order-{self.num_tried}")
        events: list[str] = []
        try:
            self._interleave(folder, events)
            self._finish(folder, events)
        except BaseException as error:
            error.add_note(f"order {self.num_tried}: {'; '.join(events)}")
            raise
        remove_folder(os.path.join(self._base, f"order-{self.num_tried}"))

    def _interleave(self, folder: LocalChanges | StoreChanges, events: list[str]) -> None:
        count = self._random.choice([2, 2, 3])
        self.num_writers[count] += 1
        frozen: list[FrozenWriter] = []
        for number in range(count):
            writer = FrozenWriter(folder.run)
            moment = self._moment()
            events.append(f"writer {number} begins, {moment} operations")
            if not self._alone(folder, writer, moment, events):
                frozen.append(writer)
            for _ in range(self._random.choice([1, 1, 2])):
                kind = self._random.choice(sorted(folder.kinds))
                events.append(kind)
                self.changes[kind] += 1
                folder.change(kind)
            if frozen and self._random.random() < 0.3:
                self._wake(folder, frozen, events, self._moment())
        while frozen:
            if len(frozen) > 1 and self._random.random() < 0.3:
                events.append("all wake at once")
                for writer in frozen:
                    writer.go_on()
                for writer in frozen:
                    self._count(writer, writer.wait())
                return
            self._wake(folder, frozen, events, None)

    def _wake(
        self,
        folder: LocalChanges | StoreChanges,
        frozen: list[FrozenWriter],
        events: list[str],
        moment: int | None,
    ) -> None:
        writer = self._random.choice(frozen)
        events.append(f"one of {len(frozen)} wakes, {moment} operations")
        if self._alone(folder, writer, moment, events):
            frozen.remove(writer)

    def _alone(
        self,
        folder: LocalChanges | StoreChanges,
        writer: FrozenWriter,
        moment: int | None,
        events: list[str],
    ) -> bool:
        """Lets one writer run while no other does, and looks at what it has changed."""
        before, num_locks = folder.states(), writer.num_locks
        is_own = self._is_own(folder, writer)
        has_ended = writer.run(moment)
        after = folder.states()
        changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
        if self._place == "local":
            assert changed <= {writer.inode}, "a folder of another writer was touched"
        elif not is_own and writer.num_locks == num_locks:
            self.num_woken_to_another_folder += num_locks > 0
            assert not changed, "a folder of another writer was touched"
        if has_ended:
            events.append(f"it ends with {writer.exit_code}")
            self._count(writer, writer.exit_code)
        return has_ended

    def _is_own(self, folder: LocalChanges | StoreChanges, writer: FrozenWriter) -> bool:
        if writer.token is None:
            return False
        try:
            return writer.token.encode() in read_file(os.path.join(folder.run, ".lock"))
        except OSError:
            return False

    def _count(self, writer: FrozenWriter, exit_code: int | None) -> None:
        self.exit_codes[exit_code] += 1
        allowed = (0, LOCKED, DAMAGED, MISSING, STORAGE)
        if exit_code not in allowed:
            raise AssertionError(f"a writer ended with {exit_code}") from writer.error

    def _finish(self, folder: LocalChanges | StoreChanges, events: list[str]) -> None:
        """Starts again and again, as a supervisor does, until the run is at its end."""
        folder.clear_links()
        for _ in range(MAX_RESTARTS):
            writer = FrozenWriter(folder.run)
            writer.run()
            exit_code = writer.wait()
            events.append(f"the last ends with {exit_code}")
            self._count(writer, exit_code)
            if exit_code == 0:
                break
            if exit_code == LOCKED:
                time.sleep(0.3)  # the lock of an owner that is gone becomes stale
            if exit_code in (DAMAGED, MISSING) or str(writer.error).startswith("The folder exists"):
                # What was deleted is gone, and it says so; to begin anew is its remedy.
                self.num_begun_anew += 1
                remove_folder(folder.run)
        else:
            raise AssertionError("the run does not come to its end") from writer.error
        result = result_of(folder.run)
        names = sorted(result.keys() | self._expected.keys())
        differing = [name for name in names if result.get(name) != self._expected.get(name)]
        assert differing == [], f"not the run that was never broken: {differing}"
        assert folder.victim_is_whole()

    def _moment(self) -> int:
        return self._random.randrange(self.num_operations)


def result_of(workdir: str | Path) -> dict[str, object]:
    """All that a run comes to: the ledger, and the arrays of its checkpoints, bit for bit."""
    workdir = str(workdir)
    parts = [f"{workdir}/ledger/{name}" for name in list_folder(f"{workdir}/ledger")]
    ledger = b"".join(read_file(part) for part in parts or [f"{workdir}/ledger.txt"])
    found: dict[str, object] = {"ledger": ledger}
    steps = [name for name in list_folder(f"{workdir}/checkpoints") if name.startswith("step-")]
    assert f"step-{NUM_STEPS:08d}" in steps
    for step in steps:
        reader = tf.compat.v1.train.NewCheckpointReader(f"{workdir}/checkpoints/{step}/state")
        for name in reader.get_variable_to_shape_map():
            found[f"{step}/{name}"] = reader.get_tensor(name).tobytes()
    found["best"] = read_file(f"{workdir}/checkpoints/best.json")
    found["vocabulary"] = read_file(f"{workdir}/vocabulary/vocabulary.txt")
    return found
