"""Attention kernel against the layer's plain operations: outputs and all gradients.

    python -m tests.tpu_kernels.random_cases --first 25 --cases 25 [--reading]

With `--reading`, the kernel reads with a memory and moves it on, in two reads. Sizes, tiles and
options are drawn; the kernel runs interpreted, in float32. The bar is a difference of 1e-5 of the
largest entry. A process holds about 25 cases: compiled programs are never freed.
"""

import argparse
import os

import numpy as np

from tests.slow_case import QUICK_XLA

LIMIT = 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=25)
    parser.add_argument("--reading", action="store_true", help="the kernel of inference")
    arguments = parser.parse_args()
    os.environ["XLA_FLAGS"] = QUICK_XLA  # a case takes a second or two
    from tests.tpu_kernels import attention_cases, reading_cases

    module = reading_cases if arguments.reading else attention_cases
    largest = 0.0
    for index in range(arguments.first, arguments.first + arguments.cases):
        case = module.drawn_case(np.random.default_rng([2019, index]), seed=index)
        found = module.differences(case)
        if not max(found.values()) <= LIMIT:
            raise SystemExit(f"{found} at {case}")
        largest = max(largest, *found.values())
    print(f"{arguments.cases} cases: at most {largest:.2e}")


if __name__ == "__main__":
    main()
