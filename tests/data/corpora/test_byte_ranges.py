import pytest

from txl_tf.data.corpora.byte_ranges import byte_range
from txl_tf.errors import DataDamagedError

TEXT = bytes(range(200))


@pytest.mark.parametrize("size", [1, 7, 64, 500])
def test_ranges_do_not_depend_on_the_blocks(size):
    blocks = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    for start, stop in ((0, 200), (0, 1), (3, 150), (199, 200), (64, 128)):
        assert b"".join(byte_range(blocks, start, stop, where="text")) == TEXT[start:stop]


def test_nothing_is_read_beyond_the_end():
    def blocks():
        yield TEXT
        raise AssertionError

    assert b"".join(byte_range(blocks(), 10, 200, where="text")) == TEXT[10:]


def test_a_stream_that_is_too_short_is_named():
    with pytest.raises(DataDamagedError, match="must have 201 bytes, but has 200") as caught:
        list(byte_range([TEXT], 10, 201, where="text8"))
    assert "text8" in str(caught.value)
