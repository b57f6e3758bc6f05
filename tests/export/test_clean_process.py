"""The export in a process that has TensorFlow, and nothing of ours."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.export.bad_requests import BAD, GOOD

pytestmark = pytest.mark.slow

BLOCKED = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("txl_tf", "pipelines", "tests"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import json
import numpy as np
import tensorflow as tf
import tensorflow_text
"""

# As a server runs it: a session of the graph, which takes any shape for any input.
SERVE = """
graph = tf.Graph()
with tf.compat.v1.Session(graph=graph) as session:
    definition = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
    definition = definition.signature_def["score"]
    inputs = {name: graph.get_tensor_by_name(info.name) for name, info in definition.inputs.items()}
    outputs = [graph.get_tensor_by_name(definition.outputs[n].name) for n in ("nll", "total_nll")]
    names = sorted(inputs)
    ask = session.make_callable(outputs, feed_list=[inputs[name] for name in names])
    requests = np.load(sys.argv[2])
    cases = sorted({name.split("/")[0] for name in requests.files})
    answers = {}
    for case in cases:
        try:
            nll, _ = ask(*(requests[f"{case}/{name}"] for name in names))
            answers[case] = nll.tolist()
        except tf.errors.InvalidArgumentError as error:
            answers[case] = error.message
print(json.dumps(answers))
"""


def run_client(program, *arguments, **environment):
    finished = subprocess.run(
        [sys.executable, "-I", "-c", BLOCKED + program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_session_that_xla_compiles_refuses_what_is_bad_and_answers_the_rest(exported, tmp_path):
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=2"
    # A session checks types before it runs the graph.
    cases = {"good": GOOD} | {
        name: {**GOOD, **changes} for name, (changes, _) in BAD.items() if name != "memory dtype"
    }
    cases["good again"] = GOOD
    arrays = {
        f"{case}/{name}": array for case, values in cases.items() for name, array in values.items()
    }
    np.savez(tmp_path / "given.npz", **arrays)
    answers = json.loads(
        run_client(SERVE, exported, tmp_path / "given.npz", TF_XLA_FLAGS=flags).splitlines()[-1]
    )
    assert np.all(np.isfinite(answers.pop("good")))
    assert np.all(np.isfinite(answers.pop("good again")))
    for case, answer in answers.items():
        assert isinstance(answer, str), case
        assert re.search(BAD[case][1], answer), (case, answer)
