"""Attention kernel against the layer's plain operations: outputs and all gradients.

    python -m tests.tpu_kernels.random_cases --cases 500
    python -m tests.tpu_kernels.random_cases --cases 500 --reading

With `--reading` it is the kernel that reads with a memory and moves it on, in two reads.
Sizes, tiles and options are drawn; the kernel runs interpreted, in float32. The bar is a
difference of 1e-5 of the largest entry. Quick compilation makes a case take a second or two.
"""

import argparse
import collections
import json
import os
import subprocess
import sys

from tests.slow_case import QUICK_XLA

LIMIT = 1e-5
# A process may map memory so often only, and every compiled case takes some.
CASES_PER_PROCESS = 25


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--reading", action="store_true", help="the kernel of inference")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    cases = range(arguments.first, arguments.first + arguments.cases)
    if arguments.in_process:
        print(json.dumps(measure(cases, arguments.reading)))
        return
    environment = {**os.environ, "XLA_FLAGS": QUICK_XLA}
    found, options = {}, collections.Counter()
    for first in cases[::CASES_PER_PROCESS]:
        count = min(CASES_PER_PROCESS, cases.stop - first)
        command = [sys.executable, "-m", "tests.tpu_kernels.random_cases"]
        command += ["--in-process", "--first", str(first), "--cases", str(count)]
        command += ["--reading"] if arguments.reading else []
        finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        part = json.loads(finished.stdout.splitlines()[-1])
        options.update(part["options"])
        for name, each in part["largest"].items():
            found[name] = max(found.get(name, each), each)
        worst = max(difference for difference, _ in found.values())
        print(f"cases {cases.start} to {first + count - 1}: at most {worst:.2e}", flush=True)
    print("cases with each option:", dict(options))
    for name, (difference, case) in found.items():
        print(f"{name}: {difference:.2e} at {case}")
    if not worst <= LIMIT:
        raise SystemExit(f"more than {LIMIT:g}")


def measure(cases, is_reading):
    """Largest difference of each result with its case, and how many cases had each option."""
    import numpy as np
    import tensorflow as tf

    from tests.tpu_kernels import attention_cases, reading_cases

    module = reading_cases if is_reading else attention_cases
    tf.get_logger().setLevel("ERROR")  # every case is a function of its own
    largest = dict.fromkeys(module.NAMES, (0.0, ""))
    options = collections.Counter()
    for index in cases:
        case = module.drawn_case(np.random.default_rng([2019, index]), seed=index)
        options.update(option for option, value in vars(case).items() if value)
        for name, difference in module.differences(case).items():
            # Not a number is as far away as can be.
            difference = difference if np.isfinite(difference) else float("inf")
            largest[name] = max(largest[name], (difference, repr(case)))
    return {"largest": largest, "options": options}


if __name__ == "__main__":
    main()
