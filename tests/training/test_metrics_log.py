"""Log of figures: exact numbers, resumed runs and damage."""

import pytest

from txl_tf.storage.files import list_folder
from txl_tf.training.metrics_log import MetricsLog


@pytest.fixture(params=["local", "store"])
def path(request, tmp_path):
    return f"{tmp_path}/metrics.jsonl" if request.param == "local" else f"file://{tmp_path}/metrics"


def begun(path, step=0, evaluated_step=-1):
    log = MetricsLog(path)
    log.resume(step, evaluated_step)
    return log


def write_steps(log, steps, evaluated=()):
    """A line for each step, and after some of them one of an evaluation; checkpoints of tens."""
    for step in steps:
        log.append(step, "train", {"loss/perplexity": step / 3})
        if step % 10 == 0:
            log.flush_to_disk()
        if step in evaluated:
            log.append(step, "valid", {"loss/perplexity": step / 7})


def steps_of(path):
    return [(line["run"], line["step"]) for line in MetricsLog(path).read().lines]


def test_numbers_are_exact_and_nan_and_infinity_are_null(path):
    values = {"a": 0.1 + 0.2, "b": float("nan"), "c": {"d": float("inf"), "e": 1}, "f": "\u00e4\n"}
    begun(path).append(3, "train", values)
    (line,) = MetricsLog(path).read().lines
    nulled = {**values, "b": None, "c": {"d": None, "e": 1}}
    assert line == {"step": 3, "run": "train", **nulled}


def test_a_resumed_run_repeats_no_line(path):
    write_steps(begun(path), range(5, 40, 5), evaluated={10, 20, 30})
    # The checkpoint of step 20 was saved before the evaluation of that step.
    log = begun(path, 20, evaluated_step=10)
    expected = [("train", 5), ("train", 10), ("valid", 10), ("train", 15), ("train", 20)]
    assert steps_of(path) == expected
    log.append(20, "valid", {"loss/perplexity": 1.0})
    write_steps(log, range(25, 35, 5), evaluated={30})
    again = [("valid", 20), ("train", 25), ("train", 30), ("valid", 30)]
    assert steps_of(path) == [*expected, *again]
    # One after the evaluation keeps it.
    begun(path, 20, evaluated_step=20)
    assert steps_of(path) == [*expected, ("valid", 20)]


def test_lines_of_a_finished_run_are_kept(tmp_path):
    path = f"file://{tmp_path}/metrics"
    for number in range(3):
        log = begun(path, 7, evaluated_step=7)
        log.append(7, "train", {"x": number})
        log.flush_to_disk()
        log.append(7, "valid", {"y": number, "z": 1})
    # Parts of a store are never written over.
    assert len(list_folder(path)) == 6
    assert steps_of(path) == [("train", 7), ("valid", 7)] * 3


DAMAGE = {
    "cut short": lambda lines: [*lines[:-1], lines[-1][:-9]],
    "a power cut": lambda lines: [*lines, b"\0" * 50],
    "no JSON": lambda lines: [lines[0], b"{]\n", *lines[1:]],
    "no step": lambda lines: [lines[0], b'{"run": "train"}\n', *lines[1:]],
    "no UTF-8": lambda lines: [lines[0], b"\xff\n", *lines[1:]],
    "empty": lambda lines: [],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_never_stops_a_run(damage, tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(begun(path), [5, 10, 15])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(DAMAGE[damage](lines)))
    assert MetricsLog(path).read().num_unreadable == (damage.startswith("no"))
    begun(path, 10).append(15, "train", {"loss/perplexity": 0.5})
    log = MetricsLog(path).read()
    assert log.lines[-1] == {"step": 15, "run": "train", "loss/perplexity": 0.5}
    assert log.num_unreadable == (damage.startswith("no"))
    if damage != "empty":
        assert [line["step"] for line in log.lines] == [5, 10, 15]
