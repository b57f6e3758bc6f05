import json
import math

import pytest

from tests.small_models import small_result


def test_figures_come_from_the_totals():
    result = small_result()
    assert result.nats_per_token == pytest.approx(2.5 * math.log(2.0))
    assert result.perplexity == pytest.approx(2.0**2.5)
    assert result.bits_per_byte == pytest.approx(1.5)
    assert result.bits_per_character == pytest.approx(2.0)
    assert result.word_perplexity == pytest.approx(2.0**6.0)


def test_what_has_no_denominator_has_no_figure():
    result = small_result(num_characters=0.0, num_words=0.0)
    assert (result.bits_per_character, result.word_perplexity) == (None, None)
    assert "character" not in result.describe() and "word" not in result.describe()


def test_the_dict_is_plain_json_and_has_all_figures():
    result = small_result(clamp_length=9)
    values = json.loads(json.dumps(result.to_dict()))
    assert values["perplexity"] == result.perplexity
    assert values["bits_per_byte"] == result.bits_per_byte
    assert values["nats_per_token"] == result.nats_per_token
    assert values["bits_per_character"] == result.bits_per_character
    assert values["word_perplexity"] == result.word_perplexity
    assert (values["clamp_length"], values["memory_length"], values["split"]) == (9, 7, "valid")


def test_the_line_says_the_denominators_and_conditions():
    line = small_result().describe()
    for part in (
        "1.500000 bits/byte",
        "12 tokens",
        "20 bytes",
        "segment 5",
        "memory 7",
        "3 rows",
        "float32",
    ):
        assert part in line
    for part in ("2.000000 bits/character (15 characters)", "64 per word (5 words)"):
        assert part in line
    assert "25.00% unknown tokens" in small_result(num_unknown=3).describe()
    assert "unknown" not in line
    # Where a token is a character, a word is many of them and says nothing.
    assert "word" not in small_result(tokenizer_kind="characters").describe()
    assert "clamp none" in line
    assert "same length" not in line and "warm-up" not in line and "dynamic" not in line
    assert "clamp 4" in small_result(clamp_length=4).describe()
    changed = small_result(
        same_length=True,
        same_length_keys="memory",
        warm_up_tokens=1234,
        masks_documents=True,
        dynamic_learning_rate=0.01,
    ).describe()
    for part in ("same length (memory)", "warm-up 1,234", "documents apart", "dynamic 0.01"):
        assert part in changed


def test_a_huge_loss_has_a_finite_perplexity():
    assert math.isfinite(small_result(total_nats=1e9).perplexity)
