"""The job `txl evaluate`, on runs whose checkpoints are written by hand."""

import importlib.util
import io
import json
import math
import shutil
import subprocess
from pathlib import Path

import keras
import numpy as np
import pytest

import txl_tf
from tests.distribution.two_workers import started
from tests.pipelines.txl_process import command
from tests.small_models import toy_experiment
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.model_folder import Workdir, data_identity, write_model_folder
from txl_tf.models.transformer_xl import TransformerXL

DOCUMENTS = [b"a", b"One is short. ", b"Another one has more to say. ", b"\xc3\xa9t\xc3\xa9 no. "]
EXPERIMENT = toy_experiment(
    model={"vocabulary_size": 256}, training={"num_steps": 30, "document_boundaries": "mask"}
).replace(evaluation=EvaluationConfig(batch_size=2))


def model_of(seed, config=EXPERIMENT.model):
    keras.utils.set_random_seed(seed)
    return TransformerXL(config)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "data"
    splits = {"train": [b"Something to learn from, several times over."], "valid": DOCUMENTS}
    return folder, prepare_dataset(splits, ByteTokenizer(), str(folder), "toy")


class Run:
    """A run without training: every checkpoint has weights of its own."""

    def __init__(self, folder, manifest, experiment=EXPERIMENT):
        self.experiment = experiment
        self.workdir = Workdir(folder)
        self.data = data_identity(manifest)
        run = self.workdir.begin(experiment, self.data)
        self.store = run.checkpoints(self.workdir.folder)

    def save(self, step):
        weights = model_of(step, self.experiment.model).weights
        arrays = {f"model/{variable.path}": variable.numpy() for variable in weights}
        self.store.save(step, arrays)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("run") / "run", data[1])
    run.save(10)
    return run


@pytest.fixture
def evaluate(txl):
    """A function that evaluates, and returns the results; none where an exit code is expected."""

    def run(*arguments, **end):
        output = txl("evaluate", "--json", *arguments, **end)
        return [json.loads(line) for line in output.splitlines()]

    return run


def nats_of_documents_alone():
    """Nats of documents that are read one by one; an end predicts the next first token."""
    model, nats, of_next = model_of(10), [], 0.0
    tokens = np.frombuffer(b"".join(DOCUMENTS) + b"?", np.uint8).astype("int32")[None]
    start = 0
    for size in map(len, DOCUMENTS):
        segment = tokens[:, start : start + size + 1]
        nll, _ = model.score(segment[:, :-1], segment[:, 1:], model.initial_memory(1, 0))
        nats.append(of_next + float(np.sum(nll[0, :-1])))
        of_next = float(nll[0, -1])
        start += size
    return nats


def test_figures_of_documents_add_up_to_the_split(run, data, tmp_path, evaluate):
    path = tmp_path / "documents.jsonl"
    common = ("--workdir", run.workdir.folder, "--data", data[0], "--per-document", path)
    whole = ("--set", "evaluation.warm_up_tokens=all", "--set", "evaluation.memory_length=90")
    for rows in (1, 3):
        (result,) = evaluate(*common, *whole, "--set", f"evaluation.batch_size={rows}")
        documents = [json.loads(line) for line in path.read_text().splitlines()]
        totals = [each["total_nats"] for each in documents]
        np.testing.assert_allclose(totals, nats_of_documents_alone(), rtol=1e-5)
        assert sum(totals) == pytest.approx(result["total_nats"], rel=1e-12)
        assert result["masks_documents"]
    starts = np.cumsum([0, *map(len, DOCUMENTS[:-1])]).tolist()
    assert [each["first_token"] for each in documents] == starts
    # The first document is one token, which nothing predicts.
    assert [each["num_tokens"] for each in documents] == [0, *map(len, DOCUMENTS[1:])]
    assert documents[0]["perplexity"] is None
    mean = totals[1] / documents[1]["num_tokens"]
    assert documents[1]["perplexity"] == pytest.approx(math.exp(mean))
    evaluate(*common[:-1], tmp_path / "none" / "x", code=74)


def test_own_text_is_scored_and_bad_text_is_refused(run, tmp_path, txl, evaluate, monkeypatch):
    path = tmp_path / "own.txt"
    path.write_bytes(DOCUMENTS[3])
    common = ("--workdir", run.workdir.folder)
    *tokens, result = evaluate(*common, "--text", path, "--per-token")
    assert [token["text"] for token in tokens][:3] == ["\\xc3", "\\xa9", "t"]
    assert (result["num_tokens"], result["split"]) == (len(DOCUMENTS[3]) - 1, "text")
    assert result["num_characters"] < result["num_bytes"] == result["num_tokens"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(DOCUMENTS[3])))
    (piped,) = evaluate(*common, "--text", "-")
    assert piped["total_nats"] == pytest.approx(result["total_nats"], rel=1e-6)
    lines = txl("evaluate", *common, "--text", path, "--per-token").splitlines()
    assert lines[0].split() == ["0", "-", "'\\\\xc3'"]
    assert float(lines[1].split()[1]) == pytest.approx(tokens[1]["nats"], abs=1e-6)
    path.write_bytes(b"x")
    for text, code in ((path, 65), (tmp_path / "none", 66), (tmp_path, 2)):
        evaluate(*common, "--text", text, code=code)


READERS = {
    "as the run's evaluations": {},
    "without memory": {"memory_length": 0},
    "longer": {"memory_length": 13, "segment_length": 3},
}


@pytest.fixture(scope="module")
def other_lengths(data, tmp_path_factory):
    """A run in bfloat16 that evaluates with other lengths than it trains with."""
    evaluation = EvaluationConfig(batch_size=3, memory_length=9, segment_length=4, clamp_length=6)
    training = EXPERIMENT.training.replace(dtype_policy="mixed_bfloat16")
    experiment = EXPERIMENT.replace(evaluation=evaluation, training=training)
    run = Run(tmp_path_factory.mktemp("lengths") / "run", data[1], experiment)
    run.save(10)
    return run.workdir.folder


@pytest.mark.parametrize("name", READERS)
def test_job_library_and_harness_score_a_document_alike(name, other_lengths, tmp_path, evaluate):
    lengths, path, text = READERS[name], tmp_path / "own.txt", b"".join(DOCUMENTS).decode()
    path.write_text(text)
    sets = [f"--set=evaluation.{key}={value}" for key, value in lengths.items()]
    (expected,) = evaluate("--workdir", other_lengths, "--text", path, *sets)
    used = {"memory_length": 9, "segment_length": 4, "clamp_length": 6, "dtype_policy": "float32"}
    used |= {**lengths, "batch_size": 1, "step": 10}
    assert used.items() <= expected.items()
    loaded = txl_tf.load(other_lengths, **lengths)
    for score in (loaded.score(text), txl_tf.load(other_lengths).score(text, **lengths)):
        assert score.total_nats == pytest.approx(expected["total_nats"], rel=1e-6)
        assert used.items() <= score.to_dict().items()
    if importlib.util.find_spec("lm_eval") is not None:
        from lm_eval.api.run import Instance

        from txl_tf.harness import HarnessModel

        harness = HarnessModel(other_lengths, **lengths)
        request = Instance("loglikelihood_rolling", {}, (text,), 0)
        (log_likelihood,) = harness.loglikelihood_rolling([request], disable_tqdm=True)
        # The first token, which has no score, counts as the mean of the others.
        with_first = expected["total_nats"] * (1 + 1 / expected["num_tokens"])
        assert -log_likelihood == pytest.approx(with_first, rel=1e-6)
        assert harness.get_model_info().items() <= expected.items()


def test_the_precision_is_float32_unless_it_is_chosen(data, other_lengths, evaluate):
    common = ("--workdir", other_lengths, "--data", data[0])
    (result,) = evaluate(*common)
    (rounded,) = evaluate(*common, "--set", "evaluation.dtype_policy=mixed_bfloat16")
    policies = (result["dtype_policy"], rounded["dtype_policy"])
    assert policies == ("float32", "mixed_bfloat16")
    difference = abs(rounded["total_nats"] - result["total_nats"]) / result["num_tokens"]
    assert 1e-6 < difference < 1e-2


def test_unknown_tokens_are_counted_in_splits_and_texts(tmp_path, txl, evaluate):
    words, valid = [f"w{n}" for n in range(9)], b"w1 w2 other w3\nmore w1\n"
    rule = WordRule(add_eos=True)
    tokenizer = WordTokenizer([*words, "<unk>", "<eos>"], rule, unknown_token="<unk>")
    data = tmp_path / "data"
    manifest = prepare_dataset(
        {"train": [b"w1 w2\n" * 9], "valid": [valid]}, tokenizer, str(data), "toy"
    )
    model = EXPERIMENT.model.replace(vocabulary_size=tokenizer.vocabulary_size)
    run = Run(tmp_path / "run", manifest, EXPERIMENT.replace(model=model))
    run.workdir.keep_vocabulary(tokenizer.vocabulary_files)
    run.save(10)
    path = tmp_path / "own.txt"
    path.write_bytes(valid)
    common = ("--workdir", run.workdir.folder)
    (split,) = evaluate(*common, "--data", data)
    (own,) = evaluate(*common, "--text", path)
    score = txl_tf.load(run.workdir.folder).score(valid.decode())
    # Of 8 tokens the first is no target.
    for result in (split, own, score.to_dict()):
        assert (result["num_unknown"], result["unknown_share"]) == (2, 2 / 7)
        assert result["tokenizer_kind"] == "words"
    for text in (str(score), txl("evaluate", *common, "--text", path)):
        assert "unknown tokens    28.57%" in text
    # A data set has the vocabulary too.
    shutil.rmtree(Path(run.workdir.folder) / "vocabulary")
    (again,) = evaluate(*common, "--text", path, "--data", data)
    assert again["total_nats"] == own["total_nats"]


@pytest.mark.slow
def test_two_workers_share_the_rows_and_the_first_one_prints(run, data, tmp_path, evaluate):
    copy = tmp_path / "run"
    shutil.copytree(run.workdir.folder, copy, ignore=shutil.ignore_patterns("tensorboard"))
    rows = ("--set", "evaluation.batch_size=3", "--set", "evaluation.warm_up_tokens=all")
    common = ("--workdir", copy, "--data", data[0], "--per-document", tmp_path / "documents", *rows)
    (alone,) = evaluate(*common)
    expected = (tmp_path / "documents").read_text()
    (tmp_path / "documents").unlink()
    shutil.rmtree(copy / "tensorboard")
    words = command("evaluate", "--json", *common)
    processes = started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    outputs = [process.communicate(timeout=300) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    assert outputs[1][0] == ""
    together = json.loads(outputs[0][0])
    assert together["total_nats"] == pytest.approx(alone["total_nats"], rel=1e-5)
    content = (tmp_path / "documents").read_text()
    for before, after in zip(expected.splitlines(), content.splitlines(), strict=True):
        nats = json.loads(before)["total_nats"]
        assert json.loads(after)["total_nats"] == pytest.approx(nats, rel=1e-5)
    assert len(files_of(copy / "tensorboard")) == 1


def files_of(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def test_a_converted_model_is_evaluated(data, tmp_path, evaluate):
    folder, path = tmp_path / "converted", tmp_path / "own.txt"
    write_model_folder(model_of(10), str(folder))
    path.write_bytes(b"".join(DOCUMENTS))
    common = ("--workdir", folder, "--data", data[0])
    (split,) = evaluate(*common, "--set", "evaluation.batch_size=1")
    assert (split["step"], split["masks_documents"]) == (0, False)
    (own,) = evaluate(*common, "--text", path)
    assert own["total_nats"] == pytest.approx(split["total_nats"], rel=1e-6)
    assert not (folder / "tensorboard").exists()
    evaluate("--workdir", folder, "--text", path, code=2, says="--data DIR")
    (folder / "config.json").write_text("{")
    evaluate(*common, code=65)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--data", "d", "--text", "t", "--split", "valid"],
        ["--data", "d", "--per-token"],
        ["--data", "d", "--set", "evaluation.warm_up_tokens=some"],
    ],
)
def test_options_that_do_not_go_together_are_2(run, arguments, evaluate):
    evaluate("--workdir", run.workdir.folder, *arguments, code=2)
