import json
import math

import pytest

from txl_tf.evaluation.evaluation_result import EvaluationResult


def result_of(**changes):
    fields = {
        "split": "valid",
        "step": 40,
        "total_nats": 30.0 * math.log(2.0),
        "num_tokens": 12,
        "num_bytes": 20.0,
        "segment_length": 5,
        "memory_length": 7,
        "clamp_length": None,
        "same_length": False,
        "batch_size": 3,
        "seconds": 0.5,
    }
    return EvaluationResult(**{**fields, **changes})


def test_figures_come_from_the_totals():
    result = result_of()
    assert result.nats_per_token == pytest.approx(2.5 * math.log(2.0))
    assert result.perplexity == pytest.approx(2.0**2.5)
    assert result.bits_per_byte == pytest.approx(1.5)


def test_the_dict_is_plain_json_and_has_all_figures():
    result = result_of(clamp_length=9)
    values = json.loads(json.dumps(result.to_dict()))
    assert values["perplexity"] == result.perplexity
    assert values["bits_per_byte"] == result.bits_per_byte
    assert values["nats_per_token"] == result.nats_per_token
    assert (values["clamp_length"], values["memory_length"], values["split"]) == (9, 7, "valid")


def test_the_line_says_the_denominators_and_conditions():
    line = result_of().describe()
    for part in ("1.500000 bits/byte", "12 tokens", "20 bytes", "segment 5", "memory 7", "3 rows"):
        assert part in line
    assert "clamp none" in line
    assert "clamp 4" in result_of(clamp_length=4).describe()


def test_a_huge_loss_has_a_finite_perplexity():
    assert math.isfinite(result_of(total_nats=1e9).perplexity)
