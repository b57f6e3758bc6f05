"""The commands for a queued resource, which waits until there is a TPU to be had."""

import shlex

from pipelines.launch.launch_plan import LaunchPlan
from pipelines.launch.pod_slice import pod_sections
from pipelines.launch.shell import section
from pipelines.launch.tpu_vm import gcloud, host_sections

_POLL_SECONDS = 30
# States that it does not leave by itself.
_LOST = "FAILED|SUSPENDING|SUSPENDED"


def queued_resource_script(plan: LaunchPlan) -> str:
    """The commands from asking for the TPU to giving it back.

    Args:
        plan: `LaunchPlan`; of one host or several.

    Returns:
        Shell text.
    """
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
