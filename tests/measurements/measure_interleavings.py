"""Counts the texts that become others when sessions are interleaved.

    python -m tests.measurements.measure_interleavings --count 1000

Without `--export` the model is the tiny one of the tests.
"""

import argparse
import tempfile
import time

from tests.serving.byte_model import write_version
from tests.serving.interleavings import NUM_SESSIONS, NUM_STEPS, texts_alone, texts_interleaved
from tests.serving.servers import SERVERS, TRANSPORTS, running_server


def main():
    """Prints a line for each server and transport; fails where a text differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="interleavings")
    parser.add_argument("--export", metavar="DIR", help="folder of all versions")
    arguments = parser.parse_args()
    num_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        if arguments.export is None:
            write_version(folder, 1)
        for name in SERVERS:
            with running_server(name, arguments.export or folder) as server:
                for kind in TRANSPORTS:
                    num_wrong += measure(name, server, kind, arguments.count)
    raise SystemExit(1 if num_wrong else 0)


def measure(name, server, kind, count):
    """Runs the interleavings over one transport, and counts the texts that differ."""
    transport = server.transport(kind)
    start = time.monotonic()
    alone = texts_alone(transport)
    num_wrong = 0
    for seed in range(count):
        together = texts_interleaved(transport, seed)
        num_wrong += sum(left != right for left, right in zip(alone, together, strict=True))
    seconds = time.monotonic() - start
    num_requests = (count + 1) * NUM_SESSIONS * NUM_STEPS
    print(
        f"{name} {kind}: {count} interleavings of {NUM_SESSIONS} sessions, "
        f"{num_requests} requests in {seconds:.0f} s, {num_wrong} texts differ",
        flush=True,
    )
    transport.close()
    return num_wrong


if __name__ == "__main__":
    main()
