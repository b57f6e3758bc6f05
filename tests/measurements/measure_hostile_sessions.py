"""Mutates session files and loads them: `python -m tests.measurements.measure_hostile_sessions`.

It prints how many were refused and how, the slowest, and what the process grew by.
"""

import argparse
import collections
import json
import pathlib
import random
import resource
import tempfile
import time

import numpy as np

from tests.generation.models import expressive, prompt
from tests.generation.session_parts import content_of, fields_of, parts_of, replaced, without
from tests.toy_batches import VOCABULARY_SIZE
from txl_tf.errors import JobError
from txl_tf.generation import GenerationSession
from txl_tf.samplers import RandomSampler

VALUES = [
    None,
    True,
    -1,
    0,
    1,
    7,
    2**31,
    2**64,
    -(2**63),
    0.5,
    1e308,
    float("nan"),
    "",
    "\ud800",
    [],
    {},
]


def mutated(good, draw):
    """Bytes, a field of the header, or an array, changed in one of many ways."""
    header, arrays = parts_of(good)
    kind = draw.choice(["bytes", "cut", "replaced", "without", "nested", "array", "bomb"])
    if kind == "bytes":
        content = bytearray(good)
        for _ in range(draw.randint(1, 5)):
            content[draw.randrange(-3000, 600) % len(content)] = draw.randrange(256)
        return bytes(content)
    if kind == "cut":
        return good[: draw.randrange(len(good))]
    if kind == "nested":
        return content_of(b"[" * draw.choice([33, 10**5]) + json.dumps(header).encode(), arrays)
    if kind in ("replaced", "without"):
        path = draw.choice([path for path in fields_of(header) if path])
        if kind == "without":
            return content_of(without(header, path), arrays)
        return content_of(replaced(header, path, draw.choice(VALUES)), arrays)
    name = draw.choice(sorted(arrays))
    if kind == "bomb":
        arrays[name] = np.zeros(draw.randrange(1 << 25), np.uint8)
        return content_of(header, arrays, save=np.savez_compressed)
    raw = bytearray(arrays[name].tobytes())
    raw[draw.randrange(len(raw))] = draw.choice([0x7F, 0x80, 0xFF])
    if draw.random() < 0.5:
        raw = raw[: -draw.randint(0, 3) or None] + draw.randbytes(draw.randint(0, 2))
    return content_of(header, {**arrays, name: np.frombuffer(bytes(raw), np.uint8)})


def main(count, seed):
    session = GenerationSession(expressive(), RandomSampler(), num_rows=2, jit_compile=False)
    session.write([prompt(3, 1)[0], prompt(17, 1)[0]], num_tokens=6)
    draw, ends, slowest = random.Random(seed), collections.Counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "session.npz"
        session.save(path)
        good = path.read_bytes()
        session.write(num_tokens=1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(count):
            path.write_bytes(mutated(good, draw))
            begin = time.perf_counter()
            try:
                session.load(path)
                written = session.write(num_tokens=1)
                assert ((written >= 0) & (written < VOCABULARY_SIZE)).all()
                ends["loaded, and writes tokens of the vocabulary"] += 1
            except JobError as error:
                assert len(str(error).splitlines()) <= 3
                ends[f"refused with {error.exit_code}"] += 1
            except Exception as error:
                ends[f"{type(error).__name__}: {error}"[:200]] += 1
            slowest = max(slowest, time.perf_counter() - begin)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{count} files, seed {seed}: {dict(ends)}")
    print(f"slowest {slowest:.2f} s; the process grew by {grown:.0f} MiB, mutating included")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.count, arguments.seed)
