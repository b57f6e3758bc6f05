import numpy as np

from txl_tf.data.corpora.sentence_shuffle import shuffled_lines, shuffled_order


def test_an_order_has_every_number_once():
    for count in (0, 1, 2, 1000):
        assert sorted(shuffled_order(count, 0)) == list(range(count))


def test_the_order_stays_what_it_was():
    """Prepared data sets depend on it."""
    assert shuffled_order(8, 0, 1, 2).tolist() == [7, 0, 3, 1, 5, 6, 4, 2]


def test_every_key_matters():
    orders = {tuple(shuffled_order(50, *keys)) for keys in ((0,), (1,), (0, 0), (0, 1), ("0", 12))}
    assert len(orders) == 5


def test_places_are_taken_evenly():
    counts = np.zeros((6, 6))
    for seed in range(6000):
        for place, number in enumerate(shuffled_order(6, seed)):
            counts[place, number] += 1
    # 6000 / 6, and five standard deviations of it.
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(6000 * 5 / 36)


def test_lines_keep_their_bytes():
    text = "one\rmore\ntwo \u2028 \x0b\n\nlast without line feed".encode()
    lines = shuffled_lines([text[:5], text[5:]], 1)
    assert sorted(lines) == sorted(line + b"\n" for line in text.split(b"\n"))
    assert shuffled_lines([b""], 1) == []
