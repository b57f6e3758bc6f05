"""The README's commands are the ones that are run."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
INSTALL_AND_RUN = "python -m pip install -c .ci/constraints.txt -e . && txl quickstart"
INSTALL_AND_TEST = "python -m pip install -c .ci/constraints.txt -e '.[test]' && python -m pytest"


def test_both_commands_are_in_the_readme_and_the_second_in_the_checks():
    readme = (ROOT / "README.md").read_text()
    assert f"\n    {INSTALL_AND_RUN}\n" in readme
    assert f"\n    {INSTALL_AND_TEST}\n" in readme
    assert f"\n{INSTALL_AND_TEST} --durations=20\n" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_has_the_table_of_chips():
    from pipelines.launch.plan import support_table

    assert f"\n{support_table()}\n" in (ROOT / "README.md").read_text()


def test_every_job_and_file_named_in_the_readme_is_there():
    readme = (ROOT / "README.md").read_text()
    from pipelines.command_line import JOBS

    named = set(re.findall(r"\btxl ([a-z]+)\b", readme))
    assert named == set(JOBS)
    tree = readme.split("## What is where")[1].split("Imports run one way")[0]
    folders = {"txl_tf": ROOT / "txl_tf", "pipelines": ROOT / "pipelines", "tests": ROOT / "tests"}
    for top, folder in folders.items():
        section = re.search(rf"^    {top}/\n((?:      .*\n)+)", tree, flags=re.MULTILINE).group(1)
        for name in re.findall(r"^      ((?:[a-z_]+(?:\.py|/) ?)+)", section, flags=re.MULTILINE):
            for part in name.split():
                assert (folder / part).exists(), part


def test_what_contributors_are_told_is_there():
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    checks = (ROOT / ".ci" / "run").read_text()
    assert INSTALL_AND_TEST.split(" && ")[0] in text
    for command in ("ruff check .", "ruff format --check .", "mypy"):
        assert command in text and f"\n{command}\n" in checks
    paths = re.findall(r"(?<![\w/])((?:tests|txl_tf|\.ci)/[a-z_/.]+\b)", text)
    assert len(paths) > 5
    for path in paths:
        assert (ROOT / path).exists(), path
