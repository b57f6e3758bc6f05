import ast

import pytest

from pipelines.benchmarking.cases import SUITES
from pipelines.benchmarking.peers import PEERS
from tests.pipelines.benchmarking.fake_peer import write_fake_python
from txl_tf.errors import JobError


def test_the_faster_precision_is_taken_and_said(tmp_path, capsys):
    python = write_fake_python(tmp_path)
    ready = PEERS["hugging_face"].start_fastest(python, {"num_rows": 4}, 2.0)
    with ready.process as process:
        assert ready.variant == "bfloat16"
        assert ready.num_times == 8
        assert process.turn(8)["tokens"] == 32
    said = capsys.readouterr().err.splitlines()
    assert said == ["hugging_face in float32: 8 tokens/s", "hugging_face in bfloat16: 16 tokens/s"]


def test_a_precision_that_fails_is_passed_over(tmp_path, capsys):
    python = write_fake_python(tmp_path, failing=["bfloat16"])
    ready = PEERS["hugging_face"].start_fastest(python, {"num_rows": 1}, 2.0)
    ready.process.close()
    assert ready.variant == "float32"
    assert "cannot do it in bfloat16" in capsys.readouterr().err


def test_without_any_the_last_error_is_told(tmp_path):
    python = write_fake_python(tmp_path, failing=["float32", "bfloat16"])
    with pytest.raises(JobError, match="no such precision here"):
        PEERS["hugging_face"].start_fastest(python, {"num_rows": 1}, 2.0)


@pytest.mark.parametrize("name", PEERS)
def test_peers_do_suites_of_this_project_and_need_nothing_of_it(name):
    peer = PEERS[name]
    assert set(peer.works) < set(SUITES)
    tree = ast.parse(peer.program.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else imported_by(node))
    }
    of_peers = {"torch", "transformers", "tensorflow", "tf_keras", "official"}
    assert imported <= {"collections", "typing", *of_peers}
    assert "create" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def imported_by(node):
    return [alias.name for alias in node.names]
