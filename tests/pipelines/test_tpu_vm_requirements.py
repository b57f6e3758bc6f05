"""What a TPU VM installs: the pins of the project, and a step lowered with it for a TPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.doctor import pinned_versions

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "pipelines" / "launch" / "requirements-tpu-vm.txt"
TESTED = pinned_versions()


def normal(pin):
    name, _, version = pin.partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version


def locked_pins():
    lines = REQUIREMENTS.read_text().replace("\\\n", " ").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def test_every_version_is_the_project_s_and_nothing_else_is_installed():
    versions = dict(normal(pin) for pin, *_ in locked_pins())
    expected = dict(TESTED)
    expected["tensorflow-tpu"] = expected.pop("tensorflow")
    del expected["tensorflow-text"]
    # The extra `tpu-kernel` with what it brings, in the versions that the tests run with.
    pins = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    constraints = dict(normal(pin) for pin in pins if not pin.startswith("#"))
    expected |= {name: constraints[name] for name in ("jax", "jaxlib", "scipy")}
    assert versions == expected


# Lowers a training step with the attention kernel for a TPU; there need be none. Without one,
# variables are not lowered: the weights are arguments.
LOWERED = """
import keras, json, tensorflow as tf, tensorflow_text as tf_text, txl_tf
from txl_tf.tpu_kernels.kernel_choice import AttentionKernel

assert tf_text.WhitespaceTokenizer().tokenize(["two words"]).to_list() == [[b"two", b"words"]]
config = txl_tf.preset("enwik8_base").replace(num_layers=1, segment_length=16, memory_length=16)
model = txl_tf.TransformerXL(config, attention_kernel=AttentionKernel())
weights, seed = model.trainable_variables, {"dropout_seed": tf.zeros([2, 2], tf.int32)}

def step(ids, *values):
    with tf.GradientTape() as tape, keras.StatelessScope(list(zip(weights, values))):
        tape.watch(values)
        nll, _ = model.score(ids, ids, model.initial_memory(2), **seed, training=True)
    return [tf.convert_to_tensor(each) for each in tape.gradient(nll, values)]

lower = tf.function(step, jit_compile=True, autograph=False).experimental_get_compiler_ir
specs = [tf.TensorSpec(each.shape, each.dtype) for each in weights]
hlo = lower(tf.TensorSpec([2, 16], tf.int32), *specs)(stage="hlo", platform_name="TPU")
print(json.dumps([hlo.count("tpu_custom_call"), tf.__version__, tf_text.__version__]))
"""


@pytest.mark.slow
def test_a_training_step_lowers_through_the_tpu_wheel(tmp_path):
    """In a virtual environment made as the script of `txl launch` makes it."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    text = f"tensorflow-text=={TESTED['tensorflow-text']}"
    for words in (["--require-hashes", "-r", str(REQUIREMENTS)], ["--no-deps", text]):
        # Byte code of all modules takes longer than the test needs the few that it imports.
        pip = [tmp_path / "bin" / "pip", "install", "--no-compile", *words]
        finished = subprocess.run(pip, capture_output=True, text=True)
        if "connection" in finished.stderr.lower() and finished.returncode:
            pytest.skip("the package registry cannot be reached")
        assert finished.returncode == 0, finished.stderr
    # Another process may have the library, and questions about the machine find no answer.
    environment = {**os.environ, "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [tmp_path / "bin" / "python", "-c", LOWERED]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout.splitlines()[-1])
    # A block attends by the kernel, forwards and backwards.
    assert report == [2, TESTED["tensorflow"], TESTED["tensorflow-text"]]
