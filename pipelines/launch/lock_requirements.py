"""Locks what a TPU VM installs: `python -m pipelines.launch.lock_requirements`.

Runs in a checkout, on Linux x86_64 with the Python that TPU VMs run the jobs
with, and writes `requirements-tpu-vm.txt`: the pins of pyproject.toml, with
TensorFlow's TPU wheel for the plain one, every one with the hash of its wheel.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.launch.shell import REQUIREMENTS

TPU_PINS = ("tensorflow-tpu==2.20.0", "libtpu==0.0.31")
"""What is installed in place of the wheel `tensorflow`."""
# These need the distribution that is called `tensorflow`, or are that distribution.
_LEFT_OUT = ("tensorflow", "tensorflow-text")
_HEADER = """\
# What a TPU VM installs, for Python 3.11 on Linux x86_64. Written by
#     python -m pipelines.launch.lock_requirements
# which keeps names, versions and hashes from the report of
#     pip install --dry-run --ignore-installed --only-binary :all: --report report.json PINS
# where PINS are those of pyproject.toml, with tensorflow-tpu and libtpu for tensorflow.
# Install with
#     pip install --require-hashes -r requirements-tpu-vm.txt
# and tensorflow-text after it, with --no-deps: it would bring the CPU wheel.
"""


def pins(dependencies: Sequence[str]) -> list[str]:
    """What is to be installed on a TPU VM.

    Args:
        dependencies: list of str, `name==version`, as pyproject.toml has them.

    Returns:
        List of str, `name==version`.
    """
    kept = [pin for pin in dependencies if pin.partition("==")[0] not in _LEFT_OUT]
    return [*TPU_PINS, *kept]


def locked(report: dict[str, Any]) -> str:
    """The text of the requirements for what pip says it would install.

    Args:
        report: dict. What `pip install --report` wrote.

    Returns:
        The text.
    """
    lines = []
    for item in report["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{sha256}\n")
    return _HEADER + "".join(sorted(lines, key=str.lower))


def main() -> None:
    """Asks pip and writes the file."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--report", str(report)]
        subprocess.run([*command, *pins(project["dependencies"])], check=True)
        text = locked(json.loads(report.read_text(encoding="utf-8")))
    REQUIREMENTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
