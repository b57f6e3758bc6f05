"""Attention kernel against the layer's plain operations: outputs and all gradients.

    python -m tests.measurements.measure_attention_kernel --cases 500

Sizes, tiles and options are drawn; the kernel runs interpreted, in float32. The bar is a
difference of 1e-5 of the largest entry. Quick compilation makes a case take a second or two.
"""

import argparse
import collections
import os
import time

LIMIT = 1e-5


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    # Compiling takes far longer than computing.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    largest, options = measure(arguments.cases, arguments.seed)
    print("cases with each option:", dict(options))
    for name, (difference, case) in largest.items():
        print(f"{name}: {difference:.2e} at {case}")
    if max(difference for difference, _ in largest.values()) > LIMIT:
        raise SystemExit(f"more than {LIMIT:g}")


def measure(num_cases, seed):
    """Largest difference of each result with its case, and how many cases had each option."""
    import numpy as np
    import tensorflow as tf

    from tests.tpu_kernels.attention_cases import NAMES, differences, drawn_case

    tf.get_logger().setLevel("ERROR")  # every case is a function of its own
    generator = np.random.default_rng(seed)
    largest = dict.fromkeys(NAMES, (0.0, None))
    options = collections.Counter()
    begin = time.perf_counter()
    for index in range(num_cases):
        case = drawn_case(generator, seed=index)
        options.update(option for option, value in vars(case).items() if value)
        for name, difference in differences(case).items():
            if not difference <= largest[name][0]:  # also what is not a number
                largest[name] = difference, case
        if (index + 1) % 10 == 0 or index + 1 == num_cases:
            seconds = time.perf_counter() - begin
            worst = max(difference for difference, _ in largest.values())
            print(f"{index + 1} cases, {seconds:.0f} s, at most {worst:.2e}", flush=True)
    return largest, options


if __name__ == "__main__":
    main()
