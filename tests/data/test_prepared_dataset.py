"""A prepared data set: its manifest, and any range of its tokens."""

import numpy as np
import pytest

from tests.data.manifests import manifest, shard, split
from txl_tf.data.prepared_dataset import Manifest
from txl_tf.errors import InputMissingError


def test_a_manifest_survives_the_round_trip(tmp_path):
    manifest().write(str(tmp_path))
    assert Manifest.read(str(tmp_path)) == manifest()


def test_the_fingerprint_covers_everything_that_decides_the_tokens():
    same = [
        manifest(corpus_name="other"),
        manifest(splits=(split(words=6, characters=3, documents=2),)),
    ]
    other = [
        manifest(tokenizer_sha256="ce" * 32),
        manifest(token_bytes=2),
        manifest(splits=(split(shards=(shard(0), shard(1, sha256="ac" * 32))),)),
        manifest(splits=(split(shards=(shard(0, tokens=19), shard(1, tokens=21))),)),
        manifest(splits=(split(shards=(shard(1, file=shard(0).file), shard(1, sha256="0" * 64))),)),
    ]
    assert {each.fingerprint for each in same} == {manifest().fingerprint}
    assert len({each.fingerprint for each in [manifest(), *other]}) == len(other) + 1


@pytest.mark.parametrize("folder", ["", "absent", "file", "file/below"])
def test_a_missing_manifest_is_named(tmp_path, folder):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputMissingError, match="manifest") as error:
        Manifest.read(str(tmp_path / folder))
    assert str(tmp_path / folder / "manifest.json") in str(error.value)
    assert error.value.exit_code == 66


@pytest.mark.parametrize("num_tokens", [1, 63, 64, 320, 321, 1500])
def test_any_range_of_tokens_can_be_read(make_dataset, num_tokens):
    dataset, tokens = make_dataset(num_tokens)
    assert dataset.num_tokens("train") == num_tokens
    random = np.random.default_rng(num_tokens)
    ends = [np.sort(random.integers(0, num_tokens + 1, 2)) for _ in range(50)]
    for start, stop in [(0, num_tokens), (num_tokens, num_tokens), *ends]:
        result = dataset.read_tokens("train", start, stop)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, tokens[start:stop])
