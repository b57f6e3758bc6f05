import argparse

import pytest

from pipelines.benchmarking.cases import (
    SUITES,
    cases_of,
    reading_experiment,
    training_experiment,
)
from txl_tf.config.experiment import ExperimentConfig, TrainingConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.errors import UsageError
from txl_tf.models.sizes import reading_flops_per_token, training_flops_per_token

NOTHING = {
    **{"config": None, "overrides": [], "segment_lengths": None, "memory_lengths": None},
    **{"rows": None, "text": None, "tokenizer": None, "data": None},
}


def cases(suite, **options):
    return cases_of(suite, argparse.Namespace(**{**NOTHING, **options}))


def experiments(found):
    return [ExperimentConfig.from_dict(case.request["experiment"]) for case in found]


def test_training_is_of_six_layers_and_else_by_the_defaults():
    (case,) = cases("train")
    (experiment,) = experiments([case])
    model, training = experiment.model, experiment.training
    sizes = (model.num_layers, model.hidden_dim, model.num_heads, model.head_dim)
    assert sizes == (6, 256, 4, 64) and model.intermediate_dim == 1024
    assert (model.segment_length, model.memory_length, model.vocabulary_size) == (128, 128, 256)
    assert model.dropout == 0.1
    assert experiment.optimizer == OptimizerConfig() and experiment.optimizer.name == "adam"
    defaults = TrainingConfig(global_batch_size=8, num_steps=training.num_steps)
    assert training == defaults and training.dtype_policy == "float32"
    assert case.flops_per_token == training_flops_per_token(model)


@pytest.mark.parametrize("suite", ["evaluate", "generate"])
def test_reading_is_of_twelve_layers(suite):
    found = cases(suite)
    lengths = [(each.model.memory_length, each.model.segment_length) for each in experiments(found)]
    assert lengths == [(1600, 128), (3800, 128)] * (len(found) // 2)
    if suite == "generate":
        assert [case.request["num_rows"] for case in found] == [1, 1, 8, 8]
    for experiment in experiments(found):
        model = experiment.model
        sizes = (model.num_layers, model.hidden_dim, model.num_heads, model.head_dim)
        assert sizes == (12, 512, 8, 64) and model.intermediate_dim == 2048
        assert experiment.evaluation.batch_size == 1


def test_growth_of_training_is_that_of_segment_and_memory():
    found = cases("train", segment_lengths=[128, 256, 512])
    lengths = [(each.model.segment_length, each.model.memory_length) for each in experiments(found)]
    assert lengths == [(128, 128), (256, 256), (512, 512)]
    assert [case.shape.split(", B")[0] for case in found] == [
        f"6 x 256, T {each}, M {each}" for each in (128, 256, 512)
    ]


def test_growth_of_evaluation_is_that_of_memory():
    found = cases("evaluate", memory_lengths=[800, 1600, 3200], rows=[2])
    assert [each.model.memory_length for each in experiments(found)] == [800, 1600, 3200]
    assert {each.evaluation.batch_size for each in experiments(found)} == {2}
    flops = [case.flops_per_token for case in found]
    # Two products with each key: the rest of a token's arithmetic does not grow.
    model = reading_experiment(800).model
    per_key = 2 * 2 * model.num_layers * model.num_heads * model.head_dim
    assert [later - flops[0] for later in flops[1:]] == [800 * per_key, 2400 * per_key]


def test_training_is_three_times_reading_and_the_memory_again():
    model = training_experiment().model
    without = model.replace(memory_length=0)
    assert training_flops_per_token(without) == 3 * reading_flops_per_token(without)
    # Keys and values of as many tokens as a segment has.
    again = 3 * 2 * 2 * model.num_layers * model.hidden_dim * model.num_heads * model.head_dim
    assert training_flops_per_token(model) == 3 * reading_flops_per_token(model) + again


def test_settings_change_the_usual_shapes():
    policy = "training.dtype_policy=mixed_bfloat16"
    (case,) = cases("train", overrides=["model.num_layers=2", policy], rows=[3])
    (experiment,) = experiments([case])
    assert experiment.model.num_layers == 2 and experiment.training.global_batch_size == 3
    assert case.shape == "2 x 256, T 128, M 128, B 3, mixed_bfloat16"
    # Both of the usual shapes are one now.
    assert len(cases("evaluate", overrides=["model.memory_length=4"])) == 1


def test_a_named_experiment_is_measured_as_it_is():
    (case,) = cases("evaluate", config="enwik8_base")
    (experiment,) = experiments([case])
    assert (experiment.model.segment_length, experiment.model.memory_length) == (80, 2100)
    assert experiment.evaluation.batch_size == 10
    assert [each.request["num_rows"] for each in cases("generate", config="enwik8_base")] == [1]


@pytest.mark.parametrize(
    ("suite", "settings", "fits"),
    [
        ("train", [], True),
        ("evaluate", ["model.same_length=true", "model.clamp_length=100"], True),
        ("evaluate", ["optimizer.name=adamw"], True),
        ("train", ["optimizer.name=adamw"], False),
        ("train", ["model.pre_norm=true"], False),
        ("generate", ["model.cutoffs=[10,20]"], False),
        ("evaluate", ["model.embedding_dim=64"], False),
    ],
)
def test_peers_get_what_they_can_do(suite, settings, fits):
    for case in cases(suite, overrides=settings):
        assert (case.peer_request is not None) == fits
        if fits:
            assert case.peer_request["work"] == suite
            assert case.peer_request["num_layers"] in (6, 12)


def test_texts_and_data_of_the_user_are_read():
    found = cases("prepare", text="a.txt", tokenizer=["wordpiece"])
    assert [case.request["tokenizer"] for case in found] == ["wordpiece"]
    assert all(case.request["text"] == "a.txt" for case in found)
    (plain, with_starts) = cases("read", data="d", rows=[2], segment_lengths=[16])
    assert plain.request["data"] == "d" and not plain.request["with_document_starts"]
    assert with_starts.request["with_document_starts"]


def test_nothing_that_cannot_be_is_tried():
    with pytest.raises(UsageError, match="memory"):
        cases("train", rows=[16_000_000])
    with pytest.raises(UsageError, match="memory"):
        cases("generate", memory_lengths=[16_000_000])


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_says_what_it_is(suite):
    shapes = [case.shape for case in cases(suite)]
    assert len(set(shapes)) == len(shapes) and all(shapes)
