"""Studies at the sizes of the paper: what they count, and that their steps can be built."""

import pytest

from pipelines.analysis.ablation import (
    PUBLISHED_ROWS,
    PUBLISHED_SEGMENTS,
    STUDIES_FOLDER,
    RowSummary,
    Sample,
    load_study,
)
from pipelines.arguments import load_experiment
from txl_tf.models.sizes import num_parameters
from txl_tf.tpu_compiler.replica_program import training_program

FILES = [
    "wikitext103_128m.toml",
    "wikitext103_151m.toml",
    "wikitext103_recl/lstm.toml",
    "wikitext103_recl/qrnn.toml",
]


def runs_of(name):
    return load_study(name, []).runs()


def recurrent(kind):
    return load_experiment(str(STUDIES_FOLDER / "wikitext103_recl" / f"{kind}.toml"), [])


def summary(run):
    return RowSummary(run, (1,), {length: Sample([30.0]) for length in run.attention_lengths()})


@pytest.mark.parametrize("name", FILES)
def test_files_say_that_they_were_not_run(name):
    assert "Not run" in (STUDIES_FOLDER / name).read_text(encoding="utf-8")


def test_every_row_of_the_ablation_has_128_million_parameters():
    counts = {run.name: num_parameters(run.experiment.model) for run in runs_of("wikitext103_128m")}
    assert {round(count / 1e6) for count in counts.values()} == {128}, counts


def test_the_ablation_has_the_rows_segments_and_lengths_of_the_tables():
    runs = runs_of("wikitext103_128m")
    assert len(runs) == 11
    published = {run.name: summary(run).published for run in runs}
    of_table_5 = [
        row for (_, encoding, _), row in PUBLISHED_ROWS.items() if encoding != "shaw_two_terms"
    ]
    segments = [run.experiment.model.segment_length for run in runs]
    assert sorted(segments) == [128] * 9 + sorted(PUBLISHED_SEGMENTS.values())
    of_128 = [run.name for run in runs if run.row.segment_length is None]
    assert sorted(published[name] for name in of_128) == sorted(of_table_5)
    assert None not in published.values()
    for run in runs:
        model, evaluation = run.experiment.model, run.experiment.evaluation
        assert model.effective_memory_length == (128 if run.row.recurrence else 0)
        # Validation during the run reads as training does.
        assert (evaluation.segment_length, evaluation.memory_length) == (None, None)
        assert evaluation.same_length is None
        lengths = {length.length for length in run.attention_lengths()}
        assert published[run.name].attention_length in lengths
        evaluation.check_windows(model)


def test_the_standard_model_has_151_million_and_is_read_at_the_published_lengths():
    (run,) = runs_of("wikitext103_151m")
    assert round(num_parameters(run.experiment.model) / 1e6) == 151
    assert [length.length for length in run.attention_lengths()] == [150, 300, 450, 640]
    assert summary(run).published is None  # its figures are not of 128 million


@pytest.mark.parametrize("kind", ["lstm", "qrnn"])
def test_recurrent_models_have_the_budget_of_their_group(kind):
    experiment = recurrent(kind)
    assert experiment.model.kind == kind
    assert round(num_parameters(experiment.model) / 1e6) == 151
    (transformer,) = runs_of("wikitext103_151m")
    assert experiment.model.vocabulary_size == transformer.experiment.model.vocabulary_size
    assert experiment.model.segment_length == transformer.experiment.model.segment_length


@pytest.mark.slow
# A table gets gradients from inputs and softmax, which are added up as dense ones.
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("kind", ["shaw_two_terms", "lstm", "qrnn"])
def test_a_step_of_these_sizes_is_lowered(kind):
    if kind == "shaw_two_terms":
        runs = runs_of("wikitext103_128m")
        experiment = next(run.experiment for run in runs if run.row.position_encoding == kind)
    else:
        experiment = recurrent(kind)
    program = training_program(experiment, 4)
    assert len(program.hlo) > 100_000
