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
    assert "character" not in str(result) and "word" not in str(result)


def test_the_dict_is_plain_json_and_has_all_figures():
    result = small_result(clamp_length=9)
    values = json.loads(json.dumps(result.to_dict()))
    for name in ("perplexity", "bits_per_byte", "nats_per_token", "bits_per_character"):
        assert values[name] == getattr(result, name)
    assert values["word_perplexity"] == result.word_perplexity
    assert (values["clamp_length"], values["memory_length"], values["split"]) == (9, 7, "valid")


def test_a_huge_loss_has_a_finite_perplexity():
    assert math.isfinite(small_result(total_nats=1e9).perplexity)
