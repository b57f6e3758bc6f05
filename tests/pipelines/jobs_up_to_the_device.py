"""Runs a job as with `--tpu`, with a strategy that only lacks the TPU; prints what stopped it.

python -m tests.pipelines.jobs_up_to_the_device train --config FILE --data DIR --workdir DIR
"""

import sys

from pipelines import command_line
from txl_tf.distribution import strategy
from txl_tf.tpu_compiler.replica_program import traced_tpu_strategy

NUM_REPLICAS = 2


def main(arguments):
    strategy.create_strategy = lambda tpu, num_cpu_replicas=1: traced_tpu_strategy(NUM_REPLICAS)
    sys.exit(command_line.main([*arguments, "--tpu", "local"]))


if __name__ == "__main__":
    main(sys.argv[1:])
