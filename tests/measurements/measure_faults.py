"""Faults of a store over preparing, verifying, training, resuming and exporting.

    python -m tests.measurements.measure_faults --faults 200

Each job runs with chance faults of every kind until it is done; where the store
stays away for longer than the client's patience, the job must end with an exit
code of its own (74, or 75 for a run) and is given again. In the end everything in
the store must be what the same jobs make on a disk, and nothing half-written may
be taken for whole.
"""

import argparse
import collections
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.object_store.object_store import ObjectStore, running_store
from tests.object_store.store_faults import KINDS
from tests.pipelines.interrupted_run import EXPERIMENT
from tests.pipelines.txl_process import command, environment

NUM_STEPS = 200
# Answers that come too late take time and no patience; the rest is drawn equally.
CHANCE = {"kinds": list(KINDS), "probability": 0.15}
# Beyond the client's ten tries, for one request.
OUTAGE = {"kinds": ["503"], "count": 11}
MAY_FAIL = (74, 75)


class FaultyJobs:
    """Runs jobs on a store, again and again until they succeed.

    Args:
        store: `ObjectStore`.
        folder: path of a folder for the text and the configuration.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._seed = 0
        self.codes: collections.Counter[int] = collections.Counter()
        self.problems: list[str] = []

    def run(self, *arguments: object, outage_at: int | None = None) -> str:
        """Runs one job to its end, and returns what it printed.

        Args:
            *arguments: those of `txl`.
            outage_at: optional int. Requests after which the store stays away once.
        """
        for attempt in range(10):
            self._seed += 1
            rules = [CHANCE]
            if outage_at is not None and attempt == 0:
                rules.insert(0, {**OUTAGE, "skip": outage_at})
            self._store.set_faults(*rules, seed=self._seed)
            finished = self._process(*arguments)
            self.codes[finished.returncode] += 1
            if "Traceback" in finished.stderr or "not foreseen" in finished.stderr:
                self.problems.append(f"{arguments[0]}: {finished.stderr[-500:]}")
            if finished.returncode == 0:
                return finished.stdout
            if finished.returncode not in MAY_FAIL:
                self.problems.append(f"{arguments[0]}: {finished.returncode} {finished.stderr}")
        raise AssertionError(f"{arguments[0]} does not succeed: {self.problems}")

    def stop(self, bucket: str, *arguments: object) -> None:
        """Runs a training job, and stops it after its first checkpoint."""
        self._store.set_faults(CHANCE, seed=1000)
        with self._start(*arguments) as process:
            while process.poll() is None:
                names = self._store.names("run/checkpoints/step", bucket=bucket)
                if any(name.endswith("manifest.json") for name in names):
                    process.send_signal(signal.SIGTERM)
                    break
                time.sleep(0.05)
            _, errors = process.communicate(timeout=600)
        self.codes[process.returncode] += 1
        if process.returncode != 75 or "Traceback" in errors:
            self.problems.append(f"stopped: {process.returncode} {errors}")

    def _process(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        with self._start(*arguments) as process:
            output, errors = process.communicate(timeout=600)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def _start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(*map(str, arguments)),
            env={**environment(), **self._store.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def set_up(folder: Path) -> None:
    """Writes a text and a configuration, and does all jobs on the disk."""
    lines = [f"{n} and {n * 7 % 101} make {n + n * 7 % 101}\n" for n in range(1500)]
    (folder / "text.txt").write_text("".join(lines))
    training = {**EXPERIMENT["training"], "num_steps": NUM_STEPS, "checkpoint_every_steps": 50}
    (folder / "tiny.json").write_text(json.dumps({**EXPERIMENT, "training": training}))
    for words in (prepare_words(folder, folder / "data"), train_words(folder, folder)):
        done = subprocess.run(command(*map(str, words)), env=environment(), check=False)
        assert done.returncode == 0, words


def prepare_words(folder: Path, output: object) -> list[object]:
    words = ["prepare", "--text", folder / "text.txt", "--tokenizer", "bytes"]
    return [*words, "--shard-megabytes", "0.01", "--out", output]


def train_words(folder: Path, root: object) -> list[object]:
    words = ["train", "--config", folder / "tiny.json", "--data", f"{root}/data"]
    return [*words, "--workdir", f"{root}/run"]


def check_same(store: ObjectStore, folder: Path, root: str) -> None:
    """Fails unless the data set and the last checkpoint are those on the disk."""
    os.environ.update(store.environment)
    import tensorflow as tf

    for path in sorted((folder / "data").iterdir()):
        there = tf.io.read_file(f"{root}/data/{path.name}").numpy()
        assert there == path.read_bytes(), path.name
    arrays = []
    for place in (str(folder), root):
        prefix = f"{place}/run/checkpoints/step-{NUM_STEPS:08d}/state"
        reader = tf.train.load_checkpoint(prefix)
        names = sorted(reader.get_variable_to_shape_map())
        arrays.append({name: reader.get_tensor(name) for name in names})
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name], err_msg=name)


def run_all(store: ObjectStore, folder: Path, root: str, outage_at: int | None) -> FaultyJobs:
    """All jobs once on the store, checked."""
    jobs = FaultyJobs(store, folder)
    jobs.run(*prepare_words(folder, f"{root}/data"), outage_at=outage_at)
    jobs.run("verify", f"{root}/data", outage_at=outage_at)
    jobs.stop(root.removeprefix("gs://"), *train_words(folder, root))
    jobs.run(*train_words(folder, root), outage_at=outage_at and 3 * outage_at)
    jobs.run("verify", f"{root}/run")
    words = ["export", "--workdir", f"{root}/run", "--out", f"{root}/export"]
    printed = jobs.run(*words, outage_at=outage_at)
    # What an export that failed has left takes the number before.
    printed = jobs.run("verify", re.search(rf"{root}/export/\d+", printed)[0])
    assert "verified" in printed and " 0 files" not in printed, printed
    store.set_faults()
    check_same(store, folder, root)
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200)
    arguments = parser.parse_args()
    begin = time.monotonic()
    codes: collections.Counter[int] = collections.Counter()
    rounds = 0
    with tempfile.TemporaryDirectory() as name, running_store(Path(name)) as store:
        set_up(Path(name))
        while store.num_faults() < arguments.faults:
            outage_at = 20 + 7 * rounds
            jobs = run_all(store, Path(name), f"gs://round-{rounds}", outage_at)
            assert jobs.problems == [], jobs.problems
            codes += jobs.codes
            rounds += 1
            print(
                f"round {rounds}: {store.num_faults()} faults, codes {dict(jobs.codes)}", flush=True
            )
        injected = store.control()["injected"]
    print(f"{sum(injected.values())} faults ({injected}) in {rounds} rounds")
    print(f"exit codes {dict(codes)}; no traceback; data, checkpoints and exports whole and equal")
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
