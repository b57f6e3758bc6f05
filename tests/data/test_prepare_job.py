import argparse

import pytest

from pipelines import prepare
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.errors import InputMissingError, JobError, OutputExistsError, UsageError


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    prepare.add_arguments(parser)
    return parser.parse_args([str(argument) for argument in arguments])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a line of text\n" * 1000)
    return path


def test_a_text_file_becomes_a_data_set(tmp_path, text, capsys):
    arguments = parsed(
        "--text",
        text,
        "--out",
        tmp_path / "out",
        "--valid-fraction",
        0.1,
        "--shard-megabytes",
        0.01,
    )
    prepare.check_arguments(arguments)
    prepare.run(arguments)
    dataset = PreparedDataset.open(str(tmp_path / "out"))
    printed = capsys.readouterr().out
    assert dataset.manifest.corpus_name == "text.txt"
    assert dataset.manifest.split_names == ("train", "valid", "test")
    assert sum(map(dataset.num_tokens, dataset.manifest.split_names)) == 15000
    train = dataset.manifest.split("train")
    expected = f"train: {train.tokens} tokens, {train.bytes} bytes, 1 documents, 1 shards"
    assert expected in printed.splitlines()
    assert dataset.fingerprint in printed


def test_the_built_in_corpus_becomes_a_data_set(tmp_path):
    arguments = parsed("--corpus", "python_standard_library", "--out", tmp_path / "out")
    prepare.check_arguments(arguments)
    prepare.run(arguments)
    manifest = PreparedDataset.open(str(tmp_path / "out")).manifest
    assert manifest.corpus_name == "python_standard_library"
    assert manifest.split("train").documents > 100


@pytest.mark.parametrize(
    "more",
    [
        ("--valid-fraction", 0.5, "--test-fraction", 0.5),
        ("--valid-fraction", -0.1),
        ("--test-fraction", "nan"),
        ("--shard-megabytes", 0),
        ("--shard-megabytes", "nan"),
        ("--shard-megabytes", "inf"),
        ("--out", ""),
    ],
)
def test_wrong_values_are_usage_errors(tmp_path, text, more):
    with pytest.raises(UsageError) as caught:
        prepare.check_arguments(parsed("--text", text, "--out", tmp_path / "out", *more))
    assert len(str(caught.value).splitlines()) == 3


def test_a_built_in_corpus_has_its_own_splits(tmp_path):
    arguments = ("--corpus", "python_standard_library", "--out", tmp_path / "out")
    with pytest.raises(UsageError):
        prepare.check_arguments(parsed(*arguments, "--test-fraction", 0.1))


def test_missing_input_and_existing_output_are_found_early(tmp_path, text):
    with pytest.raises(InputMissingError):
        prepare.check_arguments(parsed("--text", tmp_path / "no", "--out", tmp_path / "out"))
    with pytest.raises(OutputExistsError):
        prepare.check_arguments(parsed("--text", text, "--out", tmp_path))


def test_one_source_must_be_named(tmp_path, text, capsys):
    corpus = ("--corpus", "python_standard_library")
    for sources in ((), ("--text", text, *corpus)):
        with pytest.raises(SystemExit) as caught:
            parsed("--out", tmp_path / "out", *sources)
        assert caught.value.code == 2
    capsys.readouterr()


def test_plain_lines_tell_how_far_it_is(capsys, monkeypatch):
    monkeypatch.setattr(prepare.time, "monotonic", iter([0.0, 5.0, 12.0, 12.0]).__next__)
    report = prepare._line_printer(4_000_000)
    report("train", 1_000_000)
    report("train", 1_000_000)
    assert capsys.readouterr().err == "preparing train: 2.0 of 4.0 MB\n"


def test_a_terminal_gets_a_bar(tmp_path, text, capsys, monkeypatch):
    monkeypatch.setattr(prepare.sys.stderr, "isatty", lambda: True)
    prepare.run(parsed("--text", text, "--out", tmp_path / "out"))
    assert "written: " in capsys.readouterr().out


def test_errors_of_the_job_have_exit_codes():
    assert issubclass(UsageError, JobError)
    assert (UsageError.exit_code, OutputExistsError.exit_code) == (2, 73)
