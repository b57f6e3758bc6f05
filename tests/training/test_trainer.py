"""One replica: what a step trains on, what the loop reports and where it stops."""

import gc
import math
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.toy_batches import (
    SEGMENT_LENGTH,
    VOCABULARY_SIZE,
    ToyBatches,
    largest_relative_difference,
    toy_tokens,
)
from tests.toy_trainers import NUM_ROWS, shared_trainer, toy_trainer
from txl_tf.models.memory import Memory
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus


def deep_trainer_of(batches=None):
    """With two layers: the second one's memory depends on what the first remembers."""
    return shared_trainer(batches, model={"num_layers": 2})


def losses_of(trainer, num_steps):
    reports = trainer.run()
    return [next(reports).nats_per_token for _ in range(num_steps)]


def emptied(model, memory, rows):
    """The memory with some rows as `initial_memory` makes them."""
    empty = model.initial_memory(NUM_ROWS)
    return Memory(
        tuple(
            tf.where(rows[:, None, None], new, old)
            for new, old in zip(empty.states, memory.states, strict=True)
        ),
        tf.where(rows, empty.valid_length, memory.valid_length),
    )


@pytest.mark.parametrize("restarts", [slow_case(()), ((2, 1), (4, 0), (4, 3))])
def test_losses_and_memory_are_those_of_a_direct_chain_of_scores(restarts):
    batches = ToyBatches(toy_tokens(), NUM_ROWS, restarts=restarts)
    trainer = deep_trainer_of(batches)
    reports = trainer.run()
    memory = trainer.model.initial_memory(NUM_ROWS)
    for step in range(6):
        batch = batches.batch(step)
        memory = emptied(trainer.model, memory, batch["start_of_stream"])
        nll, memory = trainer.model.score(batch["token_ids"], batch["target_ids"], memory)
        assert next(reports).nats_per_token == pytest.approx(np.mean(nll), rel=1e-6), step
        trained = trainer.replica_memory.to_global()
        valid_length = memory.valid_length.numpy()
        np.testing.assert_array_equal(trained["valid_length"], valid_length)
        for layer, states in enumerate(memory.states):
            for row, filled in enumerate(valid_length):
                remembered = trained[f"states/{layer:03d}"][row, -filled:]
                np.testing.assert_allclose(remembered, states[row, -filled:], atol=1e-5)


@pytest.mark.slow
def test_a_text_that_repeats_itself_is_learnt():
    counting = np.arange(2000, dtype="int32") % VOCABULARY_SIZE
    trainer = toy_trainer(
        ToyBatches(counting, NUM_ROWS),
        training={"num_steps": 200, "steps_per_loop": 20},
        optimizer={"learning_rate": 3e-2, "warmup_steps": 10},
    )
    losses = [report.nats_per_token for report in trainer.run()]
    assert losses[0] > 0.5
    assert losses[-1] < 0.1  # every token follows from the one before


def test_loops_stop_where_the_caller_must_act_and_tell_the_next_learning_rate():
    trainer = toy_trainer(
        training={
            "num_steps": 15,
            "steps_per_loop": 4,
            "checkpoint_every_steps": 6,
            "evaluate_every_steps": 5,
        },
        optimizer={
            "learning_rate": 0.01,
            "warmup_steps": 5,
            "final_learning_rate_fraction": 0.2,
        },
    )
    assert trainer.step == 0
    reports = list(trainer.run())
    assert [report.step for report in reports] == [4, 5, 6, 8, 10, 12, 15]
    assert [report.num_steps for report in reports] == [4, 1, 1, 2, 2, 2, 3]
    tokens_per_step = NUM_ROWS * SEGMENT_LENGTH
    assert [report.num_tokens for report in reports] == [
        tokens_per_step * report.num_steps for report in reports
    ]
    assert [report.has_compiled for report in reports] == [True] + [False] * 6
    assert trainer.step == 15
    assert list(trainer.run()) == []  # nothing is left to do
    rates = {report.step: report.learning_rate for report in reports}
    half = 0.002 + 0.008 * 0.5
    assert [rates[step] for step in (4, 5, 10, 15)] == pytest.approx([0.008, 0.01, half, 0.002])


@pytest.mark.parametrize("is_stopped", [slow_case(False), True])
def test_the_data_is_let_go_with_the_trainer_and_not_before_the_caller_can_save(is_stopped):
    """To drop it may take a minute, which a machine that is being taken away does not have."""
    trainer = toy_trainer(training={"num_steps": 3})
    iterators = []

    class WatchedBatches:
        def __iter__(self):
            iterator = iter(batches)
            iterators.append(weakref.ref(iterator))
            return iterator

    batches = trainer._batches()
    trainer._batches = WatchedBatches
    for report in trainer.run():
        if is_stopped and report.step == 2:
            trainer.request_stop()
    assert trainer.step == (2 if is_stopped else 3)
    (held,) = iterators
    assert held() is not None
    del trainer
    gc.collect()
    assert held() is None


def test_a_loop_of_several_steps_does_the_same_and_reports_the_means():
    changes = {"optimizer": {"clip_norm": 0.5}}
    singly, together = (
        toy_trainer(**changes),
        toy_trainer(training={"steps_per_loop": 4}, **changes),
    )
    reports = singly.run()
    singles = [next(reports) for _ in range(8)]
    loops = together.run()
    for first in (0, 4):
        loop = next(loops)
        four = singles[first : first + 4]
        mean_loss = np.mean([single.nats_per_token for single in four])
        mean_norm = np.mean([single.gradient_norm for single in four])
        assert loop.nats_per_token == pytest.approx(mean_loss, rel=1e-6)
        assert loop.gradient_norm == pytest.approx(mean_norm, rel=1e-6)
        assert mean_norm > 0.5  # the norm before clipping
    assert largest_relative_difference(singly.state(), together.state()) == 0.0


@pytest.mark.slow
def test_compiled_and_uncompiled_steps_agree():
    compiled, uncompiled = toy_trainer(training={"jit_compile": True}), shared_trainer()
    for one, other in zip(compiled.run(), uncompiled.run(), strict=True):
        assert one.nats_per_token == pytest.approx(other.nats_per_token, rel=1e-4)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-4)
    assert largest_relative_difference(compiled.state(), uncompiled.state()) <= 1e-4


def test_mixed_bfloat16_trains_and_keeps_float32_weights():
    trainer = toy_trainer(training={"dtype_policy": "mixed_bfloat16"})
    # bfloat16 has 8 bits of mantissa.
    assert losses_of(trainer, 3) == pytest.approx(losses_of(shared_trainer(), 3), rel=2e-2)
    dtypes = {name: str(array.dtype) for name, array in trainer.state().items()}
    assert dtypes["memory/states/000"] == "bfloat16"
    assert dtypes["memory/valid_length"] == "int32"
    assert {dtype for name, dtype in dtypes.items() if name.startswith("model/")} == {"float32"}


def test_a_report_turns_its_figures_into_others():
    def record_of(step, nats_per_token, status):
        return StepRecord(
            step=step,
            nats_per_token=nats_per_token,
            gradient_norm=2.0 * nats_per_token,
            checksum=0,
            status=status,
        )

    report = LoopReport(
        records=(
            record_of(9, math.log(7.0) - 1.0, StepStatus.APPLIED),
            record_of(10, 1000.0, StepStatus.SKIPPED_SPIKE),
            record_of(11, math.log(7.0) + 1.0, StepStatus.APPLIED),
        ),
        num_tokens=600,
        learning_rate=1e-3,
        seconds=1.5,
        has_compiled=False,
    )
    assert (report.step, report.num_steps, report.num_skipped_steps) == (11, 3, 1)
    # What was skipped does not count.
    assert report.nats_per_token == pytest.approx(math.log(7.0))
    assert report.gradient_norm == pytest.approx(2.0 * math.log(7.0))
    assert report.tokens_per_second == pytest.approx(400.0)
