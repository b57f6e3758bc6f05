"""A finished run continues with more steps and stays bound to its earlier ones."""

import shutil
from unittest import mock

import pytest

from tests.pipelines.small_experiments import TOY_DATA
from tests.pipelines.toy_run import (
    NUM_STEPS,
    ToyTrainer,
    contents_of,
    stopping_after,
    toy_run_experiment,
    toy_training,
    train,
)
from tests.small_models import last_state_of
from txl_tf.errors import DataDamagedError, MismatchError, PreemptedError
from txl_tf.model_folder import RunDescription, Workdir
from txl_tf.training.metrics_log import MetricsLog

MORE_STEPS = NUM_STEPS + 16


@pytest.fixture(autouse=True)
def toy_steps():
    with toy_training():
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    with toy_training():
        train(folder)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def extend(run, num_steps=MORE_STEPS):
    train(run, toy_run_experiment(num_steps=num_steps))


def test_the_extended_run_is_the_long_one_where_the_schedule_is_the_same(run, tmp_path):
    extend(run)
    extend(tmp_path / "long")
    assert last_state_of(run) == last_state_of(tmp_path / "long")
    described = Workdir(run).describe()
    assert described.extended_at == (NUM_STEPS,)
    assert described.experiment.training.num_steps == MORE_STEPS
    # The same command again changes nothing, fewer steps are refused, and more extend it again.
    before = contents_of(run)
    extend(run)
    for num_steps in (NUM_STEPS, MORE_STEPS - 1, 1):
        with pytest.raises(MismatchError, match=f"has {MORE_STEPS} steps, and cannot"):
            extend(run, num_steps)
    assert contents_of(run) == before
    extend(run, MORE_STEPS + 4)
    assert Workdir(run).describe().extended_at == (NUM_STEPS, MORE_STEPS)


@pytest.mark.parametrize("num_steps", range(NUM_STEPS + 2, MORE_STEPS, 4))
def test_an_extension_that_is_killed_resumes_to_the_same_bits(finished, tmp_path, num_steps):
    runs = [shutil.copytree(finished, tmp_path / name) for name in ("killed", "unbroken")]
    with pytest.raises(ZeroDivisionError), stopping_after(num_steps, ZeroDivisionError):
        extend(runs[0])
    for run in runs:
        extend(run)
    assert last_state_of(runs[0]) == last_state_of(runs[1])


def test_a_stop_after_the_last_step_leaves_its_evaluation_to_the_next_process(finished, tmp_path):
    def must_stop(trainer):
        return trainer.step == NUM_STEPS

    run = tmp_path / "run"
    with mock.patch.object(ToyTrainer, "must_stop", must_stop), pytest.raises(PreemptedError):
        train(run)
    train(run)
    logs = [MetricsLog(folder / "metrics.jsonl").read().lines for folder in (finished, run)]
    expected, steps = ([line["step"] for line in log if "result" in line] for log in logs)
    assert steps == expected
    assert steps[-1] == NUM_STEPS


def test_an_unfinished_run_is_not_extended(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ZeroDivisionError), stopping_after(NUM_STEPS - 4, ZeroDivisionError):
        train(run)
    with pytest.raises(MismatchError, match=r"Finish the run first, with training\.num_steps"):
        extend(run)
    train(run)
    extend(run)


def test_steps_of_before_are_not_done_again_with_the_longer_schedule(run, tmp_path):
    before = shutil.copytree(run, tmp_path / "before")
    for data in (run / "checkpoints" / f"step-{NUM_STEPS:08d}").glob("state.data"):
        data.write_bytes(b"")
    described = (run / "run.json").read_bytes()
    message = f"extended at step {NUM_STEPS}(.|\n)*"
    with pytest.raises(DataDamagedError, match=f"{message}Finish the run first"):
        extend(run)
    assert (run / "run.json").read_bytes() == described
    train(run)
    extend(run)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(before / "checkpoints", run / "checkpoints")
    shutil.rmtree(run / "checkpoints" / f"step-{NUM_STEPS:08d}")
    # Without the ledger a run may go back, yet not to the other schedule.
    (run / "ledger.jsonl").unlink()
    with pytest.raises(DataDamagedError, match=f"{message}Restore"):
        extend(run)


def test_extensions_are_part_of_the_description_and_wrong_ones_are_refused():
    experiment = toy_run_experiment()
    data = {**TOY_DATA, "vocabulary_size": experiment.model.vocabulary_size}
    values = {"experiment": experiment.to_dict(), "data": data}
    description = RunDescription.from_dict({**values, "extended_at": [4, 8]})
    assert description.extended_at == (4, 8)
    assert description.identity()["training"]["num_steps"] == 4
    for wrong in ([8, 4], [NUM_STEPS], 4):
        with pytest.raises(ValueError, match="extended_at"):
            RunDescription.from_dict({**values, "extended_at": wrong})


def test_an_extension_may_have_another_rate_and_keeps_the_state(run, tmp_path):
    lower = toy_run_experiment(num_steps=MORE_STEPS).with_overrides(
        ["optimizer.learning_rate=0.0001"]
    )
    with pytest.raises(MismatchError, match=r"learning_rate(.|\n)*--init-from(.|\n)*more steps"):
        train(run, lower.with_overrides([f"training.num_steps={NUM_STEPS}"]))
    with pytest.raises(ZeroDivisionError), stopping_after(NUM_STEPS + 6, ZeroDivisionError):
        train(run, lower)
    train(run, lower)
    described = Workdir(run).describe()
    assert described.experiment.optimizer.learning_rate == 0.0001
    assert described.identity()["optimizer"]["learning_rate"] == described.first_learning_rate
    # The toy steps do not depend on the rate: everything else continues.
    extend(tmp_path / "long")
    assert last_state_of(run) == last_state_of(tmp_path / "long")
