"""The commands for a TPU VM of one host; other kinds share most of them."""

from pipelines.launch.launch_plan import LaunchPlan
from pipelines.launch.shell import (
    both,
    command,
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
    """The commands from creating the TPU VM to deleting it.

    Args:
        plan: `LaunchPlan`.

    Returns:
        Shell text.
    """
    words = ["tpu-vm", "create", plan.name]
    words += ["--accelerator-type", plan.accelerator.name, "--version", plan.runtime_version]
    create = section(
        "Create the TPU VM.", gcloud(plan, *words, *(["--spot"] if plan.is_spot else []))
    )
    delete = section("Delete it.", delete_tpu_vm(plan))
    return "\n".join([create, *host_sections(plan), delete])


def gcloud(plan: LaunchPlan, *words: str) -> str:
    """A command of `gcloud compute tpus` in the zone and project of the plan."""
    return command([*_GCLOUD, *words, "--zone", plan.zone, "--project", plan.project])


def delete_tpu_vm(plan: LaunchPlan) -> str:
    """The command that deletes the node."""
    return gcloud(plan, "tpu-vm", "delete", plan.name, "--quiet")


def host_sections(plan: LaunchPlan) -> list[str]:
    """What is done on a TPU VM, from copying the code to the logs.

    Args:
        plan: `LaunchPlan`.

    Returns:
        List of shell texts.
    """
    return [*install_sections(plan), *job_sections(plan, "local", ())]


def install_sections(plan: LaunchPlan, worker: str = "0") -> list[str]:
    """Copies the code and installs it.

    Args:
        plan: `LaunchPlan`.
        worker: str. Number of a host, or `all`.

    Returns:
        List of shell texts.
    """
    return [
        _copy_section(plan, worker),
        section("Install what is locked, then the code.", on_host(plan, _install(), worker)),
    ]


def job_sections(plan: LaunchPlan, tpu: str, environment: tuple[str, ...]) -> list[str]:
    """Checks, trains, follows and stops, on the first host.

    Args:
        plan: `LaunchPlan`.
        tpu: str. Value of `--tpu`: `local`, or a `ShellText`.
        environment: `NAME=value` words before each job.

    Returns:
        List of shell texts.
    """
    doctor = ["txl", "doctor", "--tpu", tpu, "--folder", plan.workdir]
    doctor += ["--config", plan.config]
    train = train_words(
        tpu=tpu,
        config=plan.config,
        data=plan.data,
        workdir=plan.workdir,
        overrides=plan.overrides,
    )
    train = ["nohup", "env", *environment, "sh", _RUN_UNTIL_DONE, *train]
    start = f"{join(train)} > {_LOG} 2>&1 < /dev/null & echo $! > {_PROCESS_ID}"
    stop = f'kill -s TERM "$(cat {_PROCESS_ID})"'
    return [
        section(
            "Check the machine and the folder of the run before money is spent.",
            on_host(plan, with_path(join(["env", *environment, *doctor]))),
        ),
        section(
            "Train. The job outlives the connection, and starts again after a preemption\n"
            "that leaves the machine. Where the machine is gone, run all of this again: the\n"
            "run goes on from its last checkpoint.",
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
    unpack = both(
        f"mkdir -p {_CODE}", f"tar --extract --gzip --file {_ARCHIVE} --directory {_CODE}"
    )
    return section(
        "Copy the code; run this in the checkout.",
        pack,
        gcloud(plan, *words),
        on_host(plan, unpack, worker),
    )


def _install() -> str:
    packages = "sudo apt-get install --yes python3.11 python3.11-venv"
    return both(
        # The images have an older Python; its package is asked for even where there is one,
        # because the module `venv` may be missing.
        f"sudo apt-get update && {packages}",
        f"python3.11 -m venv {_PROGRAMS.partition('/')[0]}",
        *install_commands(f"./{_CODE}", f"{_PROGRAMS}/pip"),
    )


def with_path(remote_command: str) -> str:
    """A command that finds the programs that were installed."""
    return f'export PATH="$HOME/{_PROGRAMS}:$PATH" && {remote_command}'
