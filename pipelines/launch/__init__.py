r"""Prints the commands that run a training job on Cloud TPU: `txl launch`.

    txl launch --kind tpu-vm --accelerator-type v5litepod-8 \
        --zone us-west4-a --project my-project --name my-run \
        --config enwik8_base --data gs://my-bucket/data --workdir gs://my-bucket/run

Nothing is run: the output is read first and then pasted command by command,
or, of `--kind gke-jobset`, given to `kubectl apply -f -`.
"""

import argparse
import re

from txl_tf.errors import UsageError

from ..arguments import NAMED_EXPERIMENTS, add_override_argument, load_experiment
from ..workdir import add_workdir_argument
from .gke import gke_job_set_manifest
from .plan import EXAMPLES, Accelerator, LaunchPlan, support_of
from .tpu_vm import pod_slice_script, queued_resource_script, tpu_vm_script

_GKE = "gke-jobset"
_KINDS = {
    "tpu-vm": tpu_vm_script,
    "queued-resource": queued_resource_script,
    "pod-slice": pod_slice_script,
    _GKE: gke_job_set_manifest,
}
# Pods are called after the set, with `-servers-0-63-abcde` at most behind it, in 63 characters.
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_PATTERNS = {
    "name": (_NAME, "At most 40 of a-z, 0-9 and hyphens; a letter first, no hyphen last."),
    "zone": (re.compile(r"[a-z]+(-[a-z]+)+[0-9]+-[a-z]"), "Such as us-central1-a."),
    "project": (
        re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]"),
        "The project's ID, such as my-project.",
    ),
    "workdir": (re.compile(r"gs://[^\s/]+(/[^\s]*)?"), "A TPU's disk is lost: gs://BUCKET/FOLDER."),
    "data": (re.compile(r"gs://[^\s/]+(/[^\s]*)?"), "Copy the data set to gs://BUCKET/FOLDER."),
    "runtime_version": (
        re.compile(r"[a-z0-9][a-z0-9.-]*"),
        "`gcloud compute tpus tpu-vm versions list` names them.",
    ),
    "repository": (
        re.compile(r"(https|ssh|git)://[^\s]+|[\w.-]+@[\w.-]+:[^\s]+"),
        "An address that Git can clone, such as https://HOST/txl-tf.git.",
    ),
    "image": (
        re.compile(r"[a-z0-9][\w./:@-]*"),
        "Such as us-docker.pkg.dev/PROJECT/REPOSITORY/txl-tf:1.",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    tpu = parser.add_argument_group("TPU")
    tpu.add_argument("--kind", choices=list(_KINDS), required=True, help="what to launch")
    tpu.add_argument(
        "--accelerator-type",
        metavar="TYPE",
        required=True,
        help=f"the slice, such as {', '.join(EXAMPLES)}",
    )
    tpu.add_argument("--zone", required=True, help="zone of Google Cloud")
    tpu.add_argument("--project", required=True, help="project of Google Cloud")
    tpu.add_argument("--name", required=True, help="name of the TPU or the job set")
    run = parser.add_argument_group("run")
    run.add_argument("--config", metavar="NAME", required=True, help="named experiment")
    run.add_argument("--data", metavar="gs://...", required=True, help="prepared data set")
    add_workdir_argument(run)
    add_override_argument(run)
    machines = parser.add_argument_group("machines")
    machines.add_argument(
        "--spot", action="store_true", help="cheaper machines, which may be taken away"
    )
    machines.add_argument(
        "--runtime-version",
        metavar="IMAGE",
        help="image of the TPU VMs (default: by accelerator type)",
    )
    machines.add_argument(
        "--repository",
        metavar="URL",
        help="clone the code on the TPU VM from here (default: copy this checkout)",
    )
    machines.add_argument("--image", help=f"container image with txl-tf; {_GKE} only")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks every argument; nothing that the cloud would refuse by its form is printed."""
    accelerator = Accelerator.parse(arguments.accelerator_type)
    for name, (pattern, remedy) in _PATTERNS.items():
        value = getattr(arguments, name)
        if value is not None and pattern.fullmatch(value) is None:
            what = f"This is not a {name.replace('_', ' ')} that can be used."
            raise UsageError(what, where=f"{_option(name)} {value}", remedy=remedy)
    if arguments.config not in NAMED_EXPERIMENTS:
        raise UsageError(
            "There is no configuration of this name, and a file is not on the TPU VM.",
            where=f"--config {arguments.config}",
            remedy=f"Names are: {', '.join(NAMED_EXPERIMENTS)}; --set changes values.",
        )
    load_experiment(arguments.config, arguments.overrides)
    _check_kind(arguments, accelerator)
    same = ("name", "zone", "project", "config", "data", "workdir", "repository", "image")
    arguments.plan = LaunchPlan(
        **{name: getattr(arguments, name) for name in same},
        accelerator=accelerator,
        overrides=tuple(arguments.overrides),
        runtime_version=arguments.runtime_version or accelerator.runtime_version,
        is_spot=arguments.spot,
    )


def run(arguments: argparse.Namespace) -> None:
    """Prints the commands or the manifest."""
    support = support_of(arguments.plan.accelerator)
    print(f"# Expected: {support.expected}.\n# Unproven: {support.unproven}.")
    print(_KINDS[arguments.kind](arguments.plan), end="")


def _check_kind(arguments: argparse.Namespace, accelerator: Accelerator) -> None:
    kind, chips = f"--kind {arguments.kind}", f"--accelerator-type {accelerator.name}"
    where = f"{kind} {chips}"
    if arguments.kind == "tpu-vm" and accelerator.num_hosts > 1:
        what = f"This slice has {accelerator.num_hosts} hosts."
        raise UsageError(what, where=where, remedy="Use --kind pod-slice.")
    if arguments.kind == "pod-slice" and accelerator.num_hosts == 1:
        raise UsageError("This slice has one host.", where=where, remedy="Use --kind tpu-vm.")
    is_vm_slice = arguments.kind != _GKE and accelerator.num_hosts > 1
    if is_vm_slice and accelerator.generation == "v6e":
        raise UsageError(
            "The server that tensorflow-tpu 2.20.0 brings knows no v6e slice of several hosts.",
            where=where,
            remedy="Use --kind gke-jobset, v6e-8, or other chips.",
        )
    if arguments.kind == _GKE and accelerator.gke_accelerator is None:
        raise UsageError("GKE does not have these chips.", where=chips, remedy="Use --kind tpu-vm.")
    if arguments.kind == _GKE and arguments.image is None:
        raise UsageError(
            "A job set needs a container image.",
            where="--image",
            remedy="Build one that has txl-tf and its locked requirements installed.",
        )
    unused = ("runtime_version", "repository") if arguments.kind == _GKE else ("image",)
    for name in unused:
        if getattr(arguments, name) is not None:
            raise UsageError("The argument means nothing here.", where=f"{kind} {_option(name)}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
