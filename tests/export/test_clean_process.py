"""The export in a process that has TensorFlow, and nothing of ours."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.export.bad_requests import BAD, GOOD
from tests.export.conftest import CONFIG
from tests.export.requests import random_ids

pytestmark = pytest.mark.slow

NUM_SEGMENTS = 200

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

# Reads a text in segments; memory goes from answer to request, as with a server.
CARRY = """
loaded = tf.saved_model.load(sys.argv[1])
score, text = loaded.signatures["score"], np.load(sys.argv[2])
rows, length = text.shape[0], int(sys.argv[4])
memory = {
    "memory_states": tf.zeros([rows, 0, 0, 0]), "memory_valid_length": tf.zeros([rows], tf.int32)
}
found = []
for start in range(0, text.shape[1] - 1, length):
    piece = tf.constant(text[:, start : start + length + 1])
    answer = score(
        token_ids=piece[:, :-1], target_ids=piece[:, 1:],
        lengths=tf.fill([rows], length), **memory,
    )
    memory = {name: answer[name] for name in memory}
    found.append(answer["nll"])
np.save(sys.argv[3], np.concatenate(found, axis=1))
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
    given = np.load(sys.argv[2])
    cases = sorted({name.split("/")[0] for name in given.files})
    answers = {}
    for case in cases:
        try:
            nll, _ = ask(*(given[f"{case}/{name}"] for name in names))
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


def test_many_segments_with_memory_score_as_the_model_does(model, exported, tmp_path):
    length = CONFIG.segment_length
    text = random_ids(2, NUM_SEGMENTS * length + 1, seed=9)
    np.save(tmp_path / "text.npy", text)
    run_client(CARRY, exported, tmp_path / "text.npy", tmp_path / "nll.npy", length)
    nll = np.load(tmp_path / "nll.npy")
    score = tf.function(model.score)
    memory = model.initial_memory(2)
    for segment in range(NUM_SEGMENTS):
        start = segment * length
        piece = tf.constant(text[:, start : start + length + 1])
        expected, memory = score(piece[:, :-1], piece[:, 1:], memory)
        served = nll[:, start : start + length]
        np.testing.assert_allclose(served, expected, rtol=0, atol=1e-5)
    # Other cuts, with a memory that holds what both see.
    cut = text[:, : CONFIG.memory_length + 1]
    np.save(tmp_path / "cut.npy", cut)
    run_client(CARRY, exported, tmp_path / "cut.npy", tmp_path / "cut_nll.npy", 1)
    one_by_one = np.load(tmp_path / "cut_nll.npy")[:, :length]
    np.testing.assert_allclose(one_by_one, nll[:, :length], rtol=0, atol=1e-4)


def test_a_session_that_xla_compiles_refuses_what_is_bad_and_answers_the_rest(exported, tmp_path):
    flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=2"
    # A session checks the types by itself, before it runs anything.
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
