"""What one of 8 hosts reads of `lm1b_large`'s data before its first step, and how long that takes.

    python -m tests.measurements.measure_first_step
    python -m tests.measurements.measure_first_step --python /PATH/WITH/tensorflow-tpu/bin/python

The data set has as many rows as the experiment's, but fewer tokens; what is read
of each file depends on its size alone. Every request takes 100 ms. The reader
runs in a process of its own, as `txl train` starts it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.object_store.object_store import ObjectStore, running_store
from txl_tf.data.records import SHARD_BYTES, TOKENS_PER_RECORD
from txl_tf.storage.store_client import READ_SETTINGS

NUM_HOSTS, NUM_ROWS, SEGMENT_LENGTH = 8, 512, 32
NUM_STEPS = 100
TOKEN_BYTES = 4
NEEDED_BYTES_OF_A_ROW = (NUM_STEPS * SEGMENT_LENGTH + 1) * TOKEN_BYTES


def write_dataset(folder: Path, num_tokens: int, **sizes: int) -> None:
    """Writes a data set of the width of a large vocabulary's."""
    from txl_tf.data.preparation import prepare_dataset
    from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer

    class WideByteTokenizer(ByteTokenizer):
        kind = "wide"
        vocabulary_size = 793_471
        token_dtype = np.dtype("<i4")

        def encode(self, text: bytes) -> np.ndarray:
            return np.frombuffer(text, np.uint8).astype(self.token_dtype)

    block = np.random.default_rng(0).bytes(min(num_tokens, 1 << 20))
    pieces = [block] * -(-num_tokens // len(block))
    prepare_dataset({"train": [pieces]}, WideByteTokenizer(), str(folder), "wide", **sizes)


def batches_of_first_host(folder: str, num_rows: int) -> Iterator[dict]:
    """The batches of the first host, which has all its rows in one replica."""
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.data.segment_plan import SegmentPlan
    from txl_tf.data.segment_reader import SegmentReader

    dataset = PreparedDataset.open(folder, verify=False)
    plan = SegmentPlan(
        num_tokens=dataset.num_tokens("train"),
        num_rows=NUM_ROWS,
        segment_length=SEGMENT_LENGTH,
        fingerprint=dataset.fingerprint,
        rotate=True,
    )
    reader = SegmentReader(dataset, "train", plan)
    return iter(reader.dataset_fn(0, range(num_rows), num_rows, 10 * NUM_STEPS))


def read(folder: str, num_steps: int) -> None:
    """Reads as the first host does; prints the seconds to the first and the last step."""
    begin = time.perf_counter()
    batches = batches_of_first_host(folder, NUM_ROWS // NUM_HOSTS)
    opened = time.perf_counter()
    seconds = []
    for step in range(num_steps):
        next(batches)
        if step in (0, num_steps - 1):
            seconds.append(round(time.perf_counter() - opened, 2))
    print(json.dumps({"open": round(opened - begin, 2), "steps": seconds}), flush=True)
    # What is prefetched beyond that is not counted.
    os._exit(0)


def measure(
    store: ObjectStore, folder: str, num_steps: int, python: str = sys.executable
) -> dict[str, object]:
    """Bytes, requests and seconds of a process that reads some steps."""
    store.requests(clear=True)
    words = [
        python,
        "-m",
        "tests.measurements.measure_first_step",
        "--read",
        folder,
        "--steps",
        str(num_steps),
    ]
    environment = {
        **READ_SETTINGS,
        **os.environ,
        **store.environment,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TPU_LOAD_LIBRARY": "0",
    }
    finished = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return {
        "steps": num_steps,
        **counts(store.requests()),
        "seconds": json.loads(finished.stdout.splitlines()[-1]),
    }


def counts(requests: list[dict], num_rows: int = NUM_ROWS // NUM_HOSTS) -> dict[str, object]:
    """Bytes and requests of the shards."""
    shards = [entry for entry in requests if entry["path"].endswith(".tfrecord")]
    times = [entry["time"] for entry in shards]
    num_bytes = sum(entry["sent"] for entry in shards)
    return {
        "bytes": num_bytes,
        "requests": len(shards),
        # Of no row that waits for another there are many at once.
        "at_once": max(entry["in_flight"] for entry in shards),
        "spread_seconds": round(max(times) - min(times), 2),
        "times_what_100_steps_need": round(num_bytes / (num_rows * NEEDED_BYTES_OF_A_ROW), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=40_000_000)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--shard-bytes", type=int, default=SHARD_BYTES)
    parser.add_argument("--tokens-per-record", type=int, default=TOKENS_PER_RECORD)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.read, arguments.steps)
    with tempfile.TemporaryDirectory() as folder, running_store(Path(folder)) as store:
        write_dataset(
            Path(folder) / "data",
            arguments.tokens,
            shard_bytes=arguments.shard_bytes,
            tokens_per_record=arguments.tokens_per_record,
        )
        store.put_folder(Path(folder) / "data", "data")
        store.control(latency_seconds=0.1)
        needed = NUM_ROWS // NUM_HOSTS * NEEDED_BYTES_OF_A_ROW
        print(json.dumps({"bytes_100_steps_need": needed}))
        for num_steps in (1, NUM_STEPS):
            found = measure(store, "gs://bucket/data", num_steps, arguments.python)
            print(json.dumps(found))


if __name__ == "__main__":
    main()
