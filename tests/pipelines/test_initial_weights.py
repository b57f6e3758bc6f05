"""`txl train --init-from`: a new run from the weights of any model."""

import json
import shutil

import numpy as np
import pytest

from tests.pipelines.txl_process import error_lines, run_txl
from tests.slow_case import slow_case
from txl_tf.run_folder import RUN_FILE, checkpoint_store, describe_run, load_model, read_weights

SHORT = ("--set", "training.num_steps=12", "--set", "training.steps_per_loop=3")
KINDS = ["run", *map(slow_case, ("checkpoint", "copied checkpoint", "converted", "export"))]


@pytest.fixture
def train(config_file, data_folder, tmp_path):
    def run(name, *options):
        base = ("train", "--config", config_file, "--data", data_folder, *SHORT)
        return run_txl(*base, "--workdir", tmp_path / name, *options)

    return run


def losses(workdir):
    """Nats per token of the split `valid` by step, as the run has logged them."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    results = [(line["step"], line["result"]) for line in lines if "result" in line]
    return {step: result["nats_per_token"] for step, result in results}


def result_of(workdir):
    """Ledger and last state."""
    store = checkpoint_store(str(workdir))
    arrays = store.load(store.steps()[-1])
    return (workdir / "ledger.txt").read_bytes(), {
        name: array.tobytes() for name, array in arrays.items()
    }


def restarted(workdir, folder, keeps_checkpoint):
    """Copies a run as it was before its first step, with or without the checkpoint of step 0."""
    folder.mkdir()
    values = json.loads((workdir / RUN_FILE).read_text())
    values["first_checkpoint_step"] = 0 if keeps_checkpoint else None
    (folder / RUN_FILE).write_text(json.dumps(values))
    if keeps_checkpoint:
        name = "checkpoints/step-00000000"
        shutil.copytree(workdir / name, folder / name)
        header = (workdir / "ledger.txt").read_text().partition("\n")[0]
        (folder / "ledger.txt").write_text(f"{header}\n")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_loss_is_that_of_the_source(kind, model_folders, train, data_folder, tmp_path):
    source = model_folders[kind]
    lengths = ("segment_length=12", "memory_length=20", "clamp_length=24")
    model = [word for each in lengths for word in ("--set", f"model.{each}")]
    evaluation = [word for each in lengths for word in ("--set", f"evaluation.{each}")]
    finished = train("run", "--init-from", source, *model, "--set", "model.dropout=0.3")
    assert finished.returncode == 0, finished.stderr
    name = {"checkpoint": "run", "copied checkpoint": "checkpoint"}.get(kind, kind)
    assert f"begins   {name} {source}" in finished.stderr
    evaluation += ["--set", "evaluation.batch_size=4", "--json"]
    evaluated = run_txl("evaluate", "--workdir", source, "--data", data_folder, *evaluation)
    expected = json.loads(evaluated.stdout)["nats_per_token"]
    found = losses(tmp_path / "run")
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    assert found[12] != found[0]


def test_only_weights_are_taken(untouched, train, tmp_path):
    assert train("run", "--init-from", untouched).returncode == 0
    begun = checkpoint_store(str(tmp_path / "run")).load(0)
    before = checkpoint_store(str(untouched)).load(40)
    assert begun.keys() == before.keys()
    for name, array in begun.items():
        if name.startswith("model/"):
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        elif name.startswith(("optimizer/", "memory/")) and "learning_rate" not in name:
            assert not np.any(array), name


def test_the_run_keeps_where_it_began(untouched, train, data_folder, tmp_path):
    source = shutil.copytree(untouched, tmp_path / "source")
    assert train("run", "--init-from", source, "--init-step", "best").returncode == 0
    start = describe_run(str(tmp_path / "run")).start
    assert (start["source"], start["kind"], start["step"]) == (str(source), "run", 40)
    verified = run_txl("verify", tmp_path / "run")
    assert f"verified: start run {source}, step 40" in verified.stdout, verified.stderr
    for options, reason in (
        (("--init-from", untouched), "not from source"),
        (("--init-from", source, "--init-vocabulary", "shared"), "not from vocabulary shared"),
        (("--init-from", source, "--freeze", "embedding"), "training.freeze"),
    ):
        refused = train("run", *options)
        assert refused.returncode == 78
        assert reason in error_lines(refused)[0]
    # From here on the source is not needed any more.
    shutil.rmtree(source)
    longer = ("--set", "training.num_steps=14")
    resumed = train("run", "--init-from", source, *longer)
    assert resumed.returncode == 0, resumed.stderr
    assert "Going on from the checkpoint of step 12." in resumed.stderr
    values = json.loads((tmp_path / "run" / RUN_FILE).read_text())
    values["start"]["sha256"] = "0" * 64
    (tmp_path / "run" / RUN_FILE).write_text(json.dumps(values))
    assert run_txl("verify", tmp_path / "run").returncode in (65, 78)


@pytest.mark.slow
def test_a_run_without_initial_weights_is_another_one(untouched, train, tmp_path):
    assert train("run").returncode == 0
    refused = train("run", "--init-from", untouched)
    assert refused.returncode == 78
    assert "it began from initial weights" in error_lines(refused)[0]


@pytest.mark.parametrize("keeps_checkpoint", [slow_case(True), False])
def test_a_restart_before_the_first_step_gives_the_same_bits(
    keeps_checkpoint, untouched, train, data_folder, tmp_path
):
    source = shutil.copytree(untouched, tmp_path / "source")
    assert train("unbroken", "--init-from", source).returncode == 0
    unbroken = tmp_path / "unbroken"
    folder = restarted(unbroken, tmp_path / "again", keeps_checkpoint)
    if keeps_checkpoint:
        shutil.rmtree(source)
    finished = run_txl("train", "--data", data_folder, "--workdir", folder)
    assert finished.returncode == 0, finished.stderr
    assert result_of(folder) == result_of(unbroken)
    assert losses(folder) == losses(unbroken)


@pytest.mark.slow
def test_a_source_that_has_changed_is_refused(untouched, train, data_folder, tmp_path):
    source = shutil.copytree(untouched, tmp_path / "source")
    assert train("run", "--init-from", source).returncode == 0
    folder = restarted(tmp_path / "run", tmp_path / "again", keeps_checkpoint=False)
    values = json.loads((folder / RUN_FILE).read_text())
    values["start"]["sha256"] = "0" * 64
    (folder / RUN_FILE).write_text(json.dumps(values))
    finished = run_txl("train", "--data", data_folder, "--workdir", folder)
    assert finished.returncode == 78
    assert "The weights have SHA-256" in finished.stderr


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (("--set", "model.num_layers=3", "--set", "model.pre_norm=true"), 78, "model.num_layers"),
        (("--set", "model.layer_norm_epsilon=1e-6"), 78, "model.layer_norm_epsilon (stored 1e-12"),
        (("--init-step", "7"), 2, "There is no checkpoint of step 7."),
        (("--init-step", "newest"), 2, "named by its step"),
        (("--freeze", "layers:0-2"), 2, "layers from 0 to 1"),
        (("--freeze", "layer 0"), 2, "`freeze` must be of"),
        (("--freeze", "embedding", "softmax", "layers"), 2, "leave something to train"),
    ],
)
def test_what_does_not_fit_is_refused(options, exit_code, words, untouched, train, tmp_path):
    refused = train("run", "--init-from", untouched, *options)
    assert refused.returncode == exit_code, refused.stderr
    assert words in error_lines(refused)[0]
    assert not (tmp_path / "run" / RUN_FILE).exists()


def test_options_of_a_source_need_one(train):
    refused = train("run", "--init-vocabulary", "shared")
    assert refused.returncode == 2
    assert error_lines(refused)[0].endswith("This goes with --init-from.")


def test_frozen_parts_stay_bit_for_bit(untouched, train, tmp_path):
    finished = train("run", "--init-from", untouched, "--freeze", "embedding", "layers:0")
    assert finished.returncode == 0, finished.stderr
    assert "frozen   embedding, layers:0" in finished.stderr
    _, before = read_weights(str(untouched))
    _, after = read_weights(str(tmp_path / "run"))
    same = {path for path in before if np.array_equal(before[path], after[path])}
    assert same == {path for path in before if path.startswith(("embedding/", "block_0/"))}
    names = checkpoint_store(str(tmp_path / "run")).load(12).keys()
    slots = [name for name in names if name.startswith("optimizer/")]
    assert not [name for name in slots if "embedding" in name or "block_0" in name]


@pytest.mark.slow
def test_an_export_in_fewer_bits_says_so(untouched, train, tmp_path):
    export = ("export", "--workdir", untouched, "--out", tmp_path / "export", "--weights")
    assert run_txl(*export, "bfloat16").returncode == 0
    finished = train("run", "--init-from", tmp_path / "export")
    assert "The export stores its weights as bfloat16" in finished.stderr


@pytest.fixture
def words(tmp_path):
    """Two data sets of words, of which some are the same."""
    folders = {}
    for name, texts in {"first": "a b c d e " * 400, "second": "e c a f g h " * 400}.items():
        file, valid = tmp_path / f"{name}.txt", tmp_path / f"{name} valid.txt"
        file.write_text(texts)
        valid.write_text(texts[:400])
        options = ("--valid-file", valid, "--tokenizer", "words", "--out", tmp_path / name)
        assert run_txl("prepare", "--train-file", file, *options).returncode == 0
        folders[name] = tmp_path / name
    return folders


def test_rows_of_shared_tokens_are_taken(words, config_file, tmp_path):
    def train(data, workdir, *options):
        size = json.loads((data / "manifest.json").read_text())["vocabulary_size"]
        sizes = ("--set", f"model.vocabulary_size={size}", *SHORT)
        common = ("train", "--config", config_file, "--data", data, "--workdir", workdir)
        return run_txl(*common, *sizes, *options)

    first, second = tmp_path / "of first", tmp_path / "of second"
    assert train(words["first"], first).returncode == 0
    refused = train(words["second"], second, "--init-from", first)
    assert refused.returncode == 78
    finished = train(words["second"], second, "--init-from", first, "--init-vocabulary", "shared")
    assert finished.returncode == 0, finished.stderr
    assert "tokens are in both vocabularies." in finished.stderr
    texts = [folder / "vocabulary" / "vocabulary.txt" for folder in (first, second)]
    before, after = (path.read_text().split() for path in texts)
    old, new = (load_model(folder, step) for folder, step in ((first, None), (second, 0)))
    for text in set(before) & set(after):
        rows = (
            old.embedding.tables[0][before.index(text)],
            new.embedding.tables[0][after.index(text)],
        )
        np.testing.assert_array_equal(*rows, err_msg=text)
    unseen = [after.index(text) for text in set(after) - set(before)]
    assert 0 < np.abs(np.asarray(new.embedding.tables[0])[unseen]).max() < 0.2
