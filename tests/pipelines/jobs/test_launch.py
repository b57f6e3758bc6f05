"""`txl launch`: its scripts and manifests, and the script that starts a job again."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pipelines.jobs.launch
from pipelines.command_line import main

LAUNCH = Path(pipelines.jobs.launch.__file__).parents[1] / "launch"
DATA = "gs://bucket/a'c\"$(touch<x);`y`"
WORDS = {"--zone": "us-central1-a", "--project": "my-project", "--name": "my-run", "--data": DATA}
WORDS |= {"--config": "enwik8_base", "--workdir": "gs://bucket/run"}
GKE = {"--image": "gcr.io/p/i:1", "--cluster": "c", "--service-account": "a@p.example"}
# Records its arguments and answers like `gcloud`.
GCLOUD = f"""#!{sys.executable}
import json, sys
open("calls", "a").write(json.dumps(sys.argv) + chr(10))
if "describe" in sys.argv:
    print("ACTIVE" if "queued-resources" in sys.argv else "10.0.0.1;10.0.0.2")
"""


def launch(capsys, kind, accelerator_type="v5e:2x4", code=0, **changed):
    words = WORDS | (GKE if kind == "gke-jobset" else {}) | changed
    options = [f"{name}={value}" for name, value in words.items()]
    options += ["--kind", kind, "--accelerator-type", accelerator_type, "--spot"]
    assert main(["launch", *options]) == code
    output = capsys.readouterr()
    return output.err if code else output.out


@pytest.mark.parametrize(
    ("kind", "accelerator_type"),
    [("tpu-vm", "v5e:2x4"), ("queued-resource", "v5e:2x4"), ("pod-slice", "v5litepod-16")],
)
def test_a_script_creates_installs_trains_and_deletes(kind, accelerator_type, capsys, tmp_path):
    (tmp_path / "mine.toml").write_text('base = "quickstart"\n[training]\nnum_steps = 700\n')
    config = {"--config": str(tmp_path / "mine.toml")}
    (tmp_path / "launch.sh").write_text(launch(capsys, kind, accelerator_type, **config))
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    for name in ("pyproject.toml", "README.md", "txl_tf", "pipelines"):
        (tmp_path / name).touch()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for step in ("start", "follow", "stop", "delete"):
        subprocess.run(["sh", "launch.sh", step], cwd=tmp_path, env=environment, check=True)
    calls = [json.loads(line)[1:] for line in (tmp_path / "calls").read_text().splitlines()]
    assert "create" in calls[0] and "delete" in calls[-1]
    assert all(words[words.index("--zone") + 1] == WORDS["--zone"] for words in calls)
    assert any("scp" in words and config["--config"] in words for words in calls)
    remote = [words[words.index("--command") + 1] for words in calls if "--command" in words]
    text = "\n".join(remote)
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    order = ["--require-hashes", "--no-deps tensorflow-text==2.20.1", "txl doctor", "txl train"]
    order += ["tail ", "kill "]
    assert [*map(text.index, order)] == sorted(map(text.index, order))
    train = next(shlex.split(command) for command in remote if "txl train" in command)
    assert train[train.index("--data") + 1] == DATA
    assert train[train.index("--config") + 1] == "./mine.toml"
    is_slice = kind == "pod-slice"
    assert ("TPU_LOAD_LIBRARY=0" in train) == is_slice == ("worker_server" in text)
    assert ("echo grpc://10.0.0.1:8470,grpc://10.0.0.2:8470" in text) == is_slice


@pytest.mark.parametrize(
    ("kind", "accelerator_type", "changed", "word"),
    [
        ("tpu-vm", "v5e:2x4", {"--workdir": "/tmp/run"}, "--workdir"),
        ("tpu-vm", "v5litepod-12", {}, "--accelerator-type"),
        ("tpu-vm", "v5litepod-16", {}, "pod-slice"),
        ("gke-jobset", "v5e:2x4", {"--runtime-version": "x"}, "--runtime-version"),
        ("gke-jobset", "tpu7x:2x2x1", {"--backend": "tensorflow"}, "--backend jax"),
        ("tpu-vm", "tpu7x:2x2x1", {}, "gke-jobset"),
        ("tpu-vm", "v6e-8", {"--backend": "jax"}, "gke-jobset"),
        ("pod-slice", "v6e-16", {}, "--kind gke-jobset --backend jax"),
        ("gke-jobset", "v5e:4x4", {"--backend": "tensorflow"}, "--backend jax"),
        ("gke-jobset", "v3-32", {}, "--kind pod-slice"),
    ],
)
def test_wrong_arguments_are_named(kind, accelerator_type, changed, word, capsys):
    assert word in launch(capsys, kind, accelerator_type, code=2, **changed)


@pytest.mark.parametrize(
    ("accelerator_type", "num_hosts", "machine", "chips", "shape", "placement"),
    [
        ("v5litepod-8", 1, "ct5lp-hightpu-8t", "tpu-v5-lite-podslice", "2x4", ""),
        ("v5litepod-16", 4, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice", "4x4", "--tpu-topology"),
        ("tpu7x:2x2x1", 1, "tpu7x-standard-4t", "tpu7x", "2x2x1", ""),
        ("tpu7x-16", 2, "tpu7x-standard-4t", "tpu7x", "2x2x2", "--placement-policy my-run"),
        ("v6e-16", 4, "ct6e-standard-4t", "tpu-v6e-slice", "4x4", "--tpu-topology 4x4"),
    ],
)
def test_kubernetes_reads_the_manifest(
    accelerator_type, num_hosts, machine, chips, shape, placement, capsys
):
    yaml = pytest.importorskip("yaml")
    text = launch(capsys, "gke-jobset", accelerator_type)
    assert f'--machine-type "{machine}"' in text and placement in text
    assert ("--placement-policy" in text or "--tpu-topology" in text) == (placement != "")
    assert ("workload-policy" in text) == ("--placement-policy" in text)
    (job_set,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "JobSet")
    (job,) = job_set["spec"]["replicatedJobs"]
    hosts = job["template"]["spec"]
    # GKE tells the pods of an indexed job their places, by which JAX finds the others.
    assert hosts["completionMode"] == "Indexed"
    assert hosts["parallelism"] == hosts["completions"] == num_hosts
    pod = hosts["template"]["spec"]
    selector, (container,) = pod["nodeSelector"], pod["containers"]
    assert selector["cloud.google.com/gke-tpu-accelerator"] == chips
    assert selector["cloud.google.com/gke-tpu-topology"] == shape
    per_host = int(machine[-2])
    assert container["resources"]["limits"] == {"google.com/tpu": per_host}
    command = container["command"][-1].replace("$$", "$")
    words = shlex.split(command)
    # One host of v5e trains with TensorFlow. JAX sees the chips of a slice with all its hosts.
    is_on_jax = accelerator_type != "v5litepod-8"
    expected = ["train", "--backend", "jax", "--tpu"] if is_on_jax else ["train", "--tpu", "local"]
    train = words[words.index("train") :]
    assert train[: len(expected)] == expected
    assert train[train.index("--data") + 1] == DATA
    assert ("--tpu" in words[: words.index("train")]) != is_on_jax
    assert ("run_until_done.sh" in command) == (num_hosts == 1)
    subprocess.run(["sh", "-n"], input=command, text=True, check=True)


def run_until_done(program, folder, **environment):
    """Starts the script, and waits until its child has written a log."""
    words = ["sh", str(LAUNCH / "run_until_done.sh"), "sh", "-c", f"echo run >> log; {program}"]
    process = subprocess.Popen(words, cwd=folder, env={**os.environ, **environment})
    while not (folder / "log").exists():
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    ("program", "code", "runs"),
    [
        ("exit 70", 70, 1),
        ("kill -KILL $$", 137, 3),
        # Hosts that were taken away may not be back yet; at the first start none is awaited.
        ("exit 66", 66, 1),
        ("case $(wc -l < log) in 1|4) exit 75;; 2|3|5|6) exit 66;; esac", 0, 7),
    ],
)
def test_a_job_is_run_again_if_that_is_of_use(program, code, runs, tmp_path):
    settings = {"TXL_MAX_CRASHES": "2", "TXL_PAUSE_SECONDS": "0"}
    assert run_until_done(program, tmp_path, **settings).wait(timeout=30) == code
    assert len((tmp_path / "log").read_text().splitlines()) == runs


@pytest.mark.parametrize(
    "program", ["trap 'exit 75' TERM; while :; do sleep 0.02; done", "exit 75"]
)
def test_a_stop_reaches_the_job_or_ends_the_pause(program, tmp_path):
    process = run_until_done(program, tmp_path, TXL_PAUSE_SECONDS="60")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 75
    assert (tmp_path / "log").read_text() == "run\n"
