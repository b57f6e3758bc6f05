r"""Prints a script that runs a training job on Cloud TPU: `txl launch`.

    txl launch --accelerator-type v5litepod-8 \
        --zone us-west4-a --project my-project --name my-run \
        --config enwik8_base --data gs://my-bucket/data --workdir gs://my-bucket/run

Nothing is run. `sh SCRIPT start` creates the TPU, installs and trains, `sh SCRIPT delete` ends it.
"""

import argparse
import os
import re
import shlex
from pathlib import Path

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.topologies import Topology

from ..arguments import add_override_argument, add_workdir_argument
from ..configs import NAMED_EXPERIMENTS, load_experiment
from ..doctor import pinned_versions

# Parts of the script of each kind; a later part may redefine functions of an earlier one.
_SCRIPTS = {
    "tpu-vm": ("tpu_vm.sh", "job.sh"),
    "queued-resource": ("tpu_vm.sh", "queued_resource.sh", "job.sh"),
}
_FOLDER = Path(__file__).parent
_BUCKET = (r"gs://[^\s/]+(/[^\s]*)?", "Give gs://BUCKET/FOLDER: a TPU loses its disk.")
_PATTERNS = {
    "name": (r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", "Begin with a-z; up to 40 of a-z, 0-9, inner -."),
    "zone": (r"[a-z]+(-[a-z]+)+[0-9]+-[a-z]", "Give a zone such as us-central1-a."),
    "project": (r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "Give the project's ID."),
    "workdir": _BUCKET,
    "data": _BUCKET,
    "runtime_version": (r"[a-z0-9][a-z0-9.-]*", "Give an image such as v2-alpha-tpuv5-lite."),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    tpu = parser.add_argument_group("TPU")
    meaning = "create the TPU at once, or when there is room (default: tpu-vm)"
    tpu.add_argument("--kind", choices=[*_SCRIPTS], default="tpu-vm", help=meaning)
    meaning = "the slice, such as v4-32, v5litepod-16, v5p-32, v6e-8 or v5e:2x4"
    tpu.add_argument("--accelerator-type", metavar="TYPE", required=True, help=meaning)
    tpu.add_argument("--zone", required=True, help="zone of Google Cloud")
    tpu.add_argument("--project", required=True, help="ID of the Google Cloud project")
    tpu.add_argument("--name", required=True, help="name of the TPU")
    tpu.add_argument("--spot", action="store_true", help="cheaper machines that may be taken away")
    meaning = "image of the TPU VMs (default: by accelerator type)"
    tpu.add_argument("--runtime-version", metavar="IMAGE", help=meaning)
    run = parser.add_argument_group("run")
    meaning = "named experiment, or .toml or .json file, which is copied"
    run.add_argument("--config", metavar="NAME|FILE", required=True, help=meaning)
    run.add_argument("--data", metavar="gs://...", required=True, help="prepared data set")
    add_workdir_argument(run)
    add_override_argument(run)


def check_arguments(arguments: argparse.Namespace) -> tuple[argparse.Namespace, Topology]:
    """Checks the form of every argument; returns them and the slice."""
    option = "--accelerator-type"
    where = f"{option} {arguments.accelerator_type}"
    accelerator = Topology.parse(arguments.accelerator_type, option)
    if accelerator.accelerator_type is None:
        remedy = f"Shapes of these chips: {', '.join(accelerator.cloud.shapes)}."
        raise UsageError("Cloud TPU has no such shape.", where=where, remedy=remedy)
    if accelerator.num_hosts > 1 and accelerator.chip.name == "v6e":
        what = "The server of tensorflow-tpu 2.20.0 does not know v6e slices of several hosts."
        raise UsageError(what, where=where, remedy="Take v6e-8 or smaller, or other chips.")
    for name, (pattern, remedy) in _PATTERNS.items():
        value = getattr(arguments, name)
        if value is not None and re.fullmatch(pattern, value) is None:
            what = f"The {name.replace('_', ' ')} is not valid."
            where = f"--{name.replace('_', '-')} {value}"
            raise UsageError(what, where=where, remedy=remedy)
    load_experiment(arguments.config, arguments.overrides)
    return arguments, accelerator


def run(job: tuple[argparse.Namespace, Topology]) -> None:
    """Prints the script."""
    print(_script(*job), end="")


def _script(arguments: argparse.Namespace, accelerator: Topology) -> str:
    has_file = arguments.config not in NAMED_EXPERIMENTS
    config = f"./{os.path.basename(arguments.config)}" if has_file else arguments.config
    train = ["--config", config, "--data", arguments.data, "--workdir", arguments.workdir]
    # With `=`, a value that begins with a hyphen is still a value.
    train += [f"--set={override}" for override in arguments.overrides]
    values = {
        **{name.upper(): getattr(arguments, name) for name in ("name", "zone", "project")},
        "ACCELERATOR": accelerator.accelerator_type,
        "HOSTS": str(accelerator.num_hosts),
        "IMAGE": arguments.runtime_version or accelerator.cloud.runtime_version,
        "SPOT": "--spot" if arguments.spot else "",
        "CONFIG_FILE": os.path.abspath(arguments.config) if has_file else "",
        "TENSORBOARD": f"{arguments.workdir.rstrip('/')}/tensorboard",
        # The remote shell parses these again.
        "TEXT": f"tensorflow-text=={pinned_versions()['tensorflow-text']}",
        "WORKDIR": shlex.quote(arguments.workdir),
        "TRAIN": shlex.join(train),
    }
    header = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    parts = [(_FOLDER / name).read_text() for name in _SCRIPTS[arguments.kind]]
    return "\n".join(["#!/bin/sh", *header, "", *parts])
