"""`txl analyze attention` on a small run: its files, and what it refuses."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from txl_tf.data.prepared_dataset import PreparedDataset

M, T = 12, 8


@pytest.fixture
def analyze(txl, trained, data_folder, tmp_path):
    """A function that runs the job, and returns what it prints."""

    def run(*options, **end):
        common = ("--workdir", trained, "--data", data_folder, "--out", tmp_path / "out")
        lengths = ("--memory-length", M, "--segment-length", T, "--rows", 2)
        return txl("analyze", "attention", *common, *lengths, *options, **end)

    return run


def test_numbers_and_figures_are_written_and_never_written_over(analyze, tmp_path):
    analyze("--segments", "5")
    analyze(code=73, says="The output exists already.")
    out = tmp_path / "out"
    report = json.loads((out / "attention.json").read_text())
    # Two segments fill the memory of the first row, half of the second one among them.
    assert abs(report["num_queries"] - 5 * 2 * T) <= T
    assert (report["memory_length"], report["segment_length"], report["step"]) == (M, T, 40)
    with np.load(out / "attention.npz", allow_pickle=False) as arrays:
        profile = arrays["attention"]
        assert profile.shape == (1, 2, M + 1)
        np.testing.assert_allclose(profile.sum(axis=-1), 1.0, atol=1e-5)
        np.testing.assert_allclose(report["mean_distance"], profile @ np.arange(M + 1))
        farthest = report["farthest_head"]
        assert farthest["mean_distance"] == pytest.approx(np.max(arrays["mean_distance"]))
        assert arrays["shown_rows"].shape == (T, M + T)
        np.testing.assert_allclose(arrays["shown_rows"].sum(axis=-1), 1.0, atol=1e-5)
        assert arrays["shown_token_ids"].shape == (M + T,)
        assert set(bytes(arrays["shown_token_ids"].tolist())) <= set(b"0123456789 andmke\n")
    for name in ("profile", "head"):
        image = tf.image.decode_png((out / f"{name}.png").read_bytes(), channels=3).numpy()
        assert image.std() > 10.0, name  # something is drawn


def test_layers_are_described(analyze, tmp_path):
    lines = analyze("--segments", "1").splitlines()
    report = json.loads((tmp_path / "out" / "attention.json").read_text())
    assert "queries, each of which sees itself and the 12 tokens before it" in lines[0]
    assert [line.split()[0] for line in lines[2:4]] == ["1", "farthest:"]
    assert f"{report['farthest_head']['mean_distance']:.2f} tokens back" in lines[3]


@pytest.mark.parametrize("rows", [1, slow_case(3)])
def test_a_whole_split_is_averaged_over(rows, analyze, data_folder, tmp_path):
    out, num_tokens = tmp_path / "out", PreparedDataset.open(str(data_folder)).num_tokens("valid")
    analyze("--whole-split", "--rows", rows)
    report = json.loads((out / "attention.json").read_text())
    # Each but the last token, with the memory before it.
    assert report["num_queries"] == num_tokens - 1 - M
    with np.load(out / "attention.npz", allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["attention"].sum(axis=-1), 1.0, atol=1e-5)
        window = arrays["shown_token_ids"].tolist()
    tokens = PreparedDataset.open(str(data_folder)).read_tokens("valid", 0, num_tokens).tolist()
    assert window in (tokens[start : start + M + T] for start in range(num_tokens))


@pytest.mark.parametrize(
    ("more", "exit_code", "message"),
    [
        (("--whole-split", "--rows", "900"), 2, "Take fewer --rows"),
        (("--whole-split", "--segments", "3"), 2, "--segments"),
        (("--segments", "0"), 2, "--segments 0"),
        (("--split", "dev"), 2, "There is no split dev"),
        (("--data", "nowhere"), 66, "nowhere"),
    ],
)
def test_wrong_arguments_are_refused(more, exit_code, message, analyze, tmp_path):
    analyze(*more, code=exit_code, says=message)
    assert not (tmp_path / "out").exists()
