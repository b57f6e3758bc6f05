"""Shell commands as text: every word quoted, long ones over several lines."""

import shlex
from collections.abc import Iterable
from pathlib import Path

from pipelines.diagnosis.version_checks import TestedVersions
from pipelines.launch.plan import LaunchPlan

REQUIREMENTS = Path(__file__).with_name("requirements-tpu-vm.txt")
"""What a TPU VM installs, with hashes."""
RUN_UNTIL_DONE = Path(__file__).with_name("run_until_done.sh")
"""The script that starts a preempted job again."""
_LINE_LENGTH = 88


class ShellText(str):
    """A word that the shell is to expand, such as `"$HOME"`; it is not quoted."""


def command(words: Iterable[str]) -> str:
    """One command, in lines that can be read.

    A line is broken before an option only, so that options stay with their values.

    Args:
        words: strings. The command and its arguments, not quoted.

    Returns:
        Text that a POSIX shell reads as these words.
    """
    lines = [""]
    for word in map(_quoted, words):
        is_too_long = len(lines[-1]) + 1 + len(word) > _LINE_LENGTH
        if lines[-1].strip() and word.startswith("--") and is_too_long:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def join(words: Iterable[str]) -> str:
    """One command in one line.

    Args:
        words: strings, not quoted.

    Returns:
        Text that a POSIX shell reads as these words.
    """
    return " ".join(map(_quoted, words))


def both(*commands: str) -> str:
    """Joins commands with `&&`.

    Args:
        *commands: str. Shell text.

    Returns:
        Shell text in one line.
    """
    return " && ".join(commands)


def install_commands(folder: str, pip: str = "pip") -> list[str]:
    """Returns the commands that install the locked requirements and then the code.

    Args:
        folder: str. A checkout, relative to where the commands run.
        pip: str. The program.

    Returns:
        List of shell texts.
    """
    text = f"tensorflow-text=={TestedVersions.read().packages['tensorflow-text']}"
    requirements = f"{folder}/pipelines/launch/{REQUIREMENTS.name}"
    return [
        join([pip, "install", "--require-hashes", "-r", requirements]),
        # Without what it says it needs: that would be TensorFlow's CPU wheel.
        join([pip, "install", "--no-deps", text]),
        # What it is built with was installed from the locked requirements.
        join([pip, "install", "--no-deps", "--no-build-isolation", folder]),
    ]


def section(title: str, *commands: str) -> str:
    """Returns a comment and the commands it is about.

    Args:
        title: str. One line or several.
        *commands: str. Shell text.

    Returns:
        Shell text.
    """
    comment = "\n".join(f"# {line}" for line in title.splitlines())
    return "\n".join([comment, *commands, ""])


def doctor_words(plan: LaunchPlan, tpu: str) -> list[str]:
    """The words of `txl doctor`, not quoted; arguments as for `train_words`."""
    return ["txl", "doctor", "--tpu", tpu, "--folder", plan.workdir, "--config", plan.config]


def train_words(plan: LaunchPlan, tpu: str) -> list[str]:
    """Returns the words of `txl train`.

    Args:
        plan: `LaunchPlan`.
        tpu: str. `local`, addresses, or a `ShellText` that becomes addresses.

    Returns:
        List of str, not quoted.
    """
    words = ["txl", "train", "--tpu", tpu, "--config", plan.config, "--data", plan.data]
    words += ["--workdir", plan.workdir]
    # With `=`, a value that begins with a hyphen is still a value.
    return words + [f"--set={override}" for override in plan.overrides]


def _quoted(word: str) -> str:
    return word if isinstance(word, ShellText) else shlex.quote(word)
