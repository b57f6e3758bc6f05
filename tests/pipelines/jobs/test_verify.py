"""`txl verify`: checks data sets, runs, checkpoints, converted models, exports."""

import json
import shutil

import pytest

from tests.export.small_root import small_root
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.errors import DataDamagedError
from txl_tf.export.saved_model import write_version
from txl_tf.storage.listed_files import verify_checksums


def flip(path, place=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(content)


@pytest.fixture
def dataset(tmp_path):
    splits = {"train": [b"text " * 1000], "valid": [b"more"]}
    folder = tmp_path / "data"
    prepare_dataset(splits, ByteTokenizer(), str(folder), "test", tokens_per_record=100)
    return folder


def test_a_data_set_is_verified(dataset, txl):
    output = txl("verify", dataset)
    assert "train: 5000 tokens in 1 shards" in output
    assert f"verified: data set {dataset}" in output
    shard = dataset / "train-00000-of-00001.tfrecord"
    flip(shard)
    txl("verify", dataset, code=65, says=str(shard))


def test_a_path_with_nothing_to_verify_is_named(tmp_path, txl):
    (tmp_path / "file").write_text("text")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "file"):
        txl("verify", path, code=66, says="nothing to verify")


def test_all_of_a_run_is_verified(trained, tmp_path, txl):
    workdir = shutil.copytree(trained, tmp_path / "run")
    output = txl("verify", workdir)
    for what in ("description", "tokenizer bytes", "checkpoint", "best checkpoint", "ledger"):
        assert f"verified: {what}" in output
    checkpoints = sorted((workdir / "checkpoints").glob("step-*"))
    assert output.count("verified: checkpoint") == len(checkpoints) > 1
    assert "verified: checkpoint" in txl("verify", checkpoints[0])
    data = checkpoints[0] / "state.data"
    flip(data)
    for path in (workdir, checkpoints[0]):
        txl("verify", path, code=65, says=str(data))
    flip(data)
    ledger = workdir / "ledger.jsonl"
    content = ledger.read_text()
    # Every line is still valid; only the checkpoints reveal the change.
    ledger.write_text(content.replace('"applied"', '"skipped_non_finite"', 1))
    txl("verify", workdir, code=65, says="not what was written")
    ledger.write_text(content)
    (workdir / "vocabulary").mkdir()
    (workdir / "vocabulary" / "vocabulary.txt").write_text("U+0041\n")
    txl("verify", workdir, code=65, says="vocabulary")
    shutil.rmtree(workdir / "vocabulary")
    run_file = workdir / "run.json"
    description = json.loads(run_file.read_text())
    description["experiment"]["training"]["seed"] += 1
    run_file.write_text(json.dumps(description))
    txl("verify", workdir, code=78, says="seed")
    run_file.write_bytes(b"{")
    txl("verify", workdir, code=65, says="JSON is not valid")
    run_file.unlink()
    txl("verify", workdir, code=65, says="description of the run is missing")


@pytest.fixture(scope="module")
def small_export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "1"
    root, signatures = small_root()
    write_version(str(folder), root, signatures, {}, {"assets.extra/config.json": b"{}\n"})
    return folder


def test_damages_and_surplus_of_an_export_are_refused_by_name(small_export):
    verify_checksums(str(small_export))
    for path in sorted(path for path in small_export.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for changed in (content[:-1] + bytes([content[-1] ^ 1]), content[:-1]):
            path.write_bytes(changed)
            with pytest.raises(DataDamagedError) as error:
                verify_checksums(str(small_export))
            # A damaged list names itself, or the file that it is wrong about.
            where = small_export if path.name == "SHA256SUMS" else path
            assert error.value.where.startswith(str(where))
        path.write_bytes(content)
    surplus = small_export / "assets.extra" / "surplus.txt"
    surplus.write_text("x")
    with pytest.raises(DataDamagedError, match="not listed in SHA256SUMS") as error:
        verify_checksums(str(small_export))
    assert error.value.where == str(surplus)
