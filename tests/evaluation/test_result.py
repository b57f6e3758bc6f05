"""Figures that a result derives from its totals."""

import json
import math

import pytest

from tests.small_models import small_result


def test_figures_come_from_totals_that_are_there_and_are_plain_json():
    values = json.loads(json.dumps(small_result().to_dict()))
    assert values["nats_per_token"] == pytest.approx(2.5 * math.log(2.0))
    assert values["perplexity"] == pytest.approx(2.0**2.5)
    assert values["bits_per_byte"] == pytest.approx(1.5)
    assert values["bits_per_character"] == pytest.approx(2.0)
    assert values["word_perplexity"] == pytest.approx(2.0**6.0)
    assert math.isfinite(small_result(total_nats=1e9).perplexity)
    result = small_result(num_characters=0.0, num_words=0.0)
    assert (result.bits_per_character, result.word_perplexity) == (None, None)
    assert "character" not in str(result) and "word" not in str(result)
