import pytest

from pipelines.benchmarking.rounds import Spread, alternate, count_for, ratios, token_rates


def test_all_take_turns_and_every_other_round_is_turned_around():
    order = []

    def turn(name):
        order.append(name)
        return {"seconds": float(len(order))}

    figures = alternate({name: lambda name=name: turn(name) for name in "abc"}, 3)
    assert "".join(order) == "abccbaabc"
    assert figures["b"] == [{"seconds": 2.0}, {"seconds": 5.0}, {"seconds": 8.0}]


def test_a_ratio_is_of_the_same_round():
    ours = token_rates([{"tokens": 100, "seconds": each} for each in (1.0, 2.0, 4.0)])
    theirs = token_rates([{"tokens": 50, "seconds": each} for each in (1.0, 2.0, 1.0)])
    assert ours.rounds == (100.0, 50.0, 25.0)
    ratio = ratios(ours, theirs)
    assert ratio.rounds == (2.0, 2.0, 0.5)
    assert (ratio.median, ratio.least, ratio.most) == (2.0, 0.5, 2.0)
    assert Spread.of([3.0, 1.0]).to_dict() == {
        **{"median": 2.0, "least": 1.0, "most": 3.0},
        "rounds": [3.0, 1.0],
    }


@pytest.mark.parametrize(
    ("fixed", "each", "most"),
    [
        (0.0, 0.1, 2.0),
        (0.0, 7.0, 7.0),  # once at least
        (0.5, 0.01, 2.0),  # most of the first one does not grow
        (0.0, 1e-9, 1e-3),  # a million times at most
    ],
)
def test_a_turn_is_as_long_as_it_is_to_be(fixed, each, most):
    done = []

    def turn(count):
        # The first of each size compiles.
        compiling = 30.0 if count not in done else 0.0
        done.append(count)
        return {"seconds": compiling + fixed + count * each}

    count = count_for(turn, 2.0)
    assert done[-1] == count
    assert most / 2 <= fixed + count * each <= most * 1.01
