r"""Prints a script or manifest that runs a training job on Cloud TPU: `txl launch`.

    txl launch --kind tpu-vm --accelerator-type v5litepod-8 \
        --zone us-west4-a --project my-project --name my-run \
        --config enwik8_base --data gs://my-bucket/data --workdir gs://my-bucket/run

Nothing is run. The output of all kinds but `gke-jobset` is a shell script: `sh SCRIPT start`
creates the TPU, installs and trains, `sh SCRIPT delete` ends it.
"""

import argparse
import json
import os
import re
import shlex
import string
from pathlib import Path

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.topologies import Topology

from ..configs import NAMED_EXPERIMENTS, load_experiment
from ..shell.arguments import add_override_argument, add_workdir_argument, option_of
from .doctor import pinned_versions

# Machine types of GKE.
_MACHINES = {"v3": "ct3-hightpu", "v4": "ct4p-hightpu", "v5e": "ct5lp-hightpu"}
_MACHINES |= {"v5p": "ct5p-hightpu", "v6e": "ct6e-standard", "tpu7x": "tpu7x-standard"}
_GKE = "gke-jobset"
# Parts of the script of each kind; a later part may redefine functions of an earlier one.
_SCRIPTS = {
    "tpu-vm": ("tpu_vm.sh", "job.sh"),
    "queued-resource": ("tpu_vm.sh", "queued_resource.sh", "job.sh"),
    "pod-slice": ("tpu_vm.sh", "job.sh"),
}
_FOLDER = Path(__file__).parents[1] / "launch"
# Seconds that a pod has to save. GKE keeps some of the 30 seconds of a spot machine.
_GRACE_SECONDS = {False: 300, True: 25}
_BUCKET = (r"gs://[^\s/]+(/[^\s]*)?", "Give gs://BUCKET/FOLDER: a TPU loses its disk.")
_PATTERNS = {
    # A pod is called `NAME-trainer-0-63-abcde`, in at most 63 characters.
    "name": (r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", "Begin with a-z; up to 40 of a-z, 0-9, inner -."),
    "zone": (r"[a-z]+(-[a-z]+)+[0-9]+-[a-z]", "Give a zone such as us-central1-a."),
    "project": (r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "Give the project's ID."),
    "workdir": _BUCKET,
    "data": _BUCKET,
    "runtime_version": (r"[a-z0-9][a-z0-9.-]*", "Give an image such as v2-alpha-tpuv5-lite."),
    "image": (r"[a-z0-9][\w./:@-]*", "For example us-docker.pkg.dev/PROJECT/REPOSITORY/txl-tf:1."),
    "cluster": (r"[a-z]([a-z0-9-]*[a-z0-9])?", "Give the name of a GKE cluster."),
    "service_account": (r"[a-z0-9-]+@[a-z0-9.-]+", "Give NAME@PROJECT.iam.gserviceaccount.com."),
}
_OF_GKE = ("image", "cluster", "service_account")


def _machine_type(slice_: Topology) -> str:
    """Returns the machine type on GKE; empty for v2, which has none."""
    series = _MACHINES.get(slice_.chip.name)
    return f"{series}-{slice_.chips_per_host}t" if series else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    tpu = parser.add_argument_group("TPU")
    tpu.add_argument("--kind", choices=[*_SCRIPTS, _GKE], required=True, help="what to launch")
    tpu.add_argument(
        "--accelerator-type",
        metavar="TYPE",
        required=True,
        help="the slice, such as v4-32, v5litepod-16, v5p-32, v6e-8, tpu7x-8 or v5e:2x4",
    )
    tpu.add_argument("--zone", required=True, help="zone of Google Cloud")
    tpu.add_argument("--project", required=True, help="ID of the Google Cloud project")
    tpu.add_argument("--name", required=True, help="name of the TPU or the job set")
    tpu.add_argument("--spot", action="store_true", help="cheaper machines that may be taken away")
    run = parser.add_argument_group("run")
    run.add_argument(
        "--config",
        metavar="NAME|FILE",
        required=True,
        help="named experiment, or .toml or .json file, which is copied",
    )
    run.add_argument("--data", metavar="gs://...", required=True, help="prepared data set")
    add_workdir_argument(run)
    add_override_argument(run)
    run.add_argument(
        "--backend",
        choices=("tensorflow", "jax"),
        help="backend of Keras (default: tensorflow; jax on TPU7x and slices of GKE)",
    )
    tpu.add_argument(
        "--runtime-version",
        metavar="IMAGE",
        help="image of the TPU VMs (default: by accelerator type)",
    )
    gke = parser.add_argument_group(_GKE)
    gke.add_argument("--image", help="container image with txl-tf")
    gke.add_argument("--cluster", help="cluster that gets a node pool")
    gke.add_argument(
        "--service-account",
        metavar="EMAIL",
        help="account that may read the data and write the run",
    )


def check_arguments(arguments: argparse.Namespace) -> tuple[argparse.Namespace, Topology]:
    """Checks the form of every argument; returns them and the slice."""
    option = "--accelerator-type"
    accelerator = Topology.parse(arguments.accelerator_type, option)
    if accelerator.accelerator_type is None:
        sizes = ", ".join(accelerator.cloud.shapes)
        what, where = "Cloud TPU has no such shape.", f"{option} {arguments.accelerator_type}"
        raise UsageError(what, where=where, remedy=f"Shapes of these chips: {sizes}.")
    for name, (pattern, remedy) in _PATTERNS.items():
        value = getattr(arguments, name)
        if value is not None and re.fullmatch(pattern, value) is None:
            raise UsageError(
                f"The {name.replace('_', ' ')} is not valid.",
                where=f"{option_of(name)} {value}",
                remedy=remedy,
            )
    load_experiment(arguments.config, arguments.overrides)
    kind, chips = arguments.kind, accelerator.chip.name
    is_gke, is_slice = kind == _GKE, accelerator.num_hosts > 1
    has_tensorflow, has_jax = accelerator.chip.has_tensorflow, chips not in ("v2", "v3")
    if arguments.backend is None:
        is_for_jax = not has_tensorflow or (is_gke and is_slice and has_jax)
        arguments.backend = "jax" if is_for_jax else "tensorflow"
    is_on_jax = arguments.backend == "jax"
    server = "The server of tensorflow-tpu 2.20.0 does not know v6e slices of several hosts."
    on_gke, on_vms = "--kind gke-jobset --backend jax", "--kind pod-slice"
    for is_wrong, what, remedy in (
        (is_on_jax and not has_jax, f"JAX has no {chips} chips.", "--backend tensorflow"),
        (
            not is_on_jax and not has_tensorflow,
            f"TensorFlow has no {chips} chips.",
            "--backend jax",
        ),
        (is_on_jax and not is_gke, "The scripts of TPU VMs install TensorFlow, not JAX.", on_gke),
        (not is_gke and is_slice and chips == "v6e", server, on_gke),
        (
            is_gke and is_slice and not is_on_jax,
            "On GKE, a slice of several hosts trains on JAX only.",
            "--backend jax" if has_jax else on_vms,
        ),
        (is_gke and chips == "v2", "GKE does not have these chips.", "--kind tpu-vm"),
        (kind == "tpu-vm" and is_slice, "The slice has several hosts.", on_vms),
        (kind == "pod-slice" and not is_slice, "The slice has one host.", "--kind tpu-vm"),
    ):
        if is_wrong:
            words = f"--kind {kind} {option} {accelerator.accelerator_type}"
            raise UsageError(
                what, where=f"{words} --backend {arguments.backend}", remedy=f"Use {remedy}."
            )
    for name in (*_OF_GKE, "runtime_version"):
        is_given, is_used = getattr(arguments, name) is not None, is_gke == (name in _OF_GKE)
        if is_given and not is_used:
            raise UsageError(
                "This kind does not use the option.",
                where=f"--kind {kind} {option_of(name)}",
                remedy="Drop it.",
            )
        if is_gke and is_used and not is_given:
            raise UsageError(
                "A GKE job set needs this option.",
                where=option_of(name),
                remedy="pipelines/launch/README.md tells how to get the value.",
            )
    return arguments, accelerator


def run(job: tuple[argparse.Namespace, Topology]) -> None:
    """Prints the script or the manifest."""
    print(_manifest(*job) if job[0].kind == _GKE else _script(*job), end="")


def _script(arguments: argparse.Namespace, accelerator: Topology) -> str:
    has_file = arguments.config not in NAMED_EXPERIMENTS
    config = f"./{os.path.basename(arguments.config)}" if has_file else arguments.config
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
        "TRAIN": shlex.join(_train_words(arguments, config)),
    }
    header = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    parts = [(_FOLDER / name).read_text() for name in _SCRIPTS[arguments.kind]]
    return "\n".join(["#!/bin/sh", *header, "", *parts])


def _manifest(arguments: argparse.Namespace, accelerator: Topology) -> str:
    """Returns a job set whose hosts all run the same program."""
    has_file = arguments.config not in NAMED_EXPERIMENTS
    file, is_slice = f"config{Path(arguments.config).suffix}", accelerator.num_hosts > 1
    words = _train_words(arguments, f"/config/{file}" if has_file else arguments.config)
    # On JAX the other hosts must answer before one sees the chips of a slice.
    is_on_jax = arguments.backend == "jax"
    of_doctor, of_train = ([], ["--backend", "jax"]) if is_on_jax else (["--tpu", "local"], [])
    doctor = shlex.join(["txl", "doctor", *of_doctor, "--folder", arguments.workdir])
    train = shlex.join(["txl", "train", *of_train, "--tpu", "local", *words])
    # A host of a slice that starts again alone would wait for the others.
    loop = "" if is_slice else "sh /txl-tf/pipelines/launch/run_until_done.sh "
    script = f"{doctor} && exec {loop}{train}"
    topology, placement = accelerator.name.partition(":")[2], ""
    # On TPU7x a policy takes the place of the topology.
    has_policy = is_slice and accelerator.chip.name == "tpu7x"
    if has_policy:
        placement = f"--placement-policy {arguments.name}"
    elif is_slice:
        placement = f"--tpu-topology {topology}"
    values = {
        **{name: getattr(arguments, name) for name in _PATTERNS},
        "config_name": file,
        "config_text": Path(arguments.config).read_text() if has_file else "",
        "grace_seconds": _GRACE_SECONDS[arguments.spot],
        "chips": accelerator.cloud.gke_accelerator,
        "region": arguments.zone.rpartition("-")[0],
        "machine": _machine_type(accelerator),
        "topology": topology,
        # A failure of one host fails the others, in another way.
        "on_failure": "RestartJobSet" if is_slice else "FailJobSet",
        "member": f"serviceAccount:{arguments.project}.svc.id.goog[default/{arguments.name}]",
        # Kubernetes reads `$$` as `$`.
        "train": script.replace("$", "$$"),
        "chips_per_host": accelerator.chips_per_host,
        "hosts": accelerator.num_hosts,
    }
    lines = (_FOLDER / "jobset.yaml").read_text().splitlines(keepends=True)
    # Words of lines that only some manifests have.
    left_out = [] if arguments.spot else ["gke-spot"]
    left_out += [] if is_slice else ["exclusive-topology"]
    left_out += [] if has_policy else ["workload-policy", "accelerator-topology"]
    template = "".join(line for line in lines if not any(word in line for word in left_out))
    literals = {key: json.dumps(value) for key, value in values.items()}
    options = {"spot": "--spot" if arguments.spot else "", "placement": placement}
    return string.Template(template).substitute(literals, **options)


def _train_words(arguments: argparse.Namespace, config: str) -> list[str]:
    words = ["--config", config, "--data", arguments.data, "--workdir", arguments.workdir]
    # With `=`, a value that begins with a hyphen is still a value.
    return words + [f"--set={override}" for override in arguments.overrides]
