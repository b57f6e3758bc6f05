"""The training loop on one replica: losses, memory, reports and stops."""

import numpy as np
import pytest
import tensorflow as tf

from tests.small_models import (
    NUM_ROWS,
    SEGMENT_LENGTH,
    ToyBatches,
    largest_relative_difference,
    shared_trainer,
    toy_tokens,
    toy_trainer,
)
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


def test_losses_and_memory_equal_a_direct_chain_of_scores():
    batches = ToyBatches(toy_tokens(), NUM_ROWS, restarts=((2, 1), (4, 0), (4, 3)))
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


def test_loops_stop_where_the_caller_must_act_and_report_the_rate_of_their_last_step():
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


def test_a_loop_of_several_steps_does_the_same_and_reports_the_means():
    singly, together = shared_trainer(), toy_trainer(training={"steps_per_loop": 4})
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
    assert largest_relative_difference(singly.arrays(), together.arrays()) == 0.0


def test_mixed_bfloat16_trains_and_keeps_float32_weights():
    trainer = toy_trainer(training={"dtype_policy": "mixed_bfloat16"})
    # bfloat16 has 8 bits of mantissa.
    assert losses_of(trainer, 3) == pytest.approx(losses_of(shared_trainer(), 3), rel=2e-2)
    dtypes = {name: str(array.dtype) for name, array in trainer.arrays().items()}
    assert dtypes["memory/states/000"] == "bfloat16"
    assert dtypes["memory/valid_length"] == "int32"
    assert {dtype for name, dtype in dtypes.items() if name.startswith("model/")} == {"float32"}


def test_a_report_has_the_means_of_the_steps_that_were_applied():
    losses = (9, 1.0, StepStatus.APPLIED), (10, 1e3, StepStatus.SKIPPED_NON_FINITE)
    losses += ((11, 3.0, StepStatus.APPLIED),)
    records = tuple(
        StepRecord(
            step=step, nats_per_token=nats, gradient_norm=2 * nats, checksum=0, status=status
        )
        for step, nats, status in losses
    )
    values = {"num_tokens": 600, "learning_rate": 1e-3, "seconds": 1.5, "has_compiled": False}
    report = LoopReport(records=records, **values)
    assert (report.step, report.num_steps, report.num_skipped_steps) == (11, 3, 1)
    assert (report.nats_per_token, report.gradient_norm) == pytest.approx((2.0, 4.0))
    assert report.tokens_per_second == pytest.approx(400.0)
