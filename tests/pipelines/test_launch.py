"""`txl launch`: what it refuses, and that shells, gcloud and Kubernetes understand the rest."""

import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from pipelines.command_line import main
from pipelines.launch.plan import (
    EXAMPLES,
    Accelerator,
    ShellText,
    command,
    join,
    support_of,
    support_table,
)

ODD = "a b'c\"$(touch x);`y`"
BASE = {
    "--accelerator-type": "v5litepod-8",
    "--zone": "us-central1-a",
    "--project": "my-project",
    "--name": "my-run",
    "--config": "enwik8_base",
    "--data": "gs://bucket/data",
    "--workdir": "gs://bucket/run",
}
IMAGE = {"--image": "gcr.io/my-project/txl-tf:1"}
GCLOUD = ("tpu-vm", "queued-resource", "pod-slice")
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="there is no gcloud")


def arguments_of(kind, *more, **changed):
    values = {**BASE, **(IMAGE if kind == "gke-jobset" else {})}
    if kind == "pod-slice":
        values["--accelerator-type"] = "v5litepod-16"
    values |= {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return ["launch", "--kind", kind, *(word for pair in values.items() for word in pair), *more]


@pytest.fixture
def launched(capsys):
    def launch(kind, *more, **changed):
        code = main(arguments_of(kind, *more, **changed))
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return launch


def commands_of(text):
    """The commands of a script as words."""
    lines = text.replace("\\\n", "").splitlines()
    words = [shlex.split(line) for line in lines if line and not line.startswith("#")]
    return [each for each in words if each[:3] == ["gcloud", "compute", "tpus"]]


def remote_commands(text):
    words = [each for each in commands_of(text) if "--command" in each]
    return [each[each.index("--command") + 1] for each in words]


@pytest.mark.parametrize("kind", GCLOUD)
def test_scripts_are_shell_and_their_remote_commands_too(kind, launched):
    text = launched(kind, "--spot", "--set", "training.num_steps=10")
    for script in [text, *remote_commands(text)]:
        checked = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr
    for words in commands_of(text):
        assert words[words.index("--zone") + 1] == BASE["--zone"]
        assert words[words.index("--project") + 1] == BASE["--project"]


@pytest.mark.parametrize("kind", GCLOUD)
def test_a_script_goes_from_creation_to_deletion(kind, launched):
    text = launched(kind)
    first, *_, last = commands_of(text)
    assert "create" in first
    assert BASE["--name"] in first
    assert "delete" in last
    order = ["create", "--require-hashes", "--no-deps tensorflow-text==2.20.1", "txl doctor"]
    order += ["run_until_done.sh txl train", "tail ", "--logdir gs://bucket/run/tensorboard"]
    places = [*map(text.index, order), text.rindex(" delete ")]
    assert places == sorted(places)


@pytest.mark.parametrize("kind", ["tpu-vm", "gke-jobset"])
def test_odd_characters_reach_the_job_as_they_are(kind, launched):
    data = f"gs://bucket/{ODD.replace(' ', '')}"
    text = launched(kind, data=data)
    if kind == "tpu-vm":
        (train,) = [each for each in remote_commands(text) if "txl train" in each]
    else:
        train = block_of(text)
    words = shlex.split(train.replace("$$", "$").replace("\\\n", ""))
    assert words[words.index("--data") + 1] == data


def block_of(manifest):
    text = "".join(line for line in manifest.splitlines(True) if not line.startswith("#"))
    (job,) = json.loads(text)["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]


def test_quoted_words_come_back_from_the_shell():
    words = ["printf", "%s\\n", *[f"--option={ODD}{number}" for number in range(5)]]
    for text in (command(words), join(words)):
        printed = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
        assert printed.stdout.splitlines() == words[2:]
    assert join(["echo", ShellText('"$HOME"')]) == 'echo "$HOME"'


def test_a_slice_is_driven_by_its_first_host_through_the_servers_of_all(launched):
    text = launched("pod-slice")
    (pipe,) = re.findall(r"\|( tr .*)\)\"", text)
    joined = subprocess.run(
        ["sh", "-c", pipe], input="10.0.0.1;10.0.0.2\n", capture_output=True, text=True, check=True
    )
    assert joined.stdout.strip() == "grpc://10.0.0.1:8470,grpc://10.0.0.2:8470"
    assert "--version v2-alpha-tpuv5-lite" in text
    # The code and the server are on all hosts; the job and its stop are the first one's.
    remote = [words for words in commands_of(text) if {"ssh", "scp"} & set(words)]
    hosts = {
        words[-1]: words[words.index("--worker") + 1] for words in remote if "--command" in words
    }
    for command_line, host in hosts.items():
        is_everywhere = any(
            part in command_line for part in ("pip install", "worker_server", "tar --extract")
        )
        assert host == ("all" if is_everywhere else "0"), command_line
    (serve,) = [each for each in remote_commands(text) if "worker_server" in each]
    assert "--tpu-vm --port 8470" in serve
    (train,) = [each for each in remote_commands(text) if "txl train" in each]
    assert "TPU_LOAD_LIBRARY=0 sh" in train
    assert '--tpu "$(cat txl-tpu-addresses)"' in train


def test_the_code_is_cloned_where_a_repository_is_given(launched):
    address = "https://host.example/txl-tf.git"
    text = launched("tpu-vm", repository=address)
    assert f"git clone -- {address} txl-tf" in text
    assert " scp " not in text


@pytest.mark.parametrize(
    ("kind", "changed", "word"),
    [
        ("tpu-vm", {"name": "My_Run"}, "--name"),
        ("tpu-vm", {"name": "a;b"}, "--name"),
        ("tpu-vm", {"name": "a" * 41}, "--name"),
        ("tpu-vm", {"zone": "here"}, "--zone"),
        ("tpu-vm", {"project": "P"}, "--project"),
        ("tpu-vm", {"workdir": "/tmp/run"}, "--workdir"),
        ("tpu-vm", {"data": "data"}, "--data"),
        ("tpu-vm", {"config": "mine.json"}, "--config"),
        ("tpu-vm", {"set": "model.depth=3"}, "model.depth"),
        ("tpu-vm", {"accelerator_type": "v9-8"}, "--accelerator-type"),
        ("tpu-vm", {"accelerator_type": "v5litepod-12"}, "--accelerator-type"),
        ("tpu-vm", {"accelerator_type": "v5litepod-16"}, "pod-slice"),
        ("pod-slice", {"accelerator_type": "v5litepod-8"}, "tpu-vm"),
        ("pod-slice", {"accelerator_type": "v6e-16"}, "no v6e slice"),
        ("queued-resource", {"accelerator_type": "v6e-16"}, "no v6e slice"),
        ("tpu-vm", {"runtime_version": "--x"}, "--runtime-version"),
        ("tpu-vm", {"repository": "ext::sh"}, "--repository"),
        ("tpu-vm", {"image": "gcr.io/p/i"}, "--image"),
        ("gke-jobset", {"image": "a b"}, "--image"),
        ("gke-jobset", {"accelerator_type": "v2-8"}, "--accelerator-type"),
        ("gke-jobset", {"runtime_version": "x"}, "--runtime-version"),
    ],
)
def test_wrong_arguments_are_named_with_exit_code_2(kind, changed, word, capsys):
    values = {name: value for name, value in changed.items() if not value.startswith("--")}
    more = [f"--{name.replace('_', '-')}={changed[name]}" for name in changed.keys() - values]
    assert main(arguments_of(kind, *more, **values)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert word in printed.err
    assert len(printed.err.splitlines()) <= 3


def test_hosts_and_shapes_fit_together():
    for name in [*EXAMPLES, "v5litepod-1", "v5litepod-4", "v6e-256", "v4-8", "v5p-8", "v4-4096"]:
        slice_ = Accelerator.parse(name)
        assert slice_.num_hosts * slice_.chips_per_host == slice_.num_chips
        # Images that the provider's page of TPU software versions names.
        assert slice_.runtime_version in {
            "tpu-ubuntu2204-base",
            "v2-alpha-tpuv5-lite",
            "v2-alpha-tpuv5",
            "v2-alpha-tpuv6e",
        }
    hosts = {"v2-8": 1, "v3-32": 4, "v4-32": 4, "v5litepod-8": 1, "v5litepod-16": 4, "v6e-8": 1}
    assert {name: Accelerator.parse(name).num_hosts for name in hosts} == hosts
    assert Accelerator.parse("v5p-32").topology == "2x2x4"


def test_every_slice_says_what_is_expected_and_what_is_unproven(launched):
    assert "# Expected: works" in launched("pod-slice").splitlines()[0]
    assert "# Unproven: nothing here has run on a TPU" in launched("tpu-vm")
    rows = support_table().splitlines()[2:]
    assert len(rows) == 12  # six generations, on one host and on several
    for name in EXAMPLES:
        support = support_of(Accelerator.parse(name))
        assert any(support.expected in row and support.unproven in row for row in rows)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["prepare"], "0"),
        (["train", "--tpu", "grpc://a:1"], "0"),
        (["train", "--tpu", "local"], None),
    ],
)
def test_side_jobs_leave_the_chips_to_the_job_that_trains(words, value, monkeypatch):
    seen = []
    module = importlib.import_module(f"pipelines.{words[0]}")
    monkeypatch.delenv("TPU_LOAD_LIBRARY", raising=False)
    monkeypatch.setattr(
        module, "check_arguments", lambda _: seen.append(os.environ.get("TPU_LOAD_LIBRARY"))
    )
    monkeypatch.setattr(module, "run", lambda _: None)
    required = {
        "prepare": ["--text", "t", "--out", "o"],
        "train": ["--data", "d", "--workdir", "w"],
    }
    assert main([*words, *required[words[0]]]) == 0
    assert seen == [value]


def from_yaml(text):
    """What kubectl reads; it needs no cluster for this."""
    finished = subprocess.run(
        ["kubectl", "annotate", "--local", "-f", "-", "-o", "json", "read=yes"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    value = json.loads(finished.stdout)
    del value["metadata"]["annotations"]
    return value


@needs_kubectl
@pytest.mark.parametrize("accelerator_type", ["v5litepod-8", "v5litepod-16"])
def test_the_manifest_is_what_kubernetes_reads(accelerator_type, launched):
    text = launched("gke-jobset", "--spot", accelerator_type=accelerator_type)
    manifest = from_yaml(text)
    spec = manifest["spec"]
    jobs = {job["name"]: job["template"]["spec"] for job in spec["replicatedJobs"]}
    with_chips = jobs.get("servers", jobs["trainer"])
    pod = with_chips["template"]["spec"]
    accelerator = Accelerator.parse(accelerator_type)
    assert with_chips["parallelism"] == with_chips["completions"] == accelerator.num_hosts
    selector = pod["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    assert selector["cloud.google.com/gke-tpu-topology"] == accelerator.topology
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"google.com/tpu": str(accelerator.chips_per_host)}
    assert 0 < pod["terminationGracePeriodSeconds"] <= 25
    first = spec["failurePolicy"]["rules"][0]
    assert first["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    for name, job in jobs.items():
        codes = job["podFailurePolicy"]["rules"][0]["onExitCodes"]
        assert codes == {"containerName": name, "operator": "In", "values": [75]}
        assert_known_to_kubernetes(job)


def assert_known_to_kubernetes(spec):
    """kubectl knows jobs: what comes back is what it has understood."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}
    finished = subprocess.run(
        ["kubectl", "set", "env", "--local", "-f", "-", "-o", "json", "ADDED=yes"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    understood = json.loads(finished.stdout)["spec"]
    containers = understood["template"]["spec"]["containers"]
    assert containers[0]["env"].pop() == {"name": "ADDED", "value": "yes"}
    assert with_defaults_removed(understood, spec) == spec


def with_defaults_removed(understood, given):
    """Leaves out what kubectl has added by itself."""
    if isinstance(given, dict):
        kept = understood.keys() & given.keys()
        return {key: with_defaults_removed(understood[key], given[key]) for key in kept}
    if isinstance(given, list) and len(given) == len(understood):
        return [with_defaults_removed(*pair) for pair in zip(understood, given, strict=True)]
    return understood


@functools.cache
def help_of(*words):
    finished = subprocess.run(
        ["gcloud", *words, "--help"], capture_output=True, text=True, check=True
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", finished.stdout)


@pytest.mark.slow
@needs_gcloud
@pytest.mark.parametrize("kind", GCLOUD)
def test_gcloud_knows_every_option(kind, launched):
    for words in commands_of(launched(kind, "--spot")):
        words = words[: words.index("--command") + 1] if "--command" in words else words
        verbs = {"create", "ssh", "scp", "delete", "describe"}
        place = next(index for index, word in enumerate(words) if word in verbs)
        text = help_of(*words[1 : place + 1])
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"{option}\b", text), (words, option)


CLIENT = """
import sys, tensorflow as tf
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://localhost:" + sys.argv[1])
tf.config.experimental_connect_to_cluster(resolver)
with tf.device("/job:worker/task:0"):
    print((tf.constant(1) + 1).device)
"""


@pytest.mark.slow
def test_a_server_does_the_work_of_a_client_and_ends_when_it_is_told_to():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command_line = [sys.executable, "-m", "pipelines.launch.worker_server", "--port", port]
    command_line += ["--grace-seconds", "0.2"]
    server = subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True)
    try:
        assert port in server.stdout.readline()
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, port], capture_output=True, text=True, timeout=120
        )
        assert "/job:worker/replica:0/task:0" in client.stdout, client.stderr
        server.terminate()
        assert server.wait(timeout=20) == 128 + signal.SIGTERM
    finally:
        server.kill()
        server.stdout.close()
