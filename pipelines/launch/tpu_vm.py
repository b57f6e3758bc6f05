"""Shell commands for a TPU VM, a queued resource and a multi-host slice."""

import shlex

from .plan import (
    LaunchPlan,
    ShellText,
    command,
    doctor_words,
    install_commands,
    join,
    section,
    train_words,
)

_GCLOUD = ("gcloud", "compute", "tpus")
_CODE = "txl-tf"
_PROGRAMS = "txl-environment/bin"
_ARCHIVE = "txl-tf.tar.gz"
_LOG = "txl-train.log"
_PROCESS_ID = "txl-train.pid"
_RUN_UNTIL_DONE = f"{_CODE}/pipelines/launch/run_until_done.sh"


def tpu_vm_script(plan: LaunchPlan) -> str:
    """Returns the commands from creating the TPU VM to deleting it."""
    return _node_script(plan, "Create the TPU VM.", host_sections(plan))


def _node_script(plan: LaunchPlan, title: str, sections: list[str]) -> str:
    """A node that is created, used and deleted."""
    words = ["tpu-vm", "create", plan.name]
    words += ["--accelerator-type", plan.accelerator.name, "--version", plan.runtime_version]
    create = gcloud(plan, *words, *(["--spot"] if plan.is_spot else []))
    delete = gcloud(plan, "tpu-vm", "delete", plan.name, "--quiet")
    return "\n".join([section(title, create), *sections, section("Delete it.", delete)])


def gcloud(plan: LaunchPlan, *words: str) -> str:
    """Returns a command of `gcloud compute tpus` in the zone and project of the plan."""
    return command([*_GCLOUD, *words, "--zone", plan.zone, "--project", plan.project])


def host_sections(plan: LaunchPlan) -> list[str]:
    """Renders the commands on a TPU VM, from copying the code to reading the logs."""
    return [*install_sections(plan), *job_sections(plan, "local", ())]


def install_sections(plan: LaunchPlan, worker: str = "0") -> list[str]:
    """Renders the commands that copy and install the code, on a numbered host or `all`."""
    return [
        _copy_section(plan, worker),
        section("Install what is locked, then the code.", on_host(plan, _install(), worker)),
    ]


def job_sections(plan: LaunchPlan, tpu: str, environment: tuple[str, ...]) -> list[str]:
    """Renders the commands that check, train, follow and stop, on the first host.

    Args:
        plan: `LaunchPlan`.
        tpu: str. Value of `--tpu`: `local`, or a `ShellText`.
        environment: `NAME=value` words before each job.
    """
    train = ["nohup", "env", *environment, "sh", _RUN_UNTIL_DONE, *train_words(plan, tpu)]
    start = f"{join(train)} > {_LOG} 2>&1 < /dev/null & echo $! > {_PROCESS_ID}"
    stop = f'kill -s TERM "$(cat {_PROCESS_ID})"'
    return [
        section(
            "Check the machine and the folder of the run before money is spent.",
            on_host(plan, with_path(join(["env", *environment, *doctor_words(plan, tpu)]))),
        ),
        section(
            "Train. The job outlives the connection, and starts again after a preemption\n"
            "that leaves the machine. Where the machine is gone, run all of this again: the\n"
            "run resumes from its last checkpoint.",
            on_host(plan, with_path(f"{{ {start}; }}")),
        ),
        section("Follow it.", on_host(plan, f"tail -n 100 -F {_LOG}")),
        section(
            "Watch it, on any machine that may read the folder.",
            command(["tensorboard", "--logdir", plan.tensorboard]),
        ),
        section("Stop it early; it saves first.", on_host(plan, stop)),
    ]


def on_host(plan: LaunchPlan, remote_command: str, worker: str = "0") -> str:
    """Runs a command on the first host, another one, or `all`."""
    words = ["tpu-vm", "ssh", plan.name, "--worker", worker, "--command", remote_command]
    return gcloud(plan, *words)


def _copy_section(plan: LaunchPlan, worker: str) -> str:
    if plan.repository is not None:
        clone = join(["git", "clone", "--", plan.repository, _CODE])
        update = f"git -C {_CODE} pull --ff-only"
        fetch = f"if test -d {_CODE}; then {update}; else {clone}; fi"
        return section("Fetch the code.", on_host(plan, fetch, worker))
    parts = ["pyproject.toml", "README.md", "txl_tf", "pipelines"]
    pack = command(["tar", "--create", "--gzip", "--file", _ARCHIVE, *parts])
    words = ["tpu-vm", "scp", _ARCHIVE, f"{plan.name}:{_ARCHIVE}", "--worker", worker]
    unpack = f"mkdir -p {_CODE} && tar --extract --gzip --file {_ARCHIVE} --directory {_CODE}"
    return section(
        "Copy the code; run this in the checkout.",
        pack,
        gcloud(plan, *words),
        on_host(plan, unpack, worker),
    )


def _install() -> str:
    # The images have an older Python. Its package is asked for even where there is one,
    # because the module `venv` may be missing.
    packages = "sudo apt-get update && sudo apt-get install --yes python3.11 python3.11-venv"
    environment = f"python3.11 -m venv {_PROGRAMS.partition('/')[0]}"
    code = install_commands(f"./{_CODE}", f"{_PROGRAMS}/pip")
    return " && ".join([packages, environment, *code])


def with_path(remote_command: str) -> str:
    """Returns a command that finds the programs that were installed."""
    return f'export PATH="$HOME/{_PROGRAMS}:$PATH" && {remote_command}'


PORT = 8470
"""Where TensorFlow's server on each host answers."""

_ADDRESSES = "txl-tpu-addresses"
_SERVER = "txl_tf_pipelines.launch.worker_server"
_SERVER_LOG = "txl-server.log"
_SERVER_ID = "txl-server.pid"
# The servers hold the chips; a process beside one must leave them alone.
_ENVIRONMENT = ("TPU_LOAD_LIBRARY=0",)


def pod_slice_script(plan: LaunchPlan) -> str:
    """Returns the commands from creating the slice to deleting it."""
    return _node_script(plan, "Create the slice.", pod_sections(plan))


def pod_sections(plan: LaunchPlan) -> list[str]:
    """Renders the commands that follow the creation of a multi-host slice.

    Every host runs the server of the `tensorflow-tpu` package, which is
    installed on all of them. Training runs on the first host only and gives the
    servers their work.
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


_POLL_SECONDS = 30
# States that it does not leave by itself.
_LOST = "FAILED|SUSPENDING|SUSPENDED"


def queued_resource_script(plan: LaunchPlan) -> str:
    """Returns the commands from asking for a TPU of one host or several to giving it back."""
    words = ["queued-resources", "create", plan.name, "--node-id", plan.name]
    words += ["--accelerator-type", plan.accelerator.name]
    words += ["--runtime-version", plan.runtime_version, *(["--spot"] if plan.is_spot else [])]
    describe = gcloud(
        plan, "queued-resources", "describe", plan.name, "--format", "value(state.state)"
    )
    delete = gcloud(plan, "queued-resources", "delete", plan.name, "--force", "--quiet")
    sections = host_sections if plan.accelerator.num_hosts == 1 else pod_sections
    return "\n".join(
        [
            section("Ask for the TPU.", gcloud(plan, *words)),
            section("Wait until it is there.", _wait(describe, plan.name)),
            *sections(plan),
            section("Give it back, whatever state it is in.", delete),
        ]
    )


def _wait(describe: str, name: str) -> str:
    lost = shlex.quote(f"{name} was not granted, or is lost: delete it and ask again.")
    return "\n".join(
        [
            f'until state="$({describe})" && test "$state" = ACTIVE; do',
            '    case "$state" in',
            f"        {_LOST}) echo {lost} >&2; break ;;",
            "    esac",
            f"    sleep {_POLL_SECONDS}",
            "done",
        ]
    )
