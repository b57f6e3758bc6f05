import pytest

from pipelines.evaluation.result_table import result_line, result_table
from tests.small_models import small_result


def rows(table):
    return {line.split("  ")[0]: line.split()[1:] for line in table.splitlines()}


def test_a_table_has_figures_denominators_and_conditions():
    results = [small_result(num_unknown=3), small_result(split="test", num_bytes=10.0)]
    table = result_table(results)
    lines = table.splitlines()
    assert lines[0].split() == ["valid", "test"]
    assert lines[1].split() == ["bits/byte", "1.500000", "3.000000"]
    assert lines[-1] == "step 40, segment 5, memory 7, clamp none, 3 rows, float32"
    assert rows(table)["word perplexity"][-2:] == ["64.0000", "64.0000"]
    assert rows(table)["unknown tokens"][-2:] == ["25.00%", "-"]
    assert rows(table)["tokens"] == ["12", "12"]
    assert rows(table)["bytes"] == ["20", "10"]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_words_have_a_perplexity_only_where_tokens_are_pieces_of_them(kind):
    assert "word" not in result_table([small_result(tokenizer_kind=kind)])


def test_what_has_no_denominator_has_no_row():
    table = result_table([small_result(num_characters=0.0, num_words=0.0)])
    assert "character" not in table and "word" not in table


def test_the_line_in_the_middle_of_a_run_is_short():
    line = result_line(small_result(step=4000))
    assert line == "valid at step 4,000: 1.5000 bits/byte, perplexity 5.66"
