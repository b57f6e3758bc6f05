"""`txl config`, experiments with a base, and suggestions for a misspelt name."""

import json

import pytest

from pipelines.configs import NAMED_EXPERIMENTS, load_experiment
from pipelines.jobs.config import settings_of
from pipelines.run.training_data import tokens_before_the_end
from txl_tf.errors import UsageError


def test_every_setting_is_listed_with_its_facts_and_meaning(txl):
    text = " ".join(txl("config").split())
    experiment = NAMED_EXPERIMENTS["quickstart"]()
    for section in ("model", "training", "optimizer", "evaluation"):
        for name, facts, meaning in settings_of(type(getattr(experiment, section))):
            assert meaning and f"{section}.{name} ({facts}) {meaning}" in text
    assert all(name in text for name in NAMED_EXPERIMENTS)


@pytest.mark.parametrize("name", NAMED_EXPERIMENTS)
def test_an_experiment_is_printed_as_a_file_that_can_be_used(txl, tmp_path, name):
    text = txl("config", "--config", name, "--set", "training.seed=700")
    (tmp_path / "config.json").write_text(text)
    expected = NAMED_EXPERIMENTS[name]().with_overrides(["training.seed=700"])
    assert load_experiment(str(tmp_path / "config.json"), []) == expected


def test_a_file_with_a_base_has_only_the_differences(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "quickstart"\n[training]\nnum_steps = 90\n')
    expected = NAMED_EXPERIMENTS["quickstart"]().with_overrides(["training.num_steps=90"])
    assert load_experiment(str(path), []) == expected
    lstm = {"vocabulary_size": 9, "num_layers": 1, "hidden_dim": 4, "segment_length": 4}
    sections = {"model": {"kind": "lstm", **lstm}, "evaluation": {"memory_length": None}}
    path = tmp_path / "lstm.json"
    path.write_text(json.dumps({"base": "quickstart", **sections}))
    assert load_experiment(str(path), []).model.kind == "lstm"
    path.write_text(json.dumps({"base": "quikstart"}))
    with pytest.raises(UsageError, match="Did you mean quickstart"):
        load_experiment(str(path), [])


def test_evaluations_before_the_last_step_are_limited_by_tokens_and_not_by_time():
    experiment = NAMED_EXPERIMENTS["quickstart"]()
    num_steps, period = experiment.training.num_steps, experiment.training.evaluation_period

    def limit(experiment=experiment, **training):
        training = experiment.training.replace(**training)
        return tokens_before_the_end(experiment.replace(training=training), num_steps)

    tenth = period * 64 * 32 / 10
    evaluation = experiment.evaluation
    same = evaluation.replace(segment_length=None, memory_length=None)
    assert limit(experiment.replace(evaluation=same)) == int(tenth)
    # Longer lengths cost more.
    assert 0.8 * tenth < limit() < tenth
    # An extended run evaluates the same text.
    assert limit(num_steps=4 * num_steps) == limit()
    assert limit(evaluate_tokens=77) == 77
    assert limit(evaluate_every_steps=1) == 4096
    assert limit(evaluate_tokens="all") is limit(stop_after_evaluations=3) is None
