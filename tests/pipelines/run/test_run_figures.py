"""Figures of a run: TensorBoard's files, the metrics log and `txl evaluate` say the same."""

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from pipelines.run.sample_writer import SampleWriter
from tests.generation.models import expressive
from tests.pipelines.txl_process import run_txl
from tests.small_models import toy_tokens
from txl_tf.training.figures import PAGES, TAGS, describe_tag
from txl_tf.training.metrics_log import PROCESS_RUN, MetricsLog

# Texts and hyperparameters are no curves.
_SCALAR = re.compile("|".join(f"{name}(/.*)?" for name in TAGS))


def scalars_of(folder):
    """The last value of every tag and step, as float32, by run."""
    values = {}
    for path in folder.iterdir():
        events = EventAccumulator(str(path), {"tensors": 0}).Reload()
        values[path.name] = {
            (tag, event.step): tf.make_ndarray(event.tensor_proto).item()
            for tag in events.Tags()["tensors"]
            if _SCALAR.fullmatch(tag)
            for event in events.Tensors(tag)
        }
    return values


def lines_of(workdir):
    return MetricsLog(workdir / "metrics.jsonl").read().lines


def logged(workdir):
    values = {}
    for line in lines_of(workdir):
        if line["run"] != PROCESS_RUN:
            values.setdefault(line["run"], {}).update(
                ((tag, line["step"]), float(np.float32(value)))
                for tag, value in line.items()
                if _SCALAR.fullmatch(tag)
            )
    return values


def test_tags_and_log_have_the_same_values(untouched):
    values = logged(untouched)
    assert scalars_of(untouched / "tensorboard") == values
    written = {describe_tag(tag).name for run in values.values() for tag, _ in run}
    charts = {tag.name for tag in TAGS.values() if tag.page in PAGES}
    # Only TPUs have a published peak.
    assert charts - written == {"performance/peak_share"}


def test_the_log_has_the_result_of_an_evaluation(untouched, data_folder, tmp_path, txl):
    # It writes its own figures for TensorBoard.
    copy = shutil.copytree(untouched, tmp_path / "run")
    options = ("--workdir", copy, "--data", data_folder, "--split", "valid", "--json")
    result = json.loads(txl("evaluate", *options))
    *_, line = (line for line in lines_of(untouched) if "result" in line)
    assert line["result"].keys() == result.keys()
    for name in result.keys() - {"seconds"}:
        # Training sums in a fixed order.
        is_float = isinstance(result[name], float)
        expected = pytest.approx(result[name], rel=1e-6) if is_float else result[name]
        assert line["result"][name] == expected, name
    for name in ("nats_per_token", "perplexity", "bits_per_byte", "bits_per_character"):
        assert line[f"loss/{name}"] == line["result"][name]


def test_the_overview_has_settings_and_samples(untouched):
    training = EventAccumulator(str(untouched / "tensorboard" / "train")).Reload()

    def text(events, tag):
        return tf.make_ndarray(events.Tensors(tag)[-1].tensor_proto).item().decode()

    output = json.loads(text(training, "configuration"))
    described = json.loads((untouched / "run.json").read_text())
    assert output.pop("data") == described["data"]
    assert output == described["experiment"]
    validation = EventAccumulator(str(untouched / "tensorboard" / "valid")).Reload()
    steps = [event.step for event in validation.Tensors("sample")]
    assert steps == [20, 40]
    *_, line = (line for line in lines_of(untouched) if "sample" in line)
    sample = text(validation, "sample")
    assert f"Perplexity {line['sample/perplexity']:.4g}" in sample
    # It continues the text of the split.
    assert re.search(r"^    \d+ and \d+ make \d+$", sample, re.MULTILINE)


def test_each_run_is_a_trial_whose_hyperparameters_have_types(untouched):
    events = EventAccumulator(str(untouched / "tensorboard" / "valid")).Reload()

    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    session = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    # Each run is a trial, or figures of runs with equal settings would be averaged.
    assert session.group_name.endswith("tensorboard")
    assert session.hparams["optimizer.learning_rate"].number_value == 3e-3
    assert session.hparams["optimizer.name"].string_value == "adam"
    # Given by name, they would have no types, no filters and no order.
    with pytest.raises(KeyError):
        events.SummaryMetadata("_hparams_/experiment")


@pytest.mark.slow
def test_a_sample_is_repeatable_and_has_the_perplexity_of_the_model():
    model, prompt = expressive(), toy_tokens(50)
    first, perplexity = SampleWriter(model)(prompt)
    again, _ = SampleWriter(model)(prompt)
    np.testing.assert_array_equal(first, again)
    assert len(set(first.tolist())) > 3
    tokens = np.concatenate([prompt[: SampleWriter.PROMPT_TOKENS], first])
    memory, nats = model.initial_memory(1), []
    for place in range(len(tokens) - 1):
        nll, memory = model.score(
            tokens[None, place : place + 1], tokens[None, place + 1 :][:, :1], memory
        )
        nats.append(float(nll[0, 0]))
    expected = np.exp(np.mean(nats[SampleWriter.PROMPT_TOKENS - 1 :]))
    assert perplexity == pytest.approx(expected, rel=1e-5)


def test_training_reports_and_keeps_the_newest_checkpoints(shared_folder, untouched):
    output = (shared_folder / "output").read_text()
    assert re.search(r"step 40/40 .*nats .*bits/byte .*tokens/s .*0:00 left", output)
    assert re.search(r"tensorboard --logdir .*/#custom_scalars\n", output)
    names = sorted(path.name for path in (untouched / "checkpoints").iterdir())
    assert names == ["best.json", "step-00000020", "step-00000030", "step-00000040"]


@pytest.mark.slow
def test_a_run_continues_with_its_own_data(trained, tmp_path):
    workdir = shutil.copytree(trained, tmp_path / "run")
    train = ("train", "--workdir", workdir, "--set", "training.num_steps=42")
    run_txl(*train, cwd=tmp_path, says="Resuming from the checkpoint of step 40.")
