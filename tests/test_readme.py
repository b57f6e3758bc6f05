"""Pages: their links and claims about the repository are true, and the blocks of the README run."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.convert.goldens import FOLDER as GOLDEN
from tests.distribution.two_workers import free_ports
from tests.rooms import ALLOWED, ROOMS
from tests.source_tree import ROOT, SOURCES
from txl_tf.errors import JobError

DOCUMENTS = (
    ".github/CONTRIBUTING.md",
    ".github/SECURITY.md",
    "README.md",
    "BUILD_NOTES.md",
    "findings/README.md",
    "pipelines/EXAMPLES.md",
    "pipelines/README.md",
    "pipelines/analysis/RESULTS.md",
    "pipelines/launch/README.md",
    "txl_tf/HOW_IT_WORKS.md",
    "txl_tf/README.md",
    "txl_tf/serving/README.md",
)
INSTALL_AND_RUN = "python -m pip install -c .ci/constraints.txt -e . && txl quickstart"
INSTALL_AND_TEST = "python -m pip install -c .ci/constraints.txt -e '.[test]' && python -m pytest"
# `.ci/run` runs the second command, and the tests of `quickstart` run the first.
RUN_ELSEWHERE = (INSTALL_AND_RUN, INSTALL_AND_TEST)
MOST_WORDS, MOST_LINES = 2000, 240

# Options that shorten a training from minutes to seconds.
SMALL = (
    "--set model.num_layers=1 --set model.hidden_dim=32 --set model.head_dim=8 "
    "--set model.intermediate_dim=32 --set training.num_steps=20 "
    "--set training.checkpoint_every_steps=10 --set optimizer.warmup_steps=5"
)
# Beginnings of blocks that run until they are ended, with the port on which they answer.
SERVERS = {"tensorboard": 6006, "txl serve": 8000}


def blocks(path):
    """Returns the fenced blocks of a document, each as language and text, in their order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / path).read_text(), re.M | re.S)


def test_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= MOST_WORDS
    assert len(text.splitlines()) <= MOST_LINES


def test_both_commands_are_in_the_readme_and_the_second_in_the_checks():
    commands = [code.strip() for language, code in blocks("README.md") if language == "sh"]
    assert set(RUN_ELSEWHERE) <= set(commands)
    assert f"\n{INSTALL_AND_TEST} --durations=20\n" in (ROOT / ".ci" / "run").read_text()


def test_documents_name_every_job_and_no_other():
    from pipelines.command_line import JOBS

    text = "".join((ROOT / path).read_text() for path in DOCUMENTS if path != "BUILD_NOTES.md")
    named = set(re.findall(r"\btxl ([a-z]+)\b", text)) - {"help"}
    assert named == set(JOBS)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_links_lead_to_files(path):
    text = re.sub(r"^```.*?^```$", "", (ROOT / path).read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text):
        if "://" not in target:
            assert (ROOT / path).parent.joinpath(target).exists(), target


def test_tables_of_files_name_existing_files():
    tree = (ROOT / "txl_tf/README.md").read_text().split("## Modules")[1].split("Imports run")[0]
    names = re.findall(r"^ {6,8}([a-z_]+(?:\.py|/))", tree, re.M)
    parents = [ROOT / "txl_tf", ROOT / "txl_tf" / "data"]
    for name in names:
        assert any((parent / name).exists() for parent in parents), name
    table = (ROOT / "pipelines/README.md").read_text().split("## Configurations")[0]
    for name in re.findall(r"`([a-z_]+(?:\.py|/))`", table):
        assert (ROOT / "pipelines" / name).exists(), name


def test_troubleshooting_has_every_exit_code_and_messages_of_the_source():
    from pipelines.shell.exit_codes import INTERRUPTED, READER_LEFT

    section = (ROOT / "pipelines/README.md").read_text().split("\n## Troubleshooting\n")[1]
    codes = set(map(int, re.findall(r"^\| (\d+) \|", section, re.M)))
    codes_of_errors = {error.exit_code for error in JobError.__subclasses__()}
    assert codes == {0, INTERRUPTED, READER_LEFT} | codes_of_errors
    source = "".join(path.read_text() for path in SOURCES)
    messages = re.findall(r"^\| `([^`]+)` \|", section, re.M)
    assert [message for message in messages if message not in source] == []
    assert len(messages) > 10


def test_paths_commands_and_names_of_contributing_exist():
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    checks = (ROOT / ".ci" / "run").read_text()
    assert INSTALL_AND_TEST.split(" && ")[0] in text
    for command in ("ruff check .", "ruff format --check .", "mypy"):
        assert command in text and command in checks
    paths = re.findall(r"(?<![\w/])((?:tests|txl_tf|pipelines|\.ci)/[a-z0-9_/.-]+\b)", text)
    assert len(paths) > 5
    for path in paths:
        assert (ROOT / path).exists(), path
    names = re.findall(r"`(\w+)`\s(?:in|of)\s`([\w/]+\.py)`", text)
    assert len(names) > 5
    for name, path in names:
        assert name in (ROOT / path).read_text(), (name, path)


def test_the_example_of_a_change_is_in_every_file_of_its_list():
    def plain(text):
        return re.sub(r"[^a-z]", "", text.lower())

    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    lists = re.findall(r"^### Add .*?(?=^##)", text, re.M | re.S)
    assert len(lists) == 6
    for line in "".join(lists).splitlines():
        if example_of_line := re.search(r"(?:example is|such as) `([^`]+)`", line):
            example = example_of_line[1]
        paths = re.findall(r"`(\w+/[\w/]+\.\w+)`", line) if line.startswith("- ") else ()
        for path in paths:
            assert plain(example) in plain((ROOT / path).read_text()), (example, path)


def test_every_job_and_sampler_is_where_the_lists_of_changes_say():
    from pipelines.command_line import JOBS
    from txl_tf import samplers

    page = (ROOT / "pipelines/README.md").read_text()
    modules = {path.stem for path in (ROOT / "pipelines/jobs").glob("[a-z]*.py")}
    assert modules == set(JOBS) == {job for job in JOBS if f"`{job}`" in page}
    page = (ROOT / "txl_tf/README.md").read_text()
    classes = [name for name in samplers.__all__ if name.endswith("Sampler")]
    assert len(classes) > 2 and all(f"`{name}`" in page for name in classes)


def test_the_picture_of_the_floors_has_every_room():
    picture = (ROOT / ".github/images/floors.svg").read_text()
    rooms = set(re.findall(r"<text [^>]*>(\w+)</text>", picture))
    assert rooms == ALLOWED.keys() | ROOMS.keys()


@pytest.mark.slow
def test_every_block_of_the_readme_runs(tmp_path):
    """Blocks run in their order, in one folder, as a user pastes them; training is shortened."""
    make_folder(tmp_path)
    ports = dict(zip(map(str, SERVERS.values()), map(str, free_ports(len(SERVERS))), strict=True))
    done = []
    with contextlib.ExitStack() as servers:
        for language, code in blocks("README.md"):
            is_elsewhere = code.strip() in RUN_ELSEWHERE or "lm.fit(" in code
            if is_elsewhere or language not in ("sh", "python"):
                continue
            for port, free in ports.items():
                code = code.replace(port, free)
            server = next((name for name in SERVERS if code.startswith(name)), None)
            if server is None:
                done.append(run_block(language, code, tmp_path))
            else:
                port = int(ports[str(SERVERS[server])])
                code = f"{code.partition('#')[0].strip()} --port {port}"
                servers.enter_context(running(code, port, tmp_path))
    output = "\n".join(done)
    assert "Once upon a time" in output
    assert "bits/byte" in output or "bits per byte" in output
    for instance in ("data/mine", "runs/mine", "export/mine/1", "converted/mine"):
        assert (tmp_path / instance).is_dir(), instance


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(tmp_path):
    """Cells run in their order, without the installation; training is shortened."""
    make_folder(tmp_path)
    notebook = json.loads((ROOT / ".github" / "colab.ipynb").read_text())
    cells = ["".join(each["source"]) for each in notebook["cells"] if each["cell_type"] == "code"]
    assert [cell.split()[0] for cell in cells] == ["%pip", "!txl", "!txl", "import"]
    for cell in cells[1:3]:
        run_block("sh", cell.removeprefix("!"), tmp_path)
    assert "import os" in run_block("python", cells[3], tmp_path)


def test_the_ten_lines_of_the_readme_train_a_model(tmp_path, monkeypatch, capsys):
    """The lines run unchanged, but the preset is replaced by a model that trains in seconds."""
    import txl_tf
    from tests.small_models import toy_experiment
    from txl_tf.models import presets

    (code,) = (code for language, code in blocks("README.md") if "lm.fit(" in code)
    assert len(code.splitlines()) <= 10
    monkeypatch.setitem(presets.PRESETS, "quickstart", toy_experiment().model)
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("Once upon a time there was a reader.\n" * 300)
    names = {}
    exec(code, names)
    assert "Once upon a time" in capsys.readouterr().out
    loaded = txl_tf.load("models/mine")
    assert loaded.score("Once upon").total_nats == names["lm"].score("Once upon").total_nats


def make_folder(folder):
    """Writes the files that the blocks read, and a command `txl` that trains for seconds."""
    sentence = "Once upon a time there was a reader who forgot nothing of what it had read.\n"
    (folder / "my.txt").write_text(sentence * 2000)
    for path in (GOLDEN / "tf1_enwik8_like").glob("model.ckpt-0.*"):
        shutil.copy(path, folder)
    script = folder / "bin" / "txl"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = train ]; then set -- "$@" {SMALL}; fi\n'
        f'exec {sys.executable} -m pipelines.command_line "$@"\n'
    )
    script.chmod(0o755)


def environment_of(folder):
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def run_block(language, code, folder):
    words = ["bash", "-e", "-c", code] if language == "sh" else [sys.executable, "-c", code]
    finished = subprocess.run(
        words,
        cwd=folder,
        env=environment_of(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, f"{code}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@contextlib.contextmanager
def running(code, port, folder):
    """Runs a server, and waits until it answers."""
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {code}"],
            cwd=folder,
            env=environment_of(folder),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + 120
            while not answers(port):
                assert process.poll() is None, (folder / "server.log").read_text()
                assert time.monotonic() < deadline, code
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait(30)


def answers(port):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=10).close()
    except urllib.error.HTTPError as error:
        return error.code != 503  # a model is loading
    except OSError:
        return False
    return True
