"""Random orders of events of two and three writers of one folder, locally and in a store:

python -m tests.measurements.measure_writers --local 200 --store 200
"""

import argparse
import tempfile
import time

from tests.pipelines.writer_interleavings import Interleavings


def measure(base: str, count: int, seed: int) -> None:
    """Tries so many orders in a folder and prints what came of them."""
    begin = time.monotonic()
    interleavings = Interleavings(base, seed)
    interleavings.run(count)
    seconds = time.monotonic() - begin
    place = "in a store" if "://" in base else "in a local folder"
    writers = ", ".join(f"{n} of {k} writers" for k, n in sorted(interleavings.num_writers.items()))
    print(f"{interleavings.num_tried} orders {place} ({writers})")
    print(f"an unbroken run has {interleavings.num_operations} moments to freeze it at")
    for kind, times in sorted(interleavings.changes.items()):
        print(f"  {times:4d} x {kind}")
    codes = ", ".join(
        f"{times} with {code}" for code, times in sorted(interleavings.exit_codes.items())
    )
    print(f"writers ended: {codes}")
    print(f"{interleavings.num_begun_anew} runs had lost checkpoints, said so, and were begun anew")
    print("every run came to the ledger and the arrays of an unbroken one, bit for bit")
    print("no writer changed a file of a folder that was not its own")
    print(f"{seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local", type=int, default=200)
    parser.add_argument("--store", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(folder, arguments.local, arguments.seed)
    measure("ram://writers", arguments.store, arguments.seed)


if __name__ == "__main__":
    main()
