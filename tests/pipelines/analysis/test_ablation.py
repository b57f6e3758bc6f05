"""`txl analyze ablation`: trains each variant of a study and prints the table."""

import json
import math
import signal
import subprocess
import sys
import time

import pytest

from pipelines.analysis.ablation import AblationTable
from pipelines.analysis.ablation_findings import (
    ENCODING,
    FULL_LOSS,
    LONGER,
    RECURRENCE,
    RECURRENCE_AT_EQUAL_MEMORY,
    RowSummary,
    SampleStatistics,
    findings,
)
from pipelines.analysis.ablation_runs import AblationResult
from pipelines.analysis.ablation_study import load_study
from tests.pipelines.conftest import EXPERIMENT
from tests.pipelines.txl_process import TIMEOUT_SECONDS, command, environment, run_txl
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.evaluation.result import MeasuredLoss

RUNS = [f"{row}/seed-{seed}" for seed in (1, 2) for row in ("with", "without")]
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


def stop_in_the_second_run(arguments, out):
    """Gives the command, and asks it to stop once the second run has trained a little."""
    process = subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    ledger, deadline = out / RUNS[1] / "run" / "ledger.txt", time.monotonic() + TIMEOUT_SECONDS
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
    exit_code, errors = stop_in_the_second_run(arguments, out)
    assert exit_code == 75, errors
    assert "The study was stopped: the process received SIGTERM." in errors
    first = (out / RUNS[0] / "log.txt").read_bytes(), (out / RUNS[0] / "result.json").read_bytes()
    assert not (out / RUNS[1] / "result.json").exists()
    assert not (out / RUNS[2]).exists()

    finished = run_txl(*arguments, "--jobs", "2")
    assert finished.returncode == 0, finished.stderr
    assert "1 of 4 runs are finished." in finished.stderr
    # The finished run was not even opened, the other one went on from where it was stopped.
    assert first == tuple(
        (out / RUNS[0] / name).read_bytes() for name in ("log.txt", "result.json")
    )
    assert "Going on from the checkpoint of step" in (out / RUNS[1] / "log.txt").read_text()
    for run in RUNS:
        assert steps_of((out / run / "run" / "ledger.txt").read_text()) == [
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
        (["--run", "with/seed-9"], 2, "There are: with/seed-1"),
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


ROWS = [
    {"name": "paper"},
    {"name": "shaw", "position_encoding": "shaw"},
    {"name": "half", "loss_positions": "last_half"},
    {"name": "without", "recurrence": False},
    {"name": "equal", "recurrence": False, "equal_memory_to": "paper"},
]
# Perplexities at the length of training, 16, and at 8, 32 and 64.
CURVES = {
    "paper": (27.0, 28.0, 26.0, 26.01),
    "shaw": (28.0, 29.0, 28.5, 29.0),
    "half": (28.5, 29.5, 28.0, 28.2),
    "without": (30.0, 31.0, 29.9, 30.5),
    "equal": (29.0, 30.0, 28.9, 29.5),
}
SEEDS = (1, 2, 3)


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.json"
    lengths = {"memory_lengths": [8, 32, 64], "window_lengths": [8, 32, 64]}
    path.write_text(
        json.dumps({"experiment": EXPERIMENT, "seeds": SEEDS, "rows": ROWS, "evaluation": lengths})
    )
    return load_study(str(path), [])


def loss_of(perplexity):
    return MeasuredLoss(
        total_nats=100 * math.log(perplexity), num_tokens=100, num_bytes=300.0, seconds=1.0
    )


def result_of(run, curve, shift=0.0):
    lengths = run.attention_lengths()
    figures = {length: loss_of(value + shift) for length, value in zip(lengths, curve, strict=True)}
    return AblationResult(settings=run.settings({}), figures=figures)


def summaries_of(study, shifts, curves=CURVES):
    """Rows whose seeds lie `shifts` beside their curve."""
    return [
        RowSummary.of(
            {
                run.seed: (run, result_of(run, curves[row.name], shift))
                for run, shift in zip(
                    (run for run in study.runs() if run.row == row), shifts, strict=False
                )
            }
        )
        for row in study.rows
    ]


def found(study, claim, shifts=(-0.1, 0.0, 0.1), curves=CURVES):
    return [each for each in findings(summaries_of(study, shifts, curves)) if each.claim == claim]


def test_mean_deviation_and_interval_are_those_of_the_textbook():
    sample = SampleStatistics([1.0, 2.0, 6.0])
    assert sample.mean == pytest.approx(3.0)
    assert sample.deviation == pytest.approx(math.sqrt(7.0))
    # 4.303 is the quantile of two degrees of freedom.
    half = 4.303 * math.sqrt(7.0 / 3.0)
    assert sample.interval == pytest.approx((3.0 - half, 3.0 + half))
    assert SampleStatistics([1.0] * 50).interval == pytest.approx((1.0, 1.0))
    assert SampleStatistics([5.0]).interval is None


def test_the_attention_length_is_the_shortest_that_reaches_the_best(study):
    paper = summaries_of(study, (0.0, 0.0, 0.0))[0]
    assert paper.initial.mean == pytest.approx(27.0)
    assert paper.best.mean == pytest.approx(26.0)
    assert paper.sufficient_length.length == 32
    # 64 is the best by less than the tolerance, and 32 reaches that.
    curves = {**CURVES, "paper": (27.0, 28.0, 26.01, 26.0)}
    paper = summaries_of(study, (0.0, 0.0, 0.0), curves)[0]
    assert paper.best_length.length == 64
    assert paper.sufficient_length.length == 32


def test_every_comparison_differs_in_one_thing(study):
    assert [each.conditions for each in found(study, RECURRENCE)] == [
        "transformer_xl, full loss, T = 16"
    ]
    assert [each.conditions for each in found(study, ENCODING)] == [
        "than shaw, recurrence, full loss, T = 16"
    ]
    assert [each.conditions for each in found(study, FULL_LOSS)] == [
        "recurrence, transformer_xl, T = 16"
    ]
    assert len(found(study, LONGER)) == len(ROWS)
    recurrence = found(study, RECURRENCE)[0]
    assert recurrence.before.mean == pytest.approx(29.9)
    assert recurrence.after.mean == pytest.approx(26.0)


def test_differences_are_paired_by_seed(study):
    """Seeds that differ alike in both rows leave no spread in the difference."""
    recurrence = found(study, RECURRENCE, shifts=(-5.0, 0.0, 5.0))[0]
    assert recurrence.after.deviation == pytest.approx(5.0)
    assert recurrence.difference.deviation == pytest.approx(0.0, abs=1e-9)
    assert recurrence.verdict == "yes"


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((4.0, 4.1, 4.2), "yes"),
        ((-4.0, -4.1, -4.2), "no"),
        ((4.0, 0.1, -2.0), "within the spread"),
        # All three positive is not enough where they are that far apart.
        ((0.1, 1.0, 4.0), "within the spread"),
        ((4.0,), "one seed"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(study, differences, verdict):
    runs = {(run.row.name, run.seed): run for run in study.runs()}

    def summary(name, values):
        pairs = zip(SEEDS, values, strict=False)
        return RowSummary.of(
            {
                seed: (runs[name, seed], result_of(runs[name, seed], [value] * 4))
                for seed, value in pairs
            }
        )

    rows = [
        summary("paper", [20.0] * len(differences)),
        summary("without", [20.0 + difference for difference in differences]),
    ]
    finding = next(each for each in findings(rows) if each.claim == RECURRENCE)
    assert finding.verdict == verdict
    assert verdict in finding.describe()


def test_longer_attention_is_held_against_that_of_training(study):
    by_row = dict(zip((row["name"] for row in ROWS), found(study, LONGER), strict=True))
    assert by_row["paper"].difference.mean == pytest.approx(1.0)
    assert by_row["shaw"].difference.mean == pytest.approx(-0.5)
    assert (by_row["paper"].verdict, by_row["shaw"].verdict) == ("yes", "no")


def test_what_the_paper_found_stands_beside_what_is_found(study):
    assert [each.published for each in found(study, RECURRENCE)] == [True]
    longer = dict(zip((row["name"] for row in ROWS), found(study, LONGER), strict=True))
    assert longer["paper"].published
    assert longer["equal"].published
    assert longer["shaw"].published is False
    assert longer["shaw"].describe().endswith(": no; published: no")
    equal = found(study, RECURRENCE_AT_EQUAL_MEMORY)
    assert [(each.verdict, each.published) for each in equal] == [("yes", True)]


def test_seeds_that_are_not_finished_are_left_out_of_pairs(study):
    rows = summaries_of(study, (0.0, 0.0, 0.0))
    rows[0] = summaries_of(study, (0.0,))[0]
    recurrence = next(each for each in findings(rows) if each.claim == RECURRENCE)
    assert recurrence.difference.count == 1


def test_the_table_has_the_figures_in_all_three_forms(study):
    table = AblationTable(summaries_of(study, (-0.1, 0.0, 0.1)))
    for text in (table.text(), table.markdown()):
        paper = next(line for line in text.splitlines() if "Dai et al." in line)
        assert "27.00 +- 0.10" in paper
        assert "26.00 +- 0.10" in paper
    values = json.loads(json.dumps(table.to_dict()))
    row = values["rows"][0]
    assert row["perplexity_initial"]["per_seed"] == pytest.approx([26.9, 27.0, 27.1])
    assert row["attention_length"] == 32
    assert len(row["curve"]) == 4
    assert {finding["claim"] for finding in values["findings"]} >= {RECURRENCE, ENCODING, LONGER}


def test_figures_are_read_as_they_were_written(study, tmp_path):
    run = study.runs()[0]
    written = result_of(run, CURVES["paper"])
    written.write(tmp_path, run)
    read = AblationResult.read(tmp_path, run, {})
    assert read.figures == written.figures
    assert read.missing(run) == []


def test_figures_of_other_settings_are_refused(study, tmp_path):
    run = study.runs()[0]
    result_of(run, CURVES["paper"]).write(tmp_path, run)
    with pytest.raises(MismatchError, match=r"data\.fingerprint"):
        AblationResult.read(tmp_path, run, {"fingerprint": "another"})


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 1}', '{"format_version": 9}'])
def test_a_damaged_file_of_figures_is_refused(study, tmp_path, content):
    run = study.runs()[0]
    (tmp_path / run.name).mkdir(parents=True)
    (tmp_path / run.name / "result.json").write_text(content)
    with pytest.raises(DataDamagedError, match=r"cannot be read|JSON"):
        AblationResult.read(tmp_path, run, {})
