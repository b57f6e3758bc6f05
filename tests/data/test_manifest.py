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
