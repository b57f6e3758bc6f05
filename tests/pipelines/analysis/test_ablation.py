"""`txl analyze ablation`: a small grid to its table, stopped on the way."""

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.pipelines.conftest import EXPERIMENT
from tests.pipelines.txl_process import TIMEOUT_SECONDS, command, environment, run_txl
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer

CELLS = [f"{row}/seed-{seed}" for seed in (1, 2) for row in ("with", "without")]
NUM_STEPS = 60
STUDY = {
    "experiment": {
        **EXPERIMENT,
        "training": {**EXPERIMENT["training"], "num_steps": NUM_STEPS},
    },
    "seeds": [1, 2],
    "rows": [{"name": "with"}, {"name": "without", "recurrence": False}],
    "evaluation": {
        "num_tokens": 300,
        "memory_lengths": [24],
        "window_lengths": [24],
        "window_stride": 8,
    },
}


def arguments_of(study, data_folder, out):
    return ["analyze", "ablation", "--study", study, "--data", data_folder, "--out", out]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablation") / "data"
    lines = [f"{n} and {n * 7 % 101} make {n + n * 7 % 101}\n" for n in range(900)]
    splits = {"train": ["".join(lines).encode()], "valid": ["".join(lines[:50]).encode()]}
    prepare_dataset(splits, ByteTokenizer(), str(folder), "counting")
    return folder


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "study.json"
    path.write_text(json.dumps(STUDY))
    return path


def steps_of(ledger):
    return [int(line.split()[0].removeprefix("step=")) for line in ledger.splitlines()[1:]]


def stop_in_the_second_cell(arguments, out):
    """Gives the command, and asks it to stop once the second cell has trained a little."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    ledger, deadline = out / CELLS[1] / "run" / "ledger.txt", time.monotonic() + TIMEOUT_SECONDS
    while not (ledger.exists() and len(ledger.read_text().splitlines()) > 5):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    return process.returncode, errors.decode()


@pytest.mark.slow
def test_a_study_that_was_stopped_goes_on_and_trains_nothing_twice(
    study_file, data_folder, tmp_path
):
    out = tmp_path / "out"
    arguments = arguments_of(study_file, data_folder, out)
    exit_code, errors = stop_in_the_second_cell(arguments, out)
    assert exit_code == 75, errors
    assert "The study was stopped: the process received SIGTERM." in errors
    first = (out / CELLS[0] / "log.txt").read_bytes(), (out / CELLS[0] / "result.json").read_bytes()
    assert not (out / CELLS[1] / "result.json").exists()
    assert not (out / CELLS[2]).exists()

    finished = run_txl(*arguments, "--jobs", "2")
    assert finished.returncode == 0, finished.stderr
    assert "1 of 4 runs are finished." in finished.stderr
    # The finished cell was not even opened, the other one went on from where it was stopped.
    assert first == tuple(
        (out / CELLS[0] / name).read_bytes() for name in ("log.txt", "result.json")
    )
    assert "Going on from the checkpoint of step" in (out / CELLS[1] / "log.txt").read_text()
    for cell in CELLS:
        assert steps_of((out / cell / "run" / "ledger.txt").read_text()) == [
            *range(1, NUM_STEPS + 1)
        ]
    check_table(out, finished.stdout)

    again = run_txl(*arguments, "--only-table")
    assert again.returncode == 0, again.stderr
    assert again.stdout == finished.stdout

    other = run_txl(*arguments, "--set", "model.dropout=0.2")
    assert other.returncode == 78
    assert "model.dropout (stored 0.1, now 0.2)" in other.stderr


def check_table(out, printed):
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["with", "without"]
    for row in rows:
        assert row["seeds"] == [1, 2]
        assert row["perplexity_best"]["mean"] <= row["perplexity_initial"]["mean"] < 256
        # Another seed is another run.
        assert len(set(row["perplexity_initial"]["per_seed"])) == 2
        assert f"{row['perplexity_initial']['mean']:.2f}" in printed
    assert [point["length"] for point in rows[0]["curve"]] == [16, 24]
    assert [point["length"] for point in rows[1]["curve"]] == [16, 24]
    assert "recurrence helps, transformer_xl, full loss, T = 16:" in printed
    assert (out / "table.md").read_text().startswith("| remark | recurrence |")


def test_only_the_processes_that_train_start_tensorflow(study_file, tmp_path, data_folder):
    arguments = [str(each) for each in arguments_of(study_file, data_folder, tmp_path / "out")]
    program = (
        "import sys; from pipelines.command_line import main; "
        f"print(main({[*arguments, '--only-table']}), {{'tensorflow', 'keras'}} & set(sys.modules))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert finished.stdout.strip() == "66 set()", finished.stderr


@pytest.mark.parametrize(
    ("changes", "exit_code", "message"),
    [
        (["--jobs", "0"], 2, "--jobs 0"),
        (["--cell", "with/seed-9"], 2, "There are: with/seed-1"),
        (["--out", "gs://bucket/study"], 2, "local folder"),
        (["--set", "model.depth=2"], 2, "model.depth"),
        (["--data", "nowhere"], 66, "nowhere"),
        (["--only-table"], 66, "No run of the study is finished yet."),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_trained(
    study_file, tmp_path, data_folder, changes, exit_code, message, capsys
):
    from pipelines.command_line import main

    arguments = arguments_of(str(study_file), str(data_folder), str(tmp_path / "out"))
    assert main([*arguments, *changes]) == exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
