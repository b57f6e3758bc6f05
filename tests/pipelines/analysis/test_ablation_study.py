"""A study names exactly the runs that the paper's tables have."""

import json
import re

import pytest

from pipelines.analysis.ablation_study import STUDIES_FOLDER, AblationRow, load_study
from pipelines.arguments import load_experiment
from pipelines.configs import NAMED_EXPERIMENTS
from tests.pipelines.conftest import EXPERIMENT
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.models.language_model import create_model
from txl_tf.models.sizes import equal_memory_segment_length, num_parameters, training_memory_bytes

STUDY = {
    "experiment": EXPERIMENT,
    "seeds": [1, 2],
    "axes": {
        "recurrence": [True, False],
        "position_encoding": ["transformer_xl", "shaw", "sinusoidal", "learned"],
        "loss_positions": ["all", "last_half"],
    },
    "evaluation": {"memory_lengths": [8, 0, 32], "window_lengths": [8, 32], "window_stride": 4},
}


def load(folder, **changes):
    path = folder / "study.json"
    path.write_text(json.dumps({**STUDY, **changes}))
    return load_study(str(path), [])


def differing_fields(experiment, base):
    theirs, own = base.to_dict(), experiment.to_dict()
    return {
        f"{section}.{name}"
        for section in own
        for name in own[section]
        if own[section][name] != theirs[section][name]
    }


@pytest.mark.parametrize("name", [path.stem for path in STUDIES_FOLDER.glob("*.toml")])
def test_every_named_study_is_valid(name):
    study = load_study(name, [])
    runs = study.runs()
    assert len({run.name for run in runs}) == len(study.rows) * len(study.seeds) > 0
    assert all(run.attention_lengths()[0].is_training_length for run in runs)


def test_the_study_of_the_official_curve_has_its_parameters():
    assert num_parameters(load_study("official_curve", []).base.model) == 889_856


def test_a_grid_has_every_combination_with_every_seed(tmp_path):
    study = load(tmp_path)
    runs = study.runs()
    assert len(study.rows) == 16
    assert len({run.name for run in runs}) == 32
    assert [run.seed for run in runs] == [1] * 16 + [2] * 16
    combinations = {
        (
            run.experiment.model.recurrence,
            run.experiment.model.position_encoding,
            run.experiment.training.loss_positions,
            run.experiment.training.seed,
        )
        for run in runs
    }
    assert len(combinations) == 32


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({}, set()),
        ({"recurrence": False}, {"model.recurrence", "model.memory_length"}),
        ({"loss_positions": "last_half"}, {"training.loss_positions"}),
        ({"position_encoding": "sinusoidal"}, {"model.position_encoding"}),
        ({"position_encoding": "shaw"}, {"model.position_encoding", "model.num_positions"}),
        ({"name": "deep", "set": ["model.num_layers=3"]}, {"model.num_layers"}),
    ],
)
def test_a_row_changes_what_it_is_about_and_nothing_else(row, fields):
    base = ExperimentConfig.from_dict(EXPERIMENT)
    experiment = AblationRow.from_dict(row).experiment(base, seed=base.training.seed)
    assert differing_fields(experiment, base) == fields


def test_settings_that_only_the_paper_s_encoding_has_are_left_out_of_others():
    base = ExperimentConfig.from_dict(EXPERIMENT)
    base = base.replace(
        model=base.model.replace(share_attention_biases=True, clamp_length=8, dropout=0.2),
        evaluation=base.evaluation.replace(clamp_length=6),
    )
    for encoding in ("shaw", "learned", "sinusoidal"):
        experiment = AblationRow(position_encoding=encoding).experiment(base, seed=0)
        assert experiment.evaluation.clamp_length == (6 if encoding == "sinusoidal" else None)
        model = experiment.model
        assert model.dropout == 0.2
        assert not model.share_attention_biases
        assert model.clamp_length == (8 if encoding == "sinusoidal" else None)


@pytest.mark.parametrize("recurrence", [True, False])
def test_a_learned_table_has_a_place_for_every_distance_of_training(recurrence):
    base = ExperimentConfig.from_dict(EXPERIMENT)
    row = AblationRow(position_encoding="shaw", recurrence=recurrence)
    assert row.experiment(base, seed=0).model.num_positions == (32 if recurrence else 16)


def test_with_recurrence_lengths_are_the_memory_s_and_without_the_window_s(tmp_path):
    runs = {run.name: run for run in load(tmp_path).runs()}
    with_memory = runs["recurrence-shaw-all/seed-1"].attention_lengths()
    assert [each.length for each in with_memory] == [16, 0, 8, 32]
    assert [each.same_length for each in with_memory] == [False, False, True, True]
    assert {each.segment_length for each in with_memory} == {16}
    windows = runs["none-shaw-all/seed-1"].attention_lengths()
    assert [each.segment_length for each in windows] == [16, 8, 32]
    assert {(each.memory_length, each.stride) for each in windows} == {(0, 4)}


def test_what_recurrence_costs_in_memory_becomes_a_longer_segment(tmp_path):
    rows = [
        {"name": "with"},
        {"name": "without", "recurrence": False, "equal_memory_to": "with"},
        {
            "name": "table",
            "recurrence": False,
            "position_encoding": "learned",
            "equal_memory_to": "with",
        },
    ]
    runs = {run.name: run.experiment for run in load(tmp_path, rows=rows).runs()}
    budget = training_memory_bytes(runs["with/seed-1"])
    for name in ("without", "table"):
        experiment = runs[f"{name}/seed-2"]
        length = experiment.model.segment_length
        assert length > 16
        assert training_memory_bytes(experiment) <= budget
        longer = experiment.model.replace(
            segment_length=length + 1, num_positions=length + 1 if name == "table" else None
        )
        assert training_memory_bytes(experiment.replace(model=longer)) > budget
    assert runs["table/seed-1"].model.num_positions == runs["table/seed-1"].model.segment_length


def test_the_formula_comes_near_the_lengths_that_the_paper_found():
    """Table 8: 128 tokens with a memory of 128 need as much as 176 without one."""
    base = NAMED_EXPERIMENTS["wikitext103_base"]()
    # 128 million parameters; of the softmax, most of whose words are rare, the first cluster.
    model = base.model.replace(
        segment_length=128, memory_length=128, vocabulary_size=20_000, cutoffs=()
    )
    base = base.replace(model=model)
    with_memory = AblationRow().experiment(base, seed=0)
    without = AblationRow(recurrence=False).experiment(base, seed=0)
    assert 150 <= equal_memory_segment_length(with_memory, without) <= 185


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {}}, "needs `axes` or `rows`"),
        ({"axes": {"depth": [1]}}, "Received: depth"),
        ({"seeds": [1, 1]}, "different integers"),
        ({"seeds": []}, "one or more"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "different names"),
        ({"rows": [{"equal_memory_to": "nothing"}]}, "equal_memory_to='nothing'"),
        ({"rows": [{"set": ["model.num_layers=3"]}]}, "needs a `name`"),
        ({"rows": [{"name": "../elsewhere"}]}, "made of small letters"),
        ({"rows": [{"colour": "red"}]}, "Received: colour"),
        ({"rows": [{"name": "a", "set": ["model.depth=3"]}]}, "Received: model.depth"),
        ({"evaluation": {"window_lengths": [2], "window_stride": 4}}, "`window_lengths`"),
        ({"extra": 1}, "extra"),
        ({"experiment": 7}, "Received: 7"),
    ],
)
def test_a_study_that_means_nothing_is_refused_by_what_is_wrong_in_it(tmp_path, changes, message):
    with pytest.raises(UsageError, match=message):
        load(tmp_path, **changes)


def test_an_unknown_study_names_those_there_are():
    with pytest.raises(InputMissingError, match="novels_ablation"):
        load_study("no_such_study", [])


def test_a_study_may_name_an_experiment_or_a_file_beside_it(tmp_path):
    (tmp_path / "base.json").write_text(json.dumps(EXPERIMENT))
    assert load(tmp_path, experiment="base.json").base == load(tmp_path).base
    assert load(tmp_path, experiment="quickstart").base == NAMED_EXPERIMENTS["quickstart"]()


def test_the_recurrent_models_of_the_group_have_the_budget_steps_and_text_of_the_ablation():
    base = load_study("novels_ablation", []).base
    for path in sorted((STUDIES_FOLDER / "novels_recl").glob("*.toml")):
        experiment = load_experiment(str(path), [])
        assert experiment.training == base.training
        rate = experiment.optimizer.learning_rate  # Recurrent models learn with another.
        assert experiment.optimizer == base.optimizer.replace(learning_rate=rate)
        assert experiment.model.segment_length == base.model.segment_length
        assert experiment.model.vocabulary_size == base.model.vocabulary_size
        num_there = create_model(experiment.model).count_params()
        assert num_there == pytest.approx(num_parameters(base.model), rel=0.01), path.stem


@pytest.mark.parametrize(
    "name",
    sorted(str(path.relative_to(STUDIES_FOLDER)) for path in STUDIES_FOLDER.glob("*/*.toml")),
)
def test_the_parameters_that_a_file_tells_are_those_of_its_model(name):
    path = STUDIES_FOLDER / name
    millions = float(re.search(r"^# ([0-9.]+) million parameters", path.read_text(), re.M)[1])
    model = load_experiment(str(path), []).model
    # By formula, which is that of built models: those at the size of the paper are large.
    assert num_parameters(model) / 1e6 == pytest.approx(millions, abs=0.0051)
