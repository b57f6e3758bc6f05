"""How many tokens a second the reader gives, and what share of a step that is.

    python -m tests.measurements.measure_reader --data DIR --rows 64 --segment-length 512

With and without the starts of documents, taking turns. The share of a training
step is that of the small model of `txl quickstart` on the same batch: larger
models leave the reader more time.
"""

import argparse
import json
import statistics
import time

import tensorflow as tf

from pipelines.configs import NAMED_EXPERIMENTS
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.data.segment_reader import SegmentReader
from txl_tf.training.trainer import Trainer

REPEATS = 5


def dataset_function(dataset, plan, with_document_starts):
    reader = SegmentReader(dataset, "train", plan, with_document_starts=with_document_starts)

    def create(first_step, rows, per_replica_rows, num_steps=None):
        return reader.dataset_fn(first_step, rows, per_replica_rows, num_steps)

    return create


def seconds_per_batch(create, num_rows, num_steps):
    batches = iter(create(0, range(num_rows), num_rows))
    next(batches)
    begin = time.perf_counter()
    for _ in range(num_steps):
        next(batches)
    return (time.perf_counter() - begin) / num_steps


def seconds_per_step(create, num_rows, segment_length):
    experiment = NAMED_EXPERIMENTS["quickstart"]()
    experiment = experiment.replace(
        model=experiment.model.replace(segment_length=segment_length),
        training=experiment.training.replace(
            global_batch_size=num_rows, num_steps=10_000, steps_per_loop=1
        ),
    )
    reports = Trainer(experiment, tf.distribute.get_strategy(), create).run()
    next(reports)  # compiles
    begin = time.perf_counter()
    next(reports)
    next(reports)
    return (time.perf_counter() - begin) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--segment-length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    dataset = PreparedDataset.open(arguments.data)
    plan = SegmentPlan(
        num_tokens=dataset.num_tokens("train"),
        num_rows=arguments.rows,
        segment_length=arguments.segment_length,
        fingerprint=dataset.fingerprint,
    )
    tokens = arguments.rows * arguments.segment_length
    found = {False: [], True: []}
    for _ in range(REPEATS):
        for with_starts, seconds in found.items():
            create = dataset_function(dataset, plan, with_starts)
            seconds.append(seconds_per_batch(create, arguments.rows, arguments.steps))
    step = seconds_per_step(
        dataset_function(dataset, plan, False), arguments.rows, arguments.segment_length
    )
    plain, with_starts = (statistics.median(found[key]) for key in (False, True))
    print(
        json.dumps(
            {
                "tokens_per_second": round(tokens / plain),
                "tokens_per_second_with_document_starts": round(tokens / with_starts),
                "all_with_starts": [round(tokens / seconds) for seconds in found[True]],
                "seconds_per_training_step": step,
                "reader_share_of_step": plain / step,
            }
        )
    )


if __name__ == "__main__":
    main()
