"""Diagnosis of an installation with a remedy for each problem: `txl doctor`.

    txl doctor
    txl doctor --tpu local --folder gs://BUCKET/runs

Checks what can be seen before it starts TensorFlow, and TensorFlow in a process
of its own, so that a crash or a hang is a finding like any other. Exit codes: 0
no fault (there may be warnings); else that of the first fault, since later ones
often follow from it: 78 versions or settings, 66 no TPU, 73 the TPU is in use,
74 a folder, 70 a device that adds up wrong.
"""

import argparse
import json
import os
from collections.abc import Iterator

from txl_tf.errors import UsageError
from txl_tf.models.sizes import CheckpointCost
from txl_tf.storage.files import is_remote

from .arguments import add_config_argument, add_number, add_tpu_argument, load_experiment
from .command_line import run_job
from .diagnosis import Finding, machine_checks, version_checks
from .diagnosis.tensorflow_checks import run_probe, tensorflow_findings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_tpu_argument(parser, "check this TPU (default: what there is)")
    parser.add_argument(
        "--folder",
        metavar="PATH",
        action="append",
        default=[],
        dest="folders",
        help="check that a job can write here; may be repeated",
    )
    add_config_argument(
        parser, help="check that there is time and room for the checkpoints of this experiment"
    )
    add_number(
        parser,
        "--timeout-seconds",
        0.001,
        86_400.0,
        "how long TensorFlow may take for its part",
        default=300.0,
        metavar="S",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments."""
    if "" in arguments.folders:
        raise UsageError("An empty name stands for nothing.", where="--folder")


def run(arguments: argparse.Namespace) -> None:
    """Checks, and prints each finding as it is made."""
    findings = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            print(finding.describe(), flush=True)
    if arguments.json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=2))
    faults = [finding for finding in findings if finding.status == "fault"]
    if faults:
        count = "One fault was" if len(faults) == 1 else f"{len(faults)} faults were"
        first = faults[0]
        raise first.error(
            f"{count} found, the first of them:",
            where=f"{first.check}: {first.what}",
            remedy=first.remedy,
        )


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    facts, tested = machine_checks.MachineFacts.collect(), version_checks.TestedVersions.read()
    yield from filter(None, _findings_before_tensorflow(facts, tested, arguments.tpu))
    local = [folder for folder in arguments.folders if not is_remote(folder)]
    yield from map(machine_checks.check_folder, local)
    if arguments.config is not None:
        experiment = load_experiment(arguments.config, [])
        yield from machine_checks.check_checkpoints(CheckpointCost.of(experiment))
    remote = [folder for folder in arguments.folders if is_remote(folder)]
    report = run_probe(
        {"tpu": arguments.tpu, "folders": remote}, arguments.timeout_seconds, os.environ
    )
    yield from tensorflow_findings(report, facts, tested)


def _findings_before_tensorflow(
    facts: machine_checks.MachineFacts, tested: version_checks.TestedVersions, tpu: str | None
) -> Iterator[Finding | None]:
    yield version_checks.check_python(facts, tested)
    yield version_checks.check_build(facts, tested)
    yield version_checks.check_libtpu(facts, tested)
    yield from version_checks.check_core_packages(facts, tested)
    yield version_checks.check_other_packages(facts, tested)
    yield from machine_checks.check_environment(facts, tpu)
    yield machine_checks.check_keras_settings(facts)
    yield machine_checks.check_tpu_files(facts, tpu)
    yield machine_checks.check_tpu_lock(facts, tpu)
    yield machine_checks.check_metadata(facts)


if __name__ == "__main__":
    raise SystemExit(run_job("doctor"))
