"""JobSet manifest for Google Kubernetes Engine."""

import json
from typing import Any

from .plan import (
    LaunchPlan,
    ShellText,
    command,
    doctor_words,
    install_commands,
    join,
    train_words,
)
from .tpu_vm import PORT

_PREEMPTED = 75
_MAX_RESTARTS = 5
# What remains of a spot machine once it is to be taken away is 30 s, of which GKE keeps some.
_SPOT_GRACE_SECONDS = 25
_GRACE_SECONDS = 300
_SPARE_SECONDS = 3
_ONE_SLICE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
_TRAINER = "trainer"
_SERVERS = "servers"
_RUN_UNTIL_DONE = ShellText(
    '"$(python -c "from txl_tf_pipelines.launch import plan; print(plan.RUN_UNTIL_DONE)")"'
)


def job_set(plan: LaunchPlan) -> dict[str, Any]:
    """Returns the manifest as plain values.

    On one host the trainer uses the chips of its machine. On several, every
    machine with chips runs TensorFlow's server, and a trainer without chips
    gives the servers their work.

    Args:
        plan: `LaunchPlan` with an image.
    """
    rules: list[dict[str, Any]] = [
        # What a job's own rules have ended: exit code 75, or a machine that was taken away.
        {
            "name": "preempted",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
        }
    ]
    if plan.accelerator.num_hosts == 1:
        # Damaged data or a wrong setting would only fail again. Where there are servers, the
        # trainer may have failed because one of them was lost, so those cases are tried again.
        rules.append(
            {
                "name": "failed",
                "action": "FailJobSet",
                "onJobFailureReasons": ["BackoffLimitExceeded"],
            }
        )
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": plan.name},
        "spec": {
            "failurePolicy": {"maxRestarts": _MAX_RESTARTS, "rules": rules},
            # Servers never end by themselves.
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [_TRAINER]},
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": _replicated_jobs(plan),
        },
    }


def gke_job_set_manifest(plan: LaunchPlan) -> str:
    """Returns YAML for `kubectl apply -f -`: comments with commands, then the manifest as JSON."""
    # YAML does not put two escapes together to one character, as JSON does.
    manifest = json.dumps(job_set(plan), indent=2, ensure_ascii=False)
    return f"{_comments(plan)}{manifest}\n"


def _replicated_jobs(plan: LaunchPlan) -> list[dict[str, Any]]:
    accelerator = plan.accelerator
    if accelerator.num_hosts == 1:
        return [_job(plan, _TRAINER, _training_script(plan, "local"), 1, has_chips=True)]
    # JobSet names a pod by set, job, number of the job and number of the pod.
    hosts = [f"{plan.name}-{_SERVERS}-0-{pod}.{plan.name}" for pod in range(accelerator.num_hosts)]
    tpu = ",".join(f"grpc://{host}:{PORT}" for host in hosts)
    train = _wait_for(hosts) + _training_script(plan, tpu)
    serve = ["exec", "python", "-m", "txl_tf_pipelines.launch.worker_server", "--port", str(PORT)]
    # Less than the pod has, so that it ends by itself.
    serve += ["--grace-seconds", str(_grace_seconds(plan) - _SPARE_SECONDS)]
    return [
        _job(plan, _SERVERS, join(serve), accelerator.num_hosts, has_chips=True),
        _job(plan, _TRAINER, train, 1, has_chips=False),
    ]


def _grace_seconds(plan: LaunchPlan) -> int:
    return _SPOT_GRACE_SECONDS if plan.is_spot else _GRACE_SECONDS


def _wait_for(hosts: list[str]) -> str:
    # The machines come up in any order, and images take their time to load.
    program = f"import socket, sys; socket.create_connection((sys.argv[1], {PORT}), 5)"
    ask = f'{join(["python", "-c", program])} "$host" 2> /dev/null'
    return f"for host in {join(hosts)}; do\n    until {ask}; do sleep 5; done\ndone\n"


def _training_script(plan: LaunchPlan, tpu: str) -> str:
    doctor = command(doctor_words(plan, tpu))
    # `exec`, so that the script is the process that is told to stop.
    train = command(["exec", "sh", _RUN_UNTIL_DONE, *train_words(plan, tpu)])
    return f"set -e\n{doctor}\n{train}\n"


def _job(
    plan: LaunchPlan, name: str, script: str, num_pods: int, *, has_chips: bool
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": name,
        "image": plan.image,
        # Kubernetes has its own meaning for `$(...)`, and reads `$$` as `$`.
        "command": ["sh", "-c", script.replace("$", "$$")],
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _grace_seconds(plan),
        "nodeSelector": {"topology.kubernetes.io/zone": plan.zone},
        "containers": [container],
    }
    if not has_chips:
        container["env"].append({"name": "TPU_LOAD_LIBRARY", "value": "0"})
    else:
        chips = {"google.com/tpu": str(plan.accelerator.chips_per_host)}
        container["resources"] = {"requests": chips, "limits": dict(chips)}
        container["ports"] = [{"containerPort": PORT}]
        pod["nodeSelector"] |= _chip_nodes(plan)
        pod["tolerations"] = _tolerations(plan)
    return {
        "name": name,
        "replicas": 1,
        "template": {
            # Pods with chips share one slice, where the cluster has several.
            **({"metadata": {"annotations": _ONE_SLICE}} if num_pods > 1 else {}),
            "spec": {
                "completionMode": "Indexed",
                "parallelism": num_pods,
                "completions": num_pods,
                "backoffLimit": 0,
                "podFailurePolicy": {"rules": _pod_failure_rules(name)},
                "template": {"spec": pod},
            },
        },
    }


def _pod_failure_rules(container: str) -> list[dict[str, Any]]:
    codes = {"containerName": container, "operator": "In", "values": [_PREEMPTED]}
    taken_away = [{"type": "DisruptionTarget", "status": "True"}]
    # The job ends, and with it the set, which then starts again as a whole: the servers of a
    # slice cannot go on without one of them.
    return [
        {"action": "FailJob", "onExitCodes": codes},
        {"action": "FailJob", "onPodConditions": taken_away},
    ]


def _chip_nodes(plan: LaunchPlan) -> dict[str, str]:
    labels = {
        "cloud.google.com/gke-tpu-accelerator": str(plan.accelerator.gke_accelerator),
        "cloud.google.com/gke-tpu-topology": plan.accelerator.topology,
    }
    return labels | ({"cloud.google.com/gke-spot": "true"} if plan.is_spot else {})


def _tolerations(plan: LaunchPlan) -> list[dict[str, str]]:
    keys = ["google.com/tpu", *(["cloud.google.com/gke-spot"] if plan.is_spot else [])]
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


def _comments(plan: LaunchPlan) -> str:
    build = command(
        ["gcloud", "builds", "submit", "--project", plan.project, "--tag", plan.image or ""]
    )
    trainer = f"job/{plan.name}-{_TRAINER}-0"
    lines = [
        "Needs JobSet 0.6 or newer in the cluster, and a service account of the pods that may",
        "read the data and write the folder of the run.",
        "",
        "The image, from a Dockerfile in the checkout such as",
        "    FROM python:3.11-slim",
        "    WORKDIR /txl-tf",
        "    COPY . .",
        f"    RUN {' && '.join(install_commands('.'))}",
        *build.splitlines(),
        "Begin: give this to",
        "    kubectl apply -f -",
        "Follow, watch, and delete:",
        f"    {join(['kubectl', 'logs', '--follow', trainer])}",
        f"    {join(['tensorboard', '--logdir', plan.tensorboard])}",
        f"    {join(['kubectl', 'delete', 'jobset', plan.name])}",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
