"""The page of an export for model hubs, whatever the names of data are."""

import json

import pytest

from tests.export.conftest import CONFIG
from txl_tf.export.model_card import hub_page

yaml = pytest.importorskip("yaml")

QUALITY = {
    "valid": {"split": "valid", "perplexity": 3.25, "bits_per_byte": 1e-5, "step": 40},
    "test": {"nats_per_token": 1.5, "perplexity": float("inf"), "bits_per_character": None},
}
NAMES = [
    "quotes \" and \\ and ' and `",
    "line\nfeed: - [yes, no] # comment",
    "\x00 \x7f \x85 \u2028 \ufeff \ufffe",
    "1e3",
    "{{ x }} <script> | a |",
    "",
]


def front_matter(page):
    lines = page.splitlines()
    end = lines.index("---", 1)
    assert lines[0] == "---"
    return yaml.safe_load("\n".join(lines[1:end])), "\n".join(lines[end + 1 :])


@pytest.mark.parametrize("name", NAMES)
def test_front_matter_says_any_name_as_it_is(name):
    card = {"data": {"corpus": name}, "quality": QUALITY, "license": name, "software": "txl-tf 1"}
    values, text = front_matter(hub_page(card))
    assert values["license"] == (name or "unknown")
    assert values["library_name"] == "txl-tf"
    assert values.get("datasets") == ([name] if name else None)
    [index] = values["model-index"]
    valid, test = index["results"]
    expected = name or "unknown"
    assert valid["dataset"] == {"type": expected, "name": expected, "split": "valid"}
    assert {each["type"]: each["value"] for each in valid["metrics"]} == {
        "perplexity": 3.25,
        "bits_per_byte": 1e-5,
    }
    assert [each["type"] for each in test["metrics"]] == ["nats_per_token"]
    assert "| valid | perplexity | 3.2500 |" in text


def test_the_loss_that_an_export_measures_is_a_result():
    weights = {"sample_nats_per_token": 0.5, "sample_tokens": 100}
    card = {"serving": {"weights": weights}, "sample": {"corpus": "text8", "split": "valid"}}
    values, _ = front_matter(hub_page(card))
    [result] = values["model-index"][0]["results"]
    assert result["dataset"]["name"] == "text8"
    assert result["dataset"]["split"] == "valid, the first 100 tokens"
    assert result["metrics"][0]["value"] == 0.5


def test_an_export_has_the_page_and_an_example(exported):
    values, text = front_matter((exported / "assets.extra" / "README.md").read_text())
    assert values["model-index"][0]["name"] == "toy"
    card = json.loads((exported / "assets.extra" / "model_card.json").read_text())
    assert card["serving"]["completion"]["example"] == [[0]]
    assert "tf.constant([[0]])" in text
    assert card["serving"]["memory"]["shape"][2] == CONFIG.memory_length
