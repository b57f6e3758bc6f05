"""Folder of an export: its versions, and when nothing is written."""

import os

import pytest

from tests.export.small_root import small_root
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.export import ExportOptions, export_saved_model, next_version
from txl_tf.export.saved_model import write_version
from txl_tf.storage.listed_files import verify_checksums


def test_what_cannot_be_exported_is_refused_before_anything_is_written(model, tmp_path):
    for options, message in (
        ({"tokenizer": CharacterTokenizer("ab")}, "256 tokens"),
        ({"completion": GenerationConfig(max_tokens=2000)}, "max_output_tokens"),
        ({"completion": GenerationConfig(stop=".")}, "needs a tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            export_saved_model(model, tmp_path / "1", **options)
    for wrong in ({"weights": "int4"}, {"max_input_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ExportOptions(**wrong)
    assert list(tmp_path.iterdir()) == []


def test_versions_count_on_from_the_highest(tmp_path):
    out = str(tmp_path / "models")
    assert next_version(out) == 1
    for name in ("3", "20", ".21.preparing-x", "latest", "-4"):
        os.makedirs(os.path.join(out, name))
    assert next_version(out) == 21
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        next_version(str(tmp_path / "file"))


def test_a_version_is_written_once(tmp_path):
    root, signatures = small_root()
    folder = str(tmp_path / "1")
    write_version(folder, root, signatures, {}, {"assets.extra/card": b"text"})
    assert len(verify_checksums(folder)) == 5  # graph, two of variables, card and list
    assert os.listdir(tmp_path) == ["1"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OutputExistsError):
        write_version(folder, root, signatures, {}, {})
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
