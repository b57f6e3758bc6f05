"""Experiments by name and from files, and the settings of a run from a trained model."""

import re
from pathlib import Path

import pytest

from pipelines.configs import NAMED_EXPERIMENTS, load_experiment
from pipelines.jobs import train
from tests.pipelines.txl_process import parsed
from tests.small_models import small_config
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.errors import MismatchError, UsageError
from txl_tf.model_folder import write_model_folder
from txl_tf.models.transformer_xl import TransformerXL


def test_every_name_of_the_readme_is_an_experiment():
    sizes = (
        (Path(__file__).parents[2] / "README.md")
        .read_text(encoding="utf-8")
        .partition("\n## Sizes\n")[2]
    )
    rows = [line for line in sizes.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall("`([a-z0-9_]+)`", row.split("|")[1])}
    assert {"hour", "night"} < names <= NAMED_EXPERIMENTS.keys()


def test_a_named_experiment_has_the_vocabulary_of_the_data_unless_one_is_set():
    def vocabulary(size, *overrides):
        model = load_experiment("wikitext103_base", list(overrides), vocabulary_size=size).model
        return model.vocabulary_size, model.cutoffs

    assert vocabulary(62) == (62, ())
    assert vocabulary(30_000) == (30_000, (20_000,))
    assert vocabulary(62, "model.vocabulary_size=50000") == (50_000, (20_000, 40_000))
    assert vocabulary(30_000, "model.cutoffs=[7]") == (30_000, (7,))
    with pytest.raises(UsageError, match="`cutoffs` must ascend"):
        vocabulary(62, "model.cutoffs=[20000]")


def settings_of(*words):
    """Settings of the run that `txl train` begins."""
    return train.check_arguments(parsed(train, *words)).experiment


def test_a_run_from_a_trained_model_has_its_model(tmp_path):
    config = small_config(3, 5, vocabulary_size=256)
    write_model_folder(TransformerXL(config), tmp_path / "model")
    text = b"".join(b"%d\n" % number for number in range(300))
    prepare_dataset({"train": [text]}, ByteTokenizer(), str(tmp_path / "data"), "toy")
    folders = {"init-from": "model", "data": "data", "workdir": "run"}
    run = [word for name in folders for word in (f"--{name}", tmp_path / folders[name])]
    result = settings_of(*run)
    assert result.model == config
    # Three passes over 1,090 tokens in 32 rows of 3.
    assert (result.training.num_steps, result.optimizer.learning_rate) == (34, 2e-4)
    for schedule in ("constant", "inverse_square_root", "wsd"):
        start = settings_of(*run, "--set", f"optimizer.schedule={schedule}")
        assert start.optimizer.replace(schedule="cosine") == result.optimizer
    file = tmp_path / "mine.toml"
    file.write_text("[training]\nglobal_batch_size = 2\nnum_steps = 7\n")
    result = settings_of(*run, "--config", file)
    assert (result.model, result.training.num_steps) == (config, 7)
    with pytest.raises(MismatchError, match="hidden_dim") as error:
        settings_of(*run, "--config", "quickstart")
    assert "--config" in error.value.remedy


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.yaml", "base: quickstart\n", "not JSON: Expecting value, line 1, column 1. Files are"),
        (
            "a.json",
            '{"training": {"seed": 1,}}',
            "a comma before a closing bracket, line 1, column",
        ),
        ("a.toml", "base = quickstart\n", "not TOML: Invalid value (at line 1, column 8)"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_place(name, text, reason, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=re.escape(reason)):
        load_experiment(str(tmp_path / name), [])
