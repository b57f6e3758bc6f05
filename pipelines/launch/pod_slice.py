"""The commands for a slice of several hosts, which one process on the first one drives."""

from pipelines.launch.launch_plan import LaunchPlan
from pipelines.launch.shell import ShellText, join, section
from pipelines.launch.tpu_vm import (
    delete_tpu_vm,
    gcloud,
    install_sections,
    job_sections,
    on_host,
    with_path,
)

PORT = 8470
"""Where TensorFlow's server on each host answers."""

_ADDRESSES = "txl-tpu-addresses"
_SERVER = "pipelines.launch.worker_server"
_SERVER_LOG = "txl-server.log"
_SERVER_ID = "txl-server.pid"
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

    Every host runs the server of the `tensorflow-tpu` package, which is
    installed on all of them. Training runs on the first host only and gives the
    servers their work.

    Args:
        plan: `LaunchPlan`.

    Returns:
        List of shell texts.
    """
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
    # A host comes back from maintenance with nobody there to start its server.
    server = join(["python", "-m", _SERVER, "--tpu-vm", "--port", str(PORT)])
    again = join(["nohup", "sh", "-c", f"while :; do {server}; sleep 5; done"])
    serve = f"{{ {again} > {_SERVER_LOG} 2>&1 < /dev/null & echo $! > {_SERVER_ID}; }}"
    return [
        *install_sections(plan, "all"),
        section(
            "Start the server of every host. It is the one that tensorflow-tpu brings, and\n"
            "serves on for some seconds when its host is taken away.",
            on_host(plan, with_path(serve), "all"),
        ),
        section("Tell the first host where the servers are.", addresses, write),
        *job_sections(plan, ShellText(f'"$(cat {_ADDRESSES})"'), _ENVIRONMENT),
    ]
