"""Files of an earlier version, read by the jobs of this one.

`golden/formats/` was made by `python -m tests.golden.make_formats FOLDER` with
the version that had all its source files apart, one class in each: data sets,
runs that were stopped in the middle, sessions, weights in the other format, a
study's figures and an export. `expected.json` has what that version made of
them, and its names of fields and variables. Files and numbers stay as they are:
a test that fails here is a file that a user cannot read any more.

What is bytes or integers is compared exactly: data sets, rows and checksums of
batches, tokens, names. Other processors and other orders of a sum round
otherwise, so nats are compared to 1e-6 of their value where weights are given,
and to 1e-4 where some twenty more steps of training have passed on the rounding.
On the machine that made the files every number was equal to the last bit.
"""

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from tests.golden import format_jobs as jobs
from tests.golden.format_names import fields, model_variables
from tests.golden.served_answers import served_answers
from tests.slow_case import slow_case

EXPECTED = json.loads(jobs.EXPECTED.read_text(encoding="utf-8"))
GIVEN_WEIGHTS, FURTHER_STEPS = 1e-6, 1e-4
VERIFIED = [
    *(f"data_{kind}" for kind in jobs.DATASETS),
    *(f"run_{name}" for name in jobs.RUNS),
    *(f"session_{name}.npz" for name in jobs.SESSIONS),
    "converted",
    "export/1",
]


@pytest.fixture
def folder(tmp_path):
    """A copy: jobs write into runs, and the kept files must stay as they are."""
    return shutil.copytree(jobs.FOLDER, tmp_path / "formats")


def started(server, folder, arguments, name):
    # TensorFlow's lines would stand in the middle of a text.
    paths = {"output": folder / f"{name}.out", "errors": folder / f"{name}.err"}
    return server.start(*jobs.in_folder(arguments, folder), **paths)


def printed(server, folder, arguments):
    name = f"job-{len(list(folder.glob('*.out')))}"
    process = started(server, folder, arguments, name)
    assert process.wait() == 0, (folder / f"{name}.err").read_text()
    return process.output()


def require_figures(found, expected, tolerance):
    found.pop("seconds", None)
    expected = expected | {"total_nats": float.fromhex(expected["total_nats"])}
    # A figure that came later is of a setting that is off.
    assert [found.pop(name) for name in found.keys() - expected.keys()] in ([], [None])
    assert found.keys() == expected.keys()
    require_close(found, expected, tolerance)


def require_close(found, expected, tolerance, where=""):
    """Fails unless all is equal, and fractions nearly so."""
    assert type(found) is type(expected), where
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            require_close(found[key], expected[key], tolerance, f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            require_close(one, other, tolerance, f"{where}/{index}")
    elif isinstance(expected, float):
        # A perplexity is the power of a loss, and so differs by more.
        factor = 100.0 if "perplexity" in where else 1.0
        close = math.isclose(found, expected, rel_tol=factor * tolerance, abs_tol=1e-12)
        assert close, f"{where}: {found} is not {expected}"
    else:
        assert found == expected, where


def require_ledger(lines, expected, num_exact):
    """Fails unless the same was read and nearly the same came out."""
    assert len(lines) == len(expected)
    assert lines[:num_exact] == expected[:num_exact]
    for line, other in zip(lines[num_exact:], expected[num_exact:], strict=True):
        found, wanted = (re.split(r"(?<=loss=)(\S+) norm=(\S+)", text) for text in (line, other))
        assert (found[0], found[3]) == (wanted[0], wanted[3])
        for one, figure in zip(found[1:3], wanted[1:3], strict=True):
            close = math.isclose(float.fromhex(one), float.fromhex(figure), rel_tol=FURTHER_STEPS)
            assert close, f"{line}\n{other}"


def ledger_of(workdir):
    return (workdir / "ledger.txt").read_text().splitlines()


def arrays_of(workdir):
    checkpoint = max((workdir / "checkpoints").glob("step-*"))
    arrays = json.loads((checkpoint / "manifest.json").read_text())["arrays"]
    return [[name, array["dtype"], array["shape"]] for name, array in sorted(arrays.items())]


def contents(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_no_file_names_a_machine():
    paths = re.compile(rb"/(?:home|root|tmp|usr|work|Users)/|\\Users\\")
    found = [name for name, content in contents(jobs.FOLDER).items() if paths.search(content)]
    assert found == []


def test_every_file_verifies(server, folder):
    processes = {
        name: started(server, folder, ["verify", name], name.replace("/", "_")) for name in VERIFIED
    }
    assert {name: process.wait() for name, process in processes.items()} == dict.fromkeys(
        VERIFIED, 0
    )


# Not of SentencePiece: another version of the library learns other bytes from the same text.
@pytest.mark.parametrize("kind", ["bytes", "characters", "words", slow_case("wordpiece")])
def test_texts_make_the_same_data_set(server, folder, kind):
    printed(server, folder, jobs.prepare_command(kind, "again"))
    assert contents(folder / "again") == contents(folder / f"data_{kind}")


@pytest.mark.parametrize("split", ["valid", slow_case("test")])
def test_runs_evaluate_as_before(server, folder, split):
    processes = {
        name: started(server, folder, jobs.evaluate_command(name, f"run_{name}", split), name)
        for name in jobs.RUNS
    }
    for name, process in processes.items():
        assert process.wait() == 0, (folder / f"{name}.err").read_text()
        expected = EXPECTED["runs"][name]["stopped"][split]
        require_figures(jobs.json_in(process.output()), expected, GIVEN_WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer_xl", "lstm", "qrnn", "averages"])
def test_a_stopped_run_is_finished_as_if_it_had_not_stopped(server, folder, name):
    workdir, expected = folder / f"run_{name}", EXPECTED["runs"][name]
    num_lines = len(ledger_of(workdir))
    assert arrays_of(workdir) == expected["arrays"]
    printed(server, folder, jobs.train_command(name, f"run_{name}"))
    require_ledger(ledger_of(workdir), expected["ledger"], num_lines)
    assert arrays_of(workdir) == expected["arrays"]
    figures = printed(server, folder, jobs.evaluate_command(name, f"run_{name}", "valid"))
    require_figures(jobs.json_in(figures), expected["finished"]["valid"], FURTHER_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", jobs.FIRST_STEPS)
def test_a_new_run_is_what_it_was(server, folder, name):
    printed(server, folder, jobs.train_command(name, "new"))
    expected = EXPECTED["first_steps"][name]
    require_ledger(ledger_of(folder / "new"), expected["ledger"], 1)
    assert arrays_of(folder / "new") == expected["arrays"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("transformer_xl", "random"),
        *(
            slow_case(name, kind)
            for name in jobs.GENERATED_RUNS
            for kind in (jobs.GENERATIONS if name == "transformer_xl" else ("top_p", "beams"))
            if (name, kind) != ("transformer_xl", "random")
        ),
    ],
)
def test_a_seed_writes_the_same_text(server, folder, name, kind):
    command = jobs.generate_command(name, jobs.GENERATIONS[kind])
    assert printed(server, folder, command) == EXPECTED["generated"][name][kind]


@pytest.mark.parametrize("name", ["transformer_xl", slow_case("averages")])
def test_a_session_is_continued(server, folder, name):
    text = printed(server, folder, jobs.session_command(name, jobs.NEXT_PROMPT))
    assert text == EXPECTED["sessions"][name]["continued"]


@pytest.mark.slow
@pytest.mark.parametrize("name", jobs.SESSIONS)
def test_a_session_is_begun_as_before(server, folder, name):
    (folder / f"session_{name}.npz").unlink()
    text = printed(server, folder, jobs.session_command(name, jobs.SESSIONS[name]))
    assert text == EXPECTED["sessions"][name]["first"]


@pytest.mark.slow
def test_converted_weights_are_read_and_written_as_before(server, folder):
    figures = printed(server, folder, jobs.evaluate_command("transformer_xl", "converted", "valid"))
    require_figures(jobs.json_in(figures), EXPECTED["converted"]["valid"], GIVEN_WEIGHTS)
    before = {name: contents(folder / name) for name in ("hugging_face", "converted")}
    for name, command in (
        ("hugging_face", jobs.TO_HUGGING_FACE),
        ("converted", jobs.FROM_HUGGING_FACE),
    ):
        shutil.rmtree(folder / name)
        printed(server, folder, command)
        assert contents(folder / name) == before[name]


def test_the_figures_of_a_study_make_the_same_table(server, folder):
    table = jobs.json_in(printed(server, folder, jobs.study_command("--only-table", "--json")))
    require_close(table, EXPECTED["study"], GIVEN_WEIGHTS)


def test_an_export_answers_as_before():
    require_close(served_answers(jobs.FOLDER / "export" / "1"), EXPECTED["served"], 1e-5)


@pytest.mark.slow
def test_a_run_is_exported_with_the_same_signatures_and_card(server, folder):
    kept = folder / "export" / "1"
    printed(server, folder, jobs.EXPORT)
    again = folder / "export" / "2"
    served, expected = served_answers(again), dict(EXPECTED["served"])
    # Later versions put signatures before those that were kept, one of which is the default.
    simple = {name: served["signatures"].pop(name) for name in ("complete", "perplexity")}
    assert served["signatures"].pop("serving_default") == simple["complete"]
    expected["signatures"] = dict(expected["signatures"])
    del expected["signatures"]["serving_default"]
    require_close(served, expected, 1e-5)
    added = {"README.md", "tokenizer.json"}
    added |= {"vocabulary/vocabulary.json", "vocabulary/vocabulary.txt"}
    assert contents(kept).keys() <= contents(again).keys()
    found = contents(again).keys() - contents(kept).keys()
    assert found == {f"assets.extra/{name}" for name in added}
    cards = [
        json.loads((version / "assets.extra" / "model_card.json").read_text())
        for version in (again, kept)
    ]
    assert cards[0]["serving"].pop("completion")["signature"] == "complete"
    for name in simple:
        cards[0]["serving"]["signatures"].remove(name)
    assert cards[0]["optimizer"].pop("layer_rate_decay") is None
    assert cards[0]["training"].pop("attention_kernel") == "auto"
    assert cards[0]["training"].pop("evaluate_tokens") is None
    later = (
        "freeze",
        "stop_after_evaluations",
        "average_weights_after_evaluations",
        "adapter_rank",
        "adapter_alpha",
    )
    for name in later:
        assert cards[0]["training"].pop(name) is None
    require_close(*cards, GIVEN_WEIGHTS)
    sums = (again / "SHA256SUMS").read_text().splitlines()
    for line in sums:
        digest, name = line.split("  ")
        assert hashlib.sha256((again / name).read_bytes()).hexdigest() == digest


@pytest.mark.slow
def test_an_export_is_served(folder):
    command = [sys.executable, "-m", "pipelines.command_line", "serve", "--export"]
    command += [str(folder / "export"), "--name", "kept", "--port", "0", "--grpc-port", "0"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True, env=environment) as process:
        try:
            port = next(
                match[1]
                for match in (re.match(r"REST: .*127\.0\.0\.1:(\d+)", s) for s in process.stdout)
                if match
            )
            inputs = {
                "texts": ["the old miller counts"],
                "previous_token_ids": [-1],
                "memory_states": np.zeros((1, 2, 7, 8)).tolist(),
                "memory_valid_length": [0],
            }
            body = {"signature_name": "score_text", "inputs": inputs}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/models/kept:predict", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)["outputs"]
        finally:
            process.terminate()
    expected = EXPECTED["served"]["answers"]["score_text"][0]
    num_tokens = expected["lengths"][0]
    assert answer["token_ids"] == [expected["token_ids"][0][:num_tokens]]
    require_close(answer["nll"][0], expected["nll"][0][:num_tokens], 1e-5)


def test_configurations_have_the_same_fields_and_defaults():
    for name, expected in EXPECTED["fields"].items():
        assert list(fields()[name].items()) == list(expected.items()), name


def test_models_have_the_same_variables():
    found = model_variables()
    assert {name: sorted(variables) for name, variables in found.items()} == {
        name: sorted(variables) for name, variables in EXPECTED["model_variables"].items()
    }
