"""Any value in any place of a configuration: valid, or refused by a short sentence."""

import json
import math
import time
import tomllib
from unittest import mock

import pytest

from pipelines.configs import NAMED_EXPERIMENTS, load_experiment
from pipelines.exit_codes import printed_error
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.storage.untrusted_files import MAX_DEPTH

BASES = {name: make().to_dict() for name, make in NAMED_EXPERIMENTS.items()}
EXTREMES = [
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    0.0,
    -0.0,
    1e-320,
    1e300,
    0.5,
    math.nan,
    math.inf,
    None,
    True,
    "",
    "all",
    "\ud800",
    "a" * 10_000,
    [],
    [[]],
    [1, 2.5, "a", None],
    list(range(1000)),
    {},
    {1: 2},
    {None: []},
]


def built(make):
    """A valid configuration, or None where a `ValueError` of a readable length says why not."""
    try:
        experiment = make()
    except ValueError as error:
        assert 0 < len(printed_error(UsageError(str(error), where="x"))) < 900
        return None
    assert ExperimentConfig.from_dict(experiment.to_dict()) == experiment
    json.dumps(experiment.to_dict(), allow_nan=False)
    return experiment


@pytest.mark.parametrize("section", ["model", "training", "optimizer", "evaluation"])
def test_every_field_takes_every_extreme_or_refuses_it(section):
    name = "wikitext103_base"
    for field in BASES[name][section]:
        for value in EXTREMES:
            values = {**BASES[name], section: {**BASES[name][section], field: value}}
            built(lambda values=values: ExperimentConfig.from_dict(values))


def assert_read_or_refused(path, content):
    """A file, whatever is in it: an experiment, or a usage error."""
    path.write_bytes(content)
    begin = time.monotonic()
    try:
        load_experiment(str(path), [])
    except (UsageError, InputMissingError) as error:
        text = printed_error(error)
        assert len(text.splitlines()) <= 3
        assert all(line.isprintable() and len(line) < 450 for line in text.split("\n"))
    assert time.monotonic() - begin < 5.0


STUDY = b'{"experiment": "quickstart", "seeds": '
FOUND = {
    "empty.json": b"",
    "surrogate.json": b'{"model": {"\\ud800": 1}}',
    "seeds.json": STUDY + b"3}",
    "rows.json": STUDY + b'[1], "rows": [1, 2]}',
    "bits.json": STUDY + b'[18446744073709551615], "rows": [{}]}',
    "name.json": STUDY + b'[1], "rows": [{"name": "' + b"a" * 300 + b'"}]}',
    "inline.toml": b"a = " + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "digits.toml": b"[model]\ndropout = " + b"9" * 400,
    "nan.toml": b"[model]\ndropout = nan\n[training]\nnum_steps = inf",
    "twice.toml": b"[model]\na = 1\na = 2",
    "date.toml": b"[model]\nnum_layers = 1979-05-27T07:32:00Z\n[training]",
    "return.toml": b"a = 1\rb = 2",
}


@pytest.mark.parametrize("name", FOUND)
def test_files_that_were_found_wrong(tmp_path, name):
    assert_read_or_refused(tmp_path / name, FOUND[name])


def test_a_file_that_the_parser_gives_up_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.toml"
    path.write_bytes(b"a = 1")
    monkeypatch.setattr(tomllib, "loads", mock.Mock(side_effect=RecursionError))
    with pytest.raises(UsageError, match="nested too deep"):
        load_experiment(str(path), [])
