"""`txl train --init-from`: a new run from the weights of any model."""

import json
import shutil

import numpy as np
import pytest

from tests.pipelines.txl_process import run_txl
from tests.small_models import checkpoints_of, last_state_of
from txl_tf.errors import DataDamagedError
from txl_tf.model_folder import BASE, RUN_FILE, RunDescription, load_model, open_model

SHORT = ("--set", "training.num_steps=12", "--set", "training.steps_per_loop=3")
ADAPTERS = ("--set", "training.adapter_rank=4")
# Every test needs a trained model in folders of every kind.
pytestmark = pytest.mark.slow


@pytest.fixture
def train(config_file, data_folder, tmp_path):
    def run(name, *options, **end):
        base = ("train", "--config", config_file, "--data", data_folder, *SHORT)
        return run_txl(*base, "--workdir", tmp_path / name, *options, **end)

    return run


@pytest.fixture(scope="module")
def begun(untouched, config_file, data_folder, tmp_path_factory):
    """A finished run that began from a model, whose folder is gone by now."""
    folder = tmp_path_factory.mktemp("begun")
    source = shutil.copytree(untouched, folder / "source")
    options = ("--config", config_file, "--data", data_folder, *SHORT, "--init-step", "best")
    run_txl("train", *options, "--init-from", source, "--workdir", folder / "run")
    shutil.rmtree(source)
    return folder / "run"


def losses(workdir):
    """Nats per token of the split `valid` by step, as the run has logged them."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    results = [(line["step"], line["result"]) for line in lines if "result" in line]
    return {step: result["nats_per_token"] for step, result in results}


def restarted(workdir, folder, keeps_checkpoint):
    """Copies a run as it was before its first step, with or without the checkpoint of step 0."""
    folder.mkdir()
    shutil.copy(workdir / RUN_FILE, folder)
    if keeps_checkpoint:
        name = "checkpoints/step-00000000"
        shutil.copytree(workdir / name, folder / name)
        header = (workdir / "ledger.jsonl").read_text().partition("\n")[0]
        (folder / "ledger.jsonl").write_text(f"{header}\n")
        if (workdir / BASE).exists():
            shutil.copytree(workdir / BASE, folder / BASE)
    return folder


def test_the_first_loss_equals_the_loss_of_the_source(untouched, train, data_folder, tmp_path):
    source = tmp_path / "export"
    run_txl("export", "--workdir", untouched, "--out", source)
    lengths = ("segment_length=12", "memory_length=20", "clamp_length=24")
    model = [word for each in lengths for word in ("--set", f"model.{each}")]
    evaluation = [word for each in lengths for word in ("--set", f"evaluation.{each}")]
    origin = f"begins   export {source}"
    train("run", "--init-from", source, *model, "--set", "model.dropout=0.3", says=origin)
    evaluation += ["--set", "evaluation.batch_size=4", "--json"]
    finished = run_txl("evaluate", "--workdir", source, "--data", data_folder, *evaluation)
    log = losses(tmp_path / "run")
    assert log[0] == pytest.approx(json.loads(finished.stdout)["nats_per_token"], rel=1e-6)
    assert log[12] != log[0]


def test_the_run_keeps_where_it_began(begun, untouched, train, tmp_path):
    shutil.copytree(begun, tmp_path / "run")
    source = begun.parent / "source"
    start = RunDescription.read(str(begun)).start
    assert (start.source, start.kind, start.step) == (str(source), "run", 40)
    for options, reason in (
        (("--init-from", untouched), "1 setting differs: source (stored"),
        (
            ("--init-from", source, "--init-vocabulary", "shared"),
            "vocabulary (stored 'same', now 'shared')",
        ),
        (("--init-from", source, "--freeze", "embedding"), "training.freeze"),
    ):
        train("run", *options, code=78, says=reason)
    longer = ("--set", "training.num_steps=14")
    train("run", "--init-from", source, *longer, says="Resuming from the checkpoint of step 12.")


@pytest.mark.parametrize("keeps_checkpoint", [True, False])
def test_a_restart_before_the_first_step_gives_the_same_bits(
    keeps_checkpoint, begun, untouched, data_folder, tmp_path
):
    folder = restarted(begun, tmp_path / "again", keeps_checkpoint)
    if not keeps_checkpoint:
        begin_from(untouched, folder)
    run_txl("train", "--data", data_folder, "--workdir", folder)
    assert last_state_of(folder) == last_state_of(begun)
    assert losses(folder) == losses(begun)


def begin_from(source, folder):
    """Writes into the description of a run that another folder is its source."""
    values = json.loads((folder / RUN_FILE).read_text())
    values["start"]["source"] = str(source)
    (folder / RUN_FILE).write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (("--set", "model.num_layers=3", "--set", "model.pre_norm=true"), 78, "model.num_layers"),
        (("--init-step", "7"), 2, "There is no checkpoint of step 7."),
        (("--freeze", "embedding", "softmax", "layers"), 2, "leave a part of the model"),
    ],
)
def test_a_model_or_option_that_does_not_fit_is_refused(
    options, exit_code, words, untouched, train, tmp_path
):
    train("run", "--init-from", untouched, *options, code=exit_code, says=words)
    train("run", *ADAPTERS, code=2, says="Adapters need the weights of a trained model.")
    assert not (tmp_path / "run" / RUN_FILE).exists()


@pytest.fixture
def words(tmp_path):
    """Two data sets of words that share some words."""
    folders = {}
    for name, texts in {"first": "a b c d e " * 400, "second": "e c a f g h " * 400}.items():
        file, valid = tmp_path / f"{name}.txt", tmp_path / f"{name} valid.txt"
        file.write_text(texts)
        valid.write_text(texts[:400])
        options = ("--valid-file", valid, "--tokenizer", "words", "--out", tmp_path / name)
        run_txl("prepare", "--train-file", file, *options)
        folders[name] = tmp_path / name
    return folders


def test_rows_of_shared_tokens_are_taken(words, config_file, tmp_path):
    def train(data, workdir, *options, **end):
        size = json.loads((data / "manifest.json").read_text())["vocabulary_size"]
        sizes = ("--set", f"model.vocabulary_size={size}", *SHORT)
        common = ("train", "--config", config_file, "--data", data, "--workdir", workdir)
        run_txl(*common, *sizes, *options, **end)

    first, second = tmp_path / "of first", tmp_path / "of second"
    train(words["first"], first)
    train(words["second"], second, "--init-from", first, code=78)
    train(
        words["second"],
        second,
        "--init-from",
        first,
        "--init-vocabulary",
        "shared",
        says="tokens are in the vocabulary of --init-from too.",
    )
    texts = [folder / "vocabulary" / "vocabulary.txt" for folder in (first, second)]
    rows = [path.read_text().split().index("c") for path in texts]
    models = load_model(first), load_model(second, 0)
    old, new = (each.embedding.tables[0][row] for each, row in zip(models, rows, strict=True))
    np.testing.assert_array_equal(old, new)


@pytest.fixture(scope="module")
def with_adapters(untouched, config_file, data_folder, tmp_path_factory):
    """A finished run with adapters whose source is gone."""
    folder = tmp_path_factory.mktemp("adapters")
    source = shutil.copytree(untouched, folder / "source")
    options = ("--config", config_file, "--data", data_folder, *SHORT, *ADAPTERS)
    options += ("--init-from", source, "--set", "optimizer.learning_rate=0.01")
    run_txl(
        "train",
        *options,
        "--workdir",
        folder / "run",
        says="rank 4, alpha 4; all other weights are frozen",
    )
    shutil.rmtree(source)
    return folder / "run"


def test_checkpoints_with_adapters_leave_out_the_frozen_weights(with_adapters, untouched):
    arrays = checkpoints_of(with_adapters).load(12)
    kinds = {name.partition("/")[0] for name in arrays}
    assert kinds == {"adapter", "optimizer", "memory", "evaluation"}
    _, source = open_model(str(untouched)).read_weights()
    _, base = open_model(str(with_adapters / BASE)).read_weights()
    assert {path: array.tobytes() for path, array in base.items()} == {
        path: array.tobytes() for path, array in source.items()
    }


def test_every_job_sees_merged_weights(with_adapters, untouched, data_folder, tmp_path):
    step, weights = open_model(str(with_adapters)).read_weights()
    _, source = open_model(str(untouched)).read_weights()
    kernels = {path for path in source if "attention/" in path or "feed_forward/" in path}
    kernels = {path for path in kernels if path.endswith("/kernel")}
    changed = {path for path in source if not np.array_equal(source[path], weights[path])}
    assert (step, changed) == (12, kernels)
    # The figure of the last step, which training has logged, from the stored factors.
    log = losses(with_adapters)
    assert log[0] == pytest.approx(losses(untouched)[40], rel=1e-6)
    assert log[12] != log[0]
    run, export = shutil.copytree(with_adapters, tmp_path / "run"), tmp_path / "export"
    finished = run_txl("evaluate", "--workdir", run, "--data", data_folder, "--json")
    figure = json.loads(finished.stdout.splitlines()[-1])["nats_per_token"]
    assert figure == pytest.approx(log[12], rel=1e-6)
    run_txl("export", "--workdir", run, "--out", export)
    for folder in (export, run):
        for variable in load_model(folder).weights:
            np.testing.assert_array_equal(variable.numpy(), weights[variable.path])
    assert f"verified: frozen weights {run / BASE}" in run_txl("verify", run).stdout


def test_a_run_with_adapters_resumes_without_its_source(with_adapters, data_folder, tmp_path):
    folder = shutil.copytree(with_adapters, tmp_path / "again")
    shutil.rmtree(folder / "checkpoints" / "step-00000012")
    run_txl(
        "train",
        "--data",
        data_folder,
        "--workdir",
        folder,
        says="Resuming from the checkpoint of step 10.",
    )
    assert last_state_of(folder) == last_state_of(with_adapters)
    assert losses(folder)[12] == losses(with_adapters)[12]


def test_a_missing_base_is_found(with_adapters, data_folder, tmp_path):
    run = restarted(with_adapters, tmp_path / "run", keeps_checkpoint=True)
    shutil.rmtree(run / BASE)
    missing = "The base weights of the adapters are missing."
    run_txl("train", "--data", data_folder, "--workdir", run, code=65, says=missing)
    with pytest.raises(DataDamagedError):
        load_model(run)
