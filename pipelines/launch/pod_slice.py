"""The commands for a slice of several hosts, which one process on the first one drives."""

from pipelines.launch.launch_plan import LaunchPlan
from pipelines.launch.shell import ShellText, section
from pipelines.launch.tpu_vm import delete_tpu_vm, gcloud, host_sections

PORT = 8470
"""Where TensorFlow's server on each host answers."""

_ADDRESSES = "txl-tpu-addresses"
# The servers hold the chips; a process beside one must leave them alone.
_ENVIRONMENT = ("TPU_LOAD_LIBRARY=0",)


def pod_slice_script(plan: LaunchPlan) -> str:
    """The commands from creating the slice to deleting it.

    Args:
        plan: `LaunchPlan`.

    Returns:
        Shell text.
    """
    words = ["tpu-vm", "create", plan.name]
    words += ["--accelerator-type", plan.accelerator.name, "--version", plan.runtime_version]
    create = gcloud(plan, *words, *(["--spot"] if plan.is_spot else []))
    return "\n".join(
        [
            section("Create the slice.", create),
            *pod_sections(plan),
            section("Delete it.", delete_tpu_vm(plan)),
        ]
    )


def pod_sections(plan: LaunchPlan) -> list[str]:
    """What is done once the slice is there.

    Every host runs TensorFlow's server, which the image brings; Python runs on
    the first host only and gives the servers their work.

    Args:
        plan: `LaunchPlan`.

    Returns:
        List of shell texts.
    """
    image = gcloud(plan, "tpu-vm", "versions", "describe", plan.runtime_version)
    describe = gcloud(
        plan,
        *("tpu-vm", "describe", plan.name),
        *("--format", "value(networkEndpoints[].ipAddress)"),
    )
    # With the name of the slice instead, TensorFlow asks for a client library of Google's API.
    addresses = (
        f'addresses="$({describe} \\\n'
        f"    | tr ';' '\\n' | sed 's|.*|grpc://&:{PORT}|' | paste -s -d , -)\""
    )
    write = gcloud(
        plan,
        *("tpu-vm", "ssh", plan.name, "--worker", "0"),
        *("--command", ShellText(f'"echo $addresses > {_ADDRESSES}"')),
    )
    return [
        section(
            "The image has to be one whose TensorFlow servers are of the version that is\n"
            "installed below, 2.20.0; this says whether there is such an image in the zone.",
            image,
        ),
        section("Tell the first host where the servers are.", addresses, write),
        *host_sections(plan, ShellText(f'"$(cat {_ADDRESSES})"'), _ENVIRONMENT),
    ]
