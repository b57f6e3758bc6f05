import gzip
import lzma
import random

import pytest
import zstandard

from txl_tf.data.text_sources.text_blocks import text_blocks
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError

COMPRESS = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
TEXT = b"".join(random.Random(2).choices([b"one ", b"two\n", b"three "], k=30_000))


def read(path):
    return b"".join(text_blocks(str(path)))


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_files_are_read_whatever_their_name(tmp_path, kind):
    path = tmp_path / "text.txt"
    for text in (TEXT, b"", b"x", bytes(5_000_000)):
        path.write_bytes(COMPRESS[kind](text))
        assert read(path) == text


@pytest.mark.parametrize("kind", COMPRESS)
def test_several_parts_are_one_text(tmp_path, kind):
    path = tmp_path / "text"
    path.write_bytes(b"".join(COMPRESS[kind](part) for part in (TEXT, b"", b"end\n")))
    assert read(path) == TEXT + b"end\n"
    path.write_bytes(COMPRESS[kind](TEXT) + bytes(1024))
    assert read(path) == TEXT


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(tmp_path, kind):
    path = tmp_path / "text"
    compressed = COMPRESS[kind](TEXT)
    # With fewer bytes than the mark it is not known to be compressed.
    for length in [*range(6, 60), *range(60, len(compressed), 997), len(compressed) - 1]:
        path.write_bytes(compressed[:length])
        with pytest.raises(DataDamagedError, match="compressed data") as caught:
            read(path)
        assert f"{path}, byte " in str(caught.value)


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_flipped_bit_is_never_silent(tmp_path, kind):
    path = tmp_path / "text"
    compressed = COMPRESS[kind](TEXT)
    generator = random.Random(3)
    for _ in range(100):
        place = generator.randrange(12, len(compressed))
        damaged = bytearray(compressed)
        damaged[place] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            assert read(path) == TEXT
        except DataDamagedError:
            continue


@pytest.mark.parametrize("kind", COMPRESS)
def test_other_data_behind_the_compressed_are_refused(tmp_path, kind):
    path = tmp_path / "text"
    path.write_bytes(COMPRESS[kind](TEXT) + b"something else")
    with pytest.raises(DataDamagedError):
        read(path)


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_small_file_with_very_much_in_it_comes_in_small_blocks(tmp_path, kind):
    path = tmp_path / "text"
    size = 100_000_000 if kind == "zstd" else 8_000_000
    path.write_bytes(COMPRESS[kind](bytes(size)))
    assert path.stat().st_size < 50_000
    sizes = [len(block) for block in text_blocks(str(path))]
    assert sum(sizes) == size
    assert max(sizes) <= (70 << 20 if kind == "zstd" else 1 << 20)


def test_missing_files_and_folders_are_named(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputMissingError) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_without_the_package_for_zstd_the_error_names_it(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(COMPRESS["zstd"](TEXT))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(StorageError, match="zstandard is not installed"):
        read(path)
