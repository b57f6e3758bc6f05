"""`txl finetune`: examples in files, a trained head, answers in files."""

import json

import numpy as np
import pytest

import txl_tf
from tests.pipelines.fine_tuning_rows import ROWS, SETTINGS, classes, write_rows
from tests.pipelines.small_experiments import MODEL
from tests.pipelines.txl_process import run_txl
from tests.slow_case import slow_case
from tests.small_models import checkpoints_of
from txl_tf.model_folder import RunDescription, open_model
from txl_tf.training.metrics_log import MetricsLog


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.json"
    training = {"global_batch_size": 1, "num_steps": 1}
    path.write_text(json.dumps({"model": MODEL, "training": training}))
    return path


@pytest.fixture
def finetune(tmp_path, model_file):
    """A function that fine-tunes a new model on the rows of one task kind."""

    def run(
        kind, *options, name="run", model=("--config", model_file), rows=None, job=run_txl, **end
    ):
        rows = ROWS[kind] if rows is None else rows
        files = (
            "--train",
            write_rows(tmp_path / "train.jsonl", rows),
            "--valid",
            write_rows(tmp_path / "valid.jsonl", rows[:10]),
        )
        words = ("--task", kind, *SETTINGS, *options)
        return job("finetune", *model, *files, "--workdir", tmp_path / name, *words, **end)

    return run


def figures_of(workdir):
    """Figures of the evaluations by step, as the run has logged them."""
    log = MetricsLog(str(workdir / "metrics.jsonl")).read()
    results = [line["result"] for line in log.lines if "result" in line]
    return {result["step"]: result["figures"] for result in results}


@pytest.mark.parametrize(
    ("kind", "columns", "metric", "least"),
    [
        slow_case("regression", ("text",), "pearson", 0.5),
        slow_case("classification", ("number", "text"), "accuracy", 0.9),
    ],
)
def test_a_task_is_learned_and_its_answers_are_written(
    finetune, tmp_path, kind, columns, metric, least
):
    questions = [{key: row[key] for key in row if key != "label"} for row in ROWS[kind][:5]]
    questions_file = write_rows(tmp_path / "asked.jsonl", questions)
    options = ("--epochs", "8", "--predict", questions_file, "--out", tmp_path / "answers.jsonl")
    finetune(kind, "--text-columns", *columns, *options)
    figures = figures_of(tmp_path / "run")
    assert list(figures) == [3, 6, 9, 12, 15, 18, 21, 24]
    assert figures[24][metric] >= least
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [answer["name"] for answer in answers] == list("01234")
    # In Python it is the same model.
    task = txl_tf.load_task(tmp_path / "run", step="best")
    expected = task.predict([tuple(row[name] for name in columns) for row in questions])
    output = [answer["prediction"] for answer in answers]
    assert output == pytest.approx(expected) if kind == "regression" else output == expected


@pytest.mark.slow
def test_the_same_command_resumes_and_a_finished_run_is_left_alone(finetune, tmp_path):
    finetune("classification")
    whole = checkpoints_of(tmp_path / "run").load(9)
    finetune("classification", "--set", "training.num_steps=9", name="other")
    finetune("classification", says="Resuming from the checkpoint of step 9.")
    store = checkpoints_of(tmp_path / "other")
    other = store.load(9)
    assert {name: array.tobytes() for name, array in other.items()} == {
        name: array.tobytes() for name, array in whole.items()
    }
    # Other examples are another run.
    finetune("classification", rows=classes(26)[2:], code=78, says="fingerprint")


@pytest.mark.slow
def test_a_run_begins_from_the_weights_of_a_model(finetune, untouched, tmp_path):
    start = ("--init-from", untouched)
    options = ("--freeze", "embedding", "--set", "training.num_kept_checkpoints=4")
    finetune("classification", *options, model=start)
    described = RunDescription.read(str(tmp_path / "run"))
    assert described.start.source == str(untouched)
    assert described.experiment.model == RunDescription.read(str(untouched)).experiment.model
    _, before = open_model(str(untouched)).read_weights()
    _, first = open_model(str(tmp_path / "run"), 0).read_weights()
    _, after = open_model(str(tmp_path / "run"), 9).read_weights()
    for name, array in before.items():
        np.testing.assert_array_equal(first[name], array)
        is_kept = "block_0" not in name
        assert np.array_equal(after[name], array) == is_kept, name


@pytest.mark.slow
def test_only_adapters_and_the_head_are_trained(finetune, untouched, tmp_path):
    options = ("--set", "training.adapter_rank=4", "--epochs", "8")
    finetune("classification", *options, model=("--init-from", untouched))
    workdir = tmp_path / "run"
    kinds = {name.partition("/")[0] for name in checkpoints_of(workdir).load(24)}
    assert {"adapter", "task"} <= kinds
    assert "model" not in kinds
    assert figures_of(workdir)[24]["accuracy"] >= 0.9
    task = txl_tf.load_task(workdir)
    _, weights = open_model(str(workdir)).read_weights(with_head=True)
    own = [*task.model.language_model.weights, *task.model.head.weights]
    assert weights.keys() == {variable.path for variable in own}
    for variable in own:
        np.testing.assert_array_equal(variable.numpy(), weights[variable.path], variable.path)
    rows = ROWS["classification"][:4]
    assert task.predict([row["text"] for row in rows]) == [row["label"] for row in rows]


@pytest.mark.slow
def test_a_run_ends_when_evaluations_no_longer_improve(finetune, tmp_path):
    never = ("--set", "optimizer.learning_rate=1e-30", "--epochs", "9")
    finetune("classification", *never, "--set", "training.stop_after_evaluations=2")
    assert list(figures_of(tmp_path / "run")) == [3, 6, 9]


@pytest.mark.slow
def test_an_export_answers_texts_as_the_run_does(finetune, tmp_path):
    import tensorflow as tf

    finetune("classification", "--epochs", "4")
    out = tmp_path / "exports"
    run_txl("export", "--workdir", tmp_path / "run", "--out", out)
    texts = [row["text"] for row in ROWS["classification"][:8]]
    classify = tf.saved_model.load(str(out / "1")).signatures["serving_default"]
    answer = classify(tf.constant(texts))
    task = txl_tf.load_task(tmp_path / "run")
    labels = [label.decode() for label in answer["labels"].numpy()]
    assert labels == task.predict(texts)
    examples = [
        txl_tf.tasks.Example(name=str(n), where="", texts=(text,)) for n, text in enumerate(texts)
    ]
    _, scores = task.answer(examples)
    np.testing.assert_allclose(answer["probabilities"], scores, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"texts\[1\] has no tokens"):
        classify(tf.constant(["a", ""]))
    # The language model below the head can be read from it.
    model = txl_tf.load(out / "1").model
    _, weights = open_model(str(tmp_path / "run")).read_weights()
    for variable in model.weights:
        np.testing.assert_array_equal(variable.numpy(), weights[variable.path])


@pytest.mark.parametrize(
    ("rows", "options", "code", "message"),
    [
        (None, ("--set", "training.evaluate_tokens=5"), 2, "training.evaluate_tokens"),
        (None, ("--out", "a.jsonl"), 2, "--predict"),
        (None, ("--predict", "a.jsonl", "--out", "a.tsv"), 2, ".jsonl"),
        (None, ("--label-column", "lable"), 78, "line 1"),
        ([{"text": "a", "label": "x"}, {"text": "", "label": "y"}], (), 65, "line 2"),
        ([{"text": "a", "label": "x"}] * 3, (), 78, "train.jsonl"),
    ],
)
def test_mistakes_are_answered_before_anything_is_trained(
    finetune, txl, tmp_path, rows, options, code, message
):
    finetune("classification", *options, rows=rows, job=txl, code=code, says=message)
    assert not (tmp_path / "run").exists()
