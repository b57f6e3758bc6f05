"""Studies at the sizes of the paper: what they count, and that their steps can be built."""

import pytest

from pipelines.analysis.ablation import (
    STUDIES_FOLDER,
    load_study,
)
from pipelines.arguments import load_experiment
from txl_tf.models.sizes import num_parameters
from txl_tf.tpu_compiler.program import traced_trainer, training_program


def runs_of(name):
    return load_study(name, []).runs()


def recurrent(kind):
    return load_experiment(str(STUDIES_FOLDER / "wikitext103_recl" / f"{kind}.toml"), [])


def test_every_row_of_the_ablation_has_128_million_parameters():
    counts = {run.name: num_parameters(run.experiment.model) for run in runs_of("wikitext103_128m")}
    assert {round(count / 1e6) for count in counts.values()} == {128}, counts


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
    program = training_program(traced_trainer(experiment, 4))
    assert len(program.hlo) > 100_000
