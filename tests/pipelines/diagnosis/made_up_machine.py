"""A machine where everything is as it was tested; tests change one thing of it."""

import dataclasses

from pipelines.diagnosis.machine_checks import MachineFacts
from pipelines.diagnosis.version_checks import TestedVersions

TESTED = TestedVersions.read()


def good_machine(tmp_path, **changes):
    """A machine with a CPU."""
    facts = MachineFacts(
        python="3.11.7",
        packages=TESTED.packages,
        build_on_disk="tensorflow",
        lock_file=tmp_path / "libtpu_lockfile",
        keras_settings=tmp_path / "keras.json",
    )
    return dataclasses.replace(facts, **changes)


def good_tpu_machine(tmp_path, **changes):
    """A machine with a TPU and the build for it."""
    packages = {**TESTED.packages, "tensorflow-tpu": TESTED.packages["tensorflow"]}
    packages["libtpu"] = TESTED.libtpu
    del packages["tensorflow"]
    facts = good_machine(
        tmp_path, packages=packages, build_on_disk="tensorflow-tpu", tpu_files=("/dev/accel0",)
    )
    return dataclasses.replace(facts, **changes)


def with_packages(facts, **versions):
    """Other versions of some packages, `_` for a hyphen; `None` takes one away."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    packages = {name: each for name, each in {**facts.packages, **named}.items() if each}
    return dataclasses.replace(facts, packages=packages)
