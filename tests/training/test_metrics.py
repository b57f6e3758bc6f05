"""The log of figures: what a resumed run keeps of it, and damage that stops nothing."""

import json

import pytest

from txl_tf.storage.files import is_remote, list_folder
from txl_tf.training.metrics import MetricsLog


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


def test_numbers_are_exact_and_those_that_json_lacks_are_null(path):
    log = begun(path)
    values = {"a": 0.1 + 0.2, "b": float("nan"), "c": {"d": float("inf"), "e": 1}, "f": "\u00e4\n"}
    log.append(3, "train", values)
    (line,) = MetricsLog(path).read().lines
    assert line == {
        **{"step": 3, "run": "train", "a": 0.30000000000000004, "b": None},
        **{"c": {"d": None, "e": 1}, "f": "\u00e4\n"},
    }


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


def test_lines_of_a_finished_run_are_kept_and_the_last_figure_counts(path):
    write_steps(begun(path), [5, 10], evaluated={10})
    log = MetricsLog(path)
    log.continue_at_end()
    log.append(10, "valid", {"loss/perplexity": 2.0, "other": 1})
    merged = MetricsLog(path).read().merged()
    assert merged["valid"] == {10: {"loss/perplexity": 2.0, "other": 1}}
    assert list(merged["train"]) == [5, 10]


def test_parts_of_a_store_are_never_written_over(tmp_path):
    path = f"file://{tmp_path}/metrics"
    assert is_remote(path)
    for _ in range(3):
        log = MetricsLog(path)
        log.continue_at_end()
        log.append(7, "train", {"x": 1})
        log.flush_to_disk()
        log.append(7, "valid", {"x": 1})
    assert len(list_folder(path)) == 6
    assert steps_of(path) == [("train", 7), ("valid", 7)] * 3


DAMAGE = {
    "cut short": lambda lines: [*lines[:-1], lines[-1][:-9]],
    "a power cut": lambda lines: [*lines, b"\0" * 50],
    "no JSON": lambda lines: [lines[0], b"{]\n", *lines[1:]],
    "no object": lambda lines: [lines[0], b"[1]\n", *lines[1:]],
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
    found = MetricsLog(path).read()
    assert found.num_unreadable == (damage.startswith("no"))
    log = begun(path, 10)
    log.append(15, "train", {"loss/perplexity": 0.5})
    found = MetricsLog(path).read()
    assert found.lines[-1] == {"step": 15, "run": "train", "loss/perplexity": 0.5}
    assert found.num_unreadable == (damage.startswith("no"))
    if damage != "empty":
        assert [line["step"] for line in found.lines] == [5, 10, 15]
    for content in path.read_bytes().splitlines()[-1:]:
        json.loads(content)
