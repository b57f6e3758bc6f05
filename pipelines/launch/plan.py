"""Launch plan: a training job and its TPU slice, with its commands as quoted shell text."""

import dataclasses
import math
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.chips import CHIPS

from ..doctor import pinned_versions

_GENERATIONS = {chip.cloud.generation: chip.cloud for chip in CHIPS.values()}
_NAME = re.compile(rf"({'|'.join(_GENERATIONS)})-([1-9][0-9]{{0,4}})")
_CHIPS_PER_HOST = 4


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A slice of a generation of chips."""

    name: str
    """The accelerator type, such as `v5litepod-16`."""
    topology: str
    """Chips along each dimension, such as `4x4`."""
    chips_per_host: int
    """TPU chips of one VM."""
    runtime_version: str
    """Image of a VM."""
    gke_accelerator: str | None
    """GKE's name for the chips."""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads an accelerator type; raises UsageError for an unknown one.

        Args:
            name: str. Generation and size, such as `v5litepod-16`; of v2, v3,
                v4 and v5p the size counts cores, two to a chip.
        """
        matched = _NAME.fullmatch(name)
        if matched is None:
            raise _unknown("This is not the name of an accelerator type.", name, EXAMPLES)
        generation = _GENERATIONS[matched[1]]
        num_chips, rest = divmod(int(matched[2]), generation.cores_per_chip)
        if rest or num_chips not in generation.shapes:
            sizes = [
                f"{matched[1]}-{chips * generation.cores_per_chip}" for chips in generation.shapes
            ]
            raise _unknown(f"There is no {matched[1]} slice of this size.", name, sizes)
        is_one_host = num_chips <= generation.max_chips_per_host
        gke_accelerator = generation.gke_accelerator
        if is_one_host:
            gke_accelerator = generation.gke_accelerator_of_one_host or gke_accelerator
        return cls(
            name=name,
            topology=generation.shapes[num_chips],
            chips_per_host=num_chips if is_one_host else _CHIPS_PER_HOST,
            runtime_version=generation.runtime_version,
            gke_accelerator=gke_accelerator,
        )

    @property
    def generation(self) -> str:
        """The chips, such as `v5litepod`."""
        return self.name.partition("-")[0]

    @property
    def num_chips(self) -> int:
        """Chips of the slice."""
        return math.prod(int(length) for length in self.topology.split("x"))

    @property
    def num_hosts(self) -> int:
        """VMs of the slice."""
        return self.num_chips // self.chips_per_host


EXAMPLES = ("v2-8", "v3-32", "v4-32", "v5litepod-16", "v5p-32", "v6e-8")
"""An accelerator type of every generation."""


def _unknown(what: str, name: str, known: list[str] | tuple[str, ...]) -> UsageError:
    return UsageError(
        what,
        where=f"--accelerator-type {name}",
        remedy=f"There are, for example: {', '.join(known)}.",
    )


_COMPILED = "the TPU compiler of libtpu 0.0.31 takes programs for these chips"
_NO_TPU = "nothing here has run on a TPU"
_REPORTS = "with TensorFlow 2.18 and 2.19 slices were reported to hang when connecting"


class ChipSupport(NamedTuple):
    """Support of one TPU generation: what should work and why, and what is unproven."""

    expected: str
    unproven: str


_SLICE_SERVER = "the server of tensorflow-tpu 2.20.0 knows the shapes of these slices"
_SLICE_SERVER_ASKS = "the server of tensorflow-tpu 2.20.0 leaves the shape to libtpu"
_WITH_ONE_HOST = ChipSupport(f"works; {_COMPILED}", _NO_TPU)
_KNOWN_SLICE = ChipSupport(f"works; {_SLICE_SERVER}", f"{_NO_TPU}; {_REPORTS}")
_ASKED_SLICE = ChipSupport(f"works; {_SLICE_SERVER_ASKS}", f"{_NO_TPU}; {_REPORTS}")
# By generation, and whether the slice has several hosts.
_SUPPORT = {
    ("v2", False): _WITH_ONE_HOST,
    ("v2", True): _KNOWN_SLICE,
    ("v3", False): _WITH_ONE_HOST,
    ("v3", True): _KNOWN_SLICE,
    ("v4", False): _WITH_ONE_HOST,
    ("v4", True): _ASKED_SLICE,
    ("v5litepod", False): _WITH_ONE_HOST._replace(
        expected=f"{_WITH_ONE_HOST.expected}, and users had 2.16 and 2.18 running on them"
    ),
    ("v5litepod", True): _ASKED_SLICE._replace(
        expected=f"{_ASKED_SLICE.expected}, and a user had 2.18 running on 16 chips"
    ),
    ("v5p", False): _WITH_ONE_HOST,
    ("v5p", True): _ASKED_SLICE,
    ("v6e", False): ChipSupport(
        f"unclear; {_COMPILED}",
        "2.16 to 2.19 were reported to fail; the provider supports no training with TensorFlow",
    ),
    ("v6e", True): ChipSupport(
        "unclear on GKE, where one site has run 2.18; not on TPU VMs, whose server in "
        "tensorflow-tpu 2.20.0 knows no v6e",
        "everything",
    ),
}


def support_of(accelerator: Accelerator) -> ChipSupport:
    """Returns the line of `support_table` of a slice."""
    return _SUPPORT[accelerator.generation, accelerator.num_hosts > 1]


def support_table() -> str:
    """Returns all lines, as a Markdown table."""
    rows = ["| chips | hosts | expected | unproven |", "|---|---|---|---|"]
    for (generation, is_slice), support in _SUPPORT.items():
        hosts = "several" if is_slice else "one"
        rows.append(f"| {generation} | {hosts} | {support.expected} | {support.unproven} |")
    return "\n".join(rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """Training job and its TPU slice; every field is validated."""

    name: str
    """Of the TPU, the queued resource or the job set."""
    accelerator: Accelerator
    """The slice."""
    zone: str
    """Zone of Google Cloud."""
    project: str
    """Project of Google Cloud."""
    config: str
    """Name of an experiment."""
    overrides: tuple[str, ...]
    """Values of `--set`."""
    data: str
    """A prepared data set, `gs://`."""
    workdir: str
    """Folder of the run, `gs://`."""
    runtime_version: str
    """Image of the TPU VMs."""
    is_spot: bool
    """Whether the machines may be taken away."""
    repository: str | None
    """What the code is cloned from; `None`: the checkout at hand is copied."""
    image: str | None
    """Container image, for GKE."""

    @property
    def tensorboard(self) -> str:
        """Folder for `tensorboard --logdir`."""
        return f"{self.workdir.rstrip('/')}/tensorboard"


REQUIREMENTS = Path(__file__).with_name("requirements-tpu-vm.txt")
"""What a TPU VM installs, with hashes."""
RUN_UNTIL_DONE = Path(__file__).with_name("run_until_done.sh")
"""The script that starts a preempted job again."""
_LINE_LENGTH = 88


class ShellText(str):
    """A word that the shell is to expand, such as `"$HOME"`; it is not quoted."""


def command(words: Iterable[str]) -> str:
    """Quotes the words of one command, over several lines where it is long.

    A line is broken before an option only, so that options stay with their values.
    """
    lines = [""]
    for word in map(_quoted, words):
        is_too_long = len(lines[-1]) + 1 + len(word) > _LINE_LENGTH
        if lines[-1].strip() and word.startswith("--") and is_too_long:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def join(words: Iterable[str]) -> str:
    """Quotes the words of one command, in one line."""
    return " ".join(map(_quoted, words))


def install_commands(folder: str, pip: str = "pip") -> list[str]:
    """Returns the commands that install the locked requirements and then the code.

    Args:
        folder: str. A checkout, relative to where the commands run.
        pip: str. The program.
    """
    text = f"tensorflow-text=={pinned_versions()['tensorflow-text']}"
    requirements = f"{folder}/pipelines/launch/{REQUIREMENTS.name}"
    return [
        join([pip, "install", "--require-hashes", "-r", requirements]),
        # Without what it says it needs: that would be TensorFlow's CPU wheel.
        join([pip, "install", "--no-deps", text]),
        # What it is built with was installed from the locked requirements.
        join([pip, "install", "--no-deps", "--no-build-isolation", folder]),
    ]


def section(title: str, *commands: str) -> str:
    """Returns a comment of one line or several, and the commands it is about."""
    comment = "\n".join(f"# {line}" for line in title.splitlines())
    return "\n".join([comment, *commands, ""])


def doctor_words(plan: LaunchPlan, tpu: str) -> list[str]:
    """Returns the words of `txl doctor`, not quoted; arguments as for `train_words`."""
    return ["txl", "doctor", "--tpu", tpu, "--folder", plan.workdir]


def train_words(plan: LaunchPlan, tpu: str) -> list[str]:
    """Returns the words of `txl train`, not quoted.

    Args:
        plan: `LaunchPlan`.
        tpu: str. `local`, addresses, or a `ShellText` that becomes addresses.
    """
    words = ["txl", "train", "--tpu", tpu, "--config", plan.config, "--data", plan.data]
    words += ["--workdir", plan.workdir]
    # With `=`, a value that begins with a hyphen is still a value.
    return words + [f"--set={override}" for override in plan.overrides]


def _quoted(word: str) -> str:
    return word if isinstance(word, ShellText) else shlex.quote(word)
