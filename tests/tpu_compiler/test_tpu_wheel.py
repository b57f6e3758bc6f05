"""The locked packages of a TPU VM: versions of the project, and a step lowered with them."""

import os
import re
import subprocess
import sys

import pytest

from pipelines.jobs.doctor import pinned_versions
from tests.source_tree import ROOT

REQUIREMENTS = ROOT / "pipelines" / "launch" / "requirements-tpu-vm.txt"


def test_a_tpu_vm_installs_the_versions_of_the_project_and_nothing_else():
    def versions(file):
        pins = re.findall(r"^([\w.-]+)==([\w.]+)", file.read_text(), re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}

    expected = pinned_versions()
    expected["tensorflow-tpu"] = expected.pop("tensorflow")
    del expected["tensorflow-text"]
    # The extra `tpu-kernel` with its dependencies, in the versions that the tests run with.
    constraints = versions(ROOT / ".ci" / "constraints.txt")
    expected |= {name: constraints[name] for name in ("jax", "jaxlib", "scipy")}
    assert versions(REQUIREMENTS) == expected


# Lowers a training step with the attention kernel for a TPU, which need not exist. Without one,
# variables are not lowered: the weights are arguments.
LOWERED = """
import keras, tensorflow as tf, tensorflow_text, txl_tf
from txl_tf.tpu_kernels.attention_plan import AttentionKernel

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
print(hlo.count("tpu_custom_call"), tf.__version__, tensorflow_text.__version__)
"""


@pytest.mark.slow
def test_a_training_step_lowers_through_the_tpu_wheel(tmp_path):
    """In a virtual environment made as the script of `txl launch` makes it."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    tested = pinned_versions()
    text = f"tensorflow-text=={tested['tensorflow-text']}"
    for words in (["--require-hashes", "-r", REQUIREMENTS], ["--no-deps", text]):
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
    # A block attends by the kernel, forwards and backwards.
    expected = ["2", tested["tensorflow"], tested["tensorflow-text"]]
    assert finished.stdout.split()[-3:] == expected
