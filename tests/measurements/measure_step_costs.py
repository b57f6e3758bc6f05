"""What the guard, the records, the ledger and the checkpoints cost.

    python -m tests.measurements.measure_step_costs --config enwik8_base --rows 1

Two trainers of the same model take turns: one as it is, one whose step neither
guards its update nor records anything. Fewer rows than a real run's make the
step shorter and the share of the costs larger.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from unittest import mock

import numpy as np
import tensorflow as tf

from pipelines.configs import NAMED_EXPERIMENTS
from tests.toy_batches import ToyBatches
from txl_tf.training.checkpoint_store import BackgroundSaver, CheckpointStore
from txl_tf.training.ledger import StepLedger
from txl_tf.training.step_report import StepRecord, StepStatus
from txl_tf.training.trainer import Trainer

_TRAIN_STEP = "txl_tf.training.train_step"


class _Unguarded:
    """Updates without looking back."""

    def __init__(self, variables):
        self.num_variables = len(variables)

    def __call__(self, update, is_wanted):
        update()


def trainer_of(experiment, num_rows):
    length = experiment.model.segment_length
    tokens = np.random.default_rng(0).integers(
        0, experiment.model.vocabulary_size, 40 * num_rows * length + 1
    )
    batches = ToyBatches(tokens.astype("int32"), num_rows, length)
    experiment = experiment.replace(
        training=experiment.training.replace(
            global_batch_size=num_rows, num_steps=10_000, steps_per_loop=100
        )
    )
    return Trainer(experiment, tf.distribute.get_strategy(), batches.dataset_function)


def bare_trainer_of(experiment, num_rows):
    """The trainer without guard and records; its first step is traced here."""
    with (
        mock.patch(f"{_TRAIN_STEP}.GuardedUpdate", _Unguarded),
        mock.patch(f"{_TRAIN_STEP}.batch_checksum", lambda *_: tf.constant(0)),
        mock.patch("txl_tf.training.step_records.StepRecords.write", lambda *_, **__: None),
    ):
        trainer = trainer_of(experiment, num_rows)
        iterator = iter(trainer._batches())
        seconds_of(trainer, iterator, 1)
    return trainer, iterator


def seconds_of(trainer, iterator, num_steps):
    begin = time.perf_counter()
    first_step = trainer.step
    trainer._run_steps(iterator, tf.constant(first_step), tf.constant(num_steps))
    assert trainer.step == first_step + num_steps  # waits for the last step
    return (time.perf_counter() - begin) / num_steps


def measure(config_name, num_rows, num_rounds, num_steps):
    experiment = NAMED_EXPERIMENTS[config_name]()
    full = trainer_of(experiment, num_rows)
    full_iterator = iter(full._batches())
    bare, bare_iterator = bare_trainer_of(experiment, num_rows)
    # The first runs trace and compile.
    for trainer, iterator in ((full, full_iterator), (bare, bare_iterator)):
        for _ in range(2):
            seconds_of(trainer, iterator, 1)
    ratios, full_seconds = [], []
    for index in range(num_rounds):
        pair = [(full, full_iterator), (bare, bare_iterator)]
        if index % 2:
            pair.reverse()
        times = {id(trainer): seconds_of(trainer, its, num_steps) for trainer, its in pair}
        full_seconds.append(times[id(full)])
        ratios.append(times[id(full)] / times[id(bare)])
    step_seconds = statistics.median(full_seconds)
    return {
        "config": config_name,
        "rows": num_rows,
        "step_seconds": step_seconds,
        "step_over_bare_step": statistics.median(ratios),
        "ratios": ratios,
        **ledger_costs(step_seconds),
        **checkpoint_costs(full, step_seconds),
    }


def ledger_costs(step_seconds):
    with tempfile.TemporaryDirectory() as folder:
        ledger = StepLedger(os.path.join(folder, "ledger.jsonl"))
        ledger.resume(0)
        figures = {"nats_per_token": 1.5, "gradient_norm": 0.5, "checksum": 1}
        begin = time.perf_counter()
        for step in range(1, 1001):
            ledger.append([StepRecord(step=step, **figures, status=StepStatus.APPLIED)])
        seconds = (time.perf_counter() - begin) / 1000
    return {"ledger_seconds_per_step": seconds, "ledger_share": seconds / step_seconds}


def checkpoint_costs(trainer, step_seconds):
    """What the loop waits for; the rest is done in the background."""
    period_steps = trainer.config.training.checkpoint_every_steps
    with (
        tempfile.TemporaryDirectory() as folder,
        BackgroundSaver(CheckpointStore(folder, {}, 1)) as saver,
    ):
        begin = time.perf_counter()
        saver.submit(trainer.step, trainer.state())
        waited = time.perf_counter() - begin
        saver.wait()
        whole = time.perf_counter() - begin
    return {
        "checkpoint_wait_seconds": waited,
        "checkpoint_whole_seconds": whole,
        "checkpoint_every_steps": period_steps,
        "checkpoint_share": waited / period_steps / step_seconds,
        "checkpoint_share_if_not_in_background": whole / period_steps / step_seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="enwik8_base", choices=sorted(NAMED_EXPERIMENTS))
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    figures = measure(arguments.config, arguments.rows, arguments.rounds, arguments.steps)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
