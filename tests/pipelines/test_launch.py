"""`txl launch`: scripts that gcloud and a machine's shell understand, and manifests."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from pipelines import train
from pipelines.command_line import main
from pipelines.launch import machine_type
from txl_tf.tpu_compiler.chips import Topology

ODD = "a'c\"$(touch<x);`y`"
BASE = {"zone": "us-central1-a", "project": "my-project", "name": "my-run"}
BASE |= {"config": "enwik8_base", "data": "gs://bucket/data", "workdir": "gs://bucket/run"}
GKE = {"image": "gcr.io/p/i:1", "cluster": "c", "service_account": "a@p.example"}
TYPES = {"compute": "v6e-8", "pod-slice": "v5litepod-16"}
KINDS = ("tpu-vm", "queued-resource", "pod-slice", "compute")
# Records its words, and answers what is asked of a TPU.
GCLOUD = f"""#!{sys.executable}
import json, sys
open("calls", "a").write(json.dumps(sys.argv) + chr(10))
if "describe" in sys.argv:
    print("ACTIVE" if "queued-resources" in sys.argv else "10.0.0.1;10.0.0.2")
"""


@pytest.fixture
def launched(capsys):
    def launch(kind, *more, code=0, **changed):
        values = {**BASE, "accelerator_type": TYPES.get(kind, "v5e:2x4")}
        values |= {**(GKE if kind == "gke-jobset" else {}), **changed}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        assert main(["launch", "--kind", kind, *words, *more]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return launch


@pytest.fixture
def calls(tmp_path):
    """Runs a script with a gcloud that only notes its words; returns them."""
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    for name in ("pyproject.toml", "README.md", "txl_tf", "pipelines"):
        (tmp_path / name).touch()

    def call(script, *steps):
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        (tmp_path / "launch.sh").write_text(script)
        for step in steps:
            words = ["sh", "launch.sh", step]
            subprocess.run(words, cwd=tmp_path, env=environment, check=True)
        return [json.loads(line)[1:] for line in (tmp_path / "calls").read_text().splitlines()]

    return call


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_creates_installs_trains_and_deletes(kind, launched, calls):
    data = f"gs://bucket/{ODD}"
    made = calls(launched(kind, "--spot", data=data), "start", "follow", "stop", "delete")
    assert "create" in made[0] and "delete" in made[-1]
    assert all(words[words.index("--zone") + 1] == BASE["zone"] for words in made)
    remote = [words[words.index("--command") + 1] for words in made if "--command" in words]
    text = "\n".join(remote)
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    order = ["--require-hashes", "--no-deps tensorflow-text==2.20.1", "txl doctor", "txl train"]
    order += ["tail ", "kill "]
    assert [*map(text.index, order)] == sorted(map(text.index, order))
    (train,) = (command for command in remote if "txl train" in command)
    words = shlex.split(train)
    assert words[words.index("--data") + 1] == data
    is_slice = kind == "pod-slice"
    assert ("TPU_LOAD_LIBRARY=0" in train) == is_slice == ("worker_server" in text)
    assert ("echo grpc://10.0.0.1:8470,grpc://10.0.0.2:8470" in text) == is_slice


def test_a_file_travels_along(launched, calls, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "quickstart"\n[training]\nnum_steps = 700\n')
    made = calls(launched("tpu-vm", config=str(file)), "install", "train")
    assert any("scp" in words and str(file) in words for words in made)
    assert "--config ./mine.toml" in made[-1][made[-1].index("--command") + 1]
    config, *_ = documents(launched("gke-jobset", config=str(file)), "ConfigMap")
    assert config["data"]["config.toml"] == file.read_text()


@pytest.mark.parametrize(
    ("kind", "changed", "word"),
    [
        ("tpu-vm", {"workdir": "/tmp/run"}, "--workdir"),
        ("tpu-vm", {"accelerator_type": "v5litepod-12"}, "--accelerator-type"),
        ("tpu-vm", {"accelerator_type": "v5e:3x3"}, "--accelerator-type v5e:3x3"),
        ("tpu-vm", {"accelerator_type": "v5litepod-16"}, "pod-slice"),
        ("gke-jobset", {"runtime_version": "x"}, "--runtime-version"),
    ],
)
def test_wrong_arguments_are_named(kind, changed, word, launched):
    printed = launched(kind, code=2, **changed)
    assert word in printed and len(printed.splitlines()) <= 3


def test_hosts_and_shapes_fit_together():
    hosts = {"v2-8": 1, "v3-32": 4, "v4-32": 4, "v5litepod-8": 1, "v5litepod-16": 4, "v6e-8": 1}
    assert {name: Topology.parse(name).num_hosts for name in hosts} == hosts
    assert Topology.parse("v5e:2x4") == Topology.parse("v5litepod-8")
    assert Topology.parse("v4:2x2x4").accelerator_type == "v4-32"


@pytest.mark.parametrize(("tpu", "value"), [("grpc://a:1", "0"), ("local", None)])
def test_side_jobs_leave_the_chips_to_the_job_that_trains(monkeypatch, tpu, value):
    seen = []
    monkeypatch.delenv("TPU_LOAD_LIBRARY", raising=False)
    monkeypatch.setattr(train, "check_arguments", lambda _: seen.append(dict(os.environ)))
    monkeypatch.setattr(train, "run", lambda _: None)
    assert main(["train", "--data", "d", "--workdir", "w", "--tpu", tpu]) == 0
    assert seen[0].get("TPU_LOAD_LIBRARY") == value


def documents(text, kind):
    """The objects of one kind in a manifest."""
    yaml = pytest.importorskip("yaml")
    return [each for each in yaml.safe_load_all(text) if each["kind"] == kind]


@pytest.mark.parametrize("accelerator_type", ["v5litepod-8", "v5litepod-16"])
def test_the_manifest_is_what_kubernetes_reads(accelerator_type, launched):
    data = f"gs://bucket/{ODD}"
    text = launched("gke-jobset", "--spot", accelerator_type=accelerator_type, data=data)
    accelerator = Topology.parse(accelerator_type)
    assert f'--machine-type "{machine_type(accelerator)}"' in text
    (job_set,) = documents(text, "JobSet")
    jobs = {job["name"]: job["template"]["spec"] for job in job_set["spec"]["replicatedJobs"]}
    with_chips = jobs.get("servers", jobs["trainer"])
    assert with_chips.get("parallelism", 1) == accelerator.num_hosts
    pod = with_chips["template"]["spec"]
    selector = pod["nodeSelector"]
    shape = accelerator.name.partition(":")[2]
    assert selector["cloud.google.com/gke-tpu-topology"] == shape
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"google.com/tpu": accelerator.chips_per_host}
    train = jobs["trainer"]["template"]["spec"]["containers"][0]["command"][-1]
    words = shlex.split(train.replace("$$", "$"))
    assert words[words.index("--data") + 1] == data
    subprocess.run(["sh", "-n"], input=train.replace("$$", "$"), text=True, check=True)
