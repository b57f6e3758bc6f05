"""Any value in any place of a configuration: valid, or refused by a short sentence."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.analysis.ablation import load_study
from pipelines.arguments import load_experiment
from pipelines.configs import NAMED_EXPERIMENTS
from pipelines.last_defence import printed_error
from txl_tf.config.base import shown_value
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import InputMissingError, UsageError

BASES = {name: make().to_dict() for name, make in NAMED_EXPERIMENTS.items()}
BASES["lstm"] = {
    "model": {
        "kind": "lstm",
        "vocabulary_size": 9,
        "num_layers": 1,
        "hidden_dim": 2,
        "segment_length": 3,
    },
    "training": {"global_batch_size": 1, "num_steps": 5},
}
EXTREMES = [
    *(0, -1, 1, 2**31 - 1, 2**31, 2**40, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1),
    *(10**400, -(10**400)),
    *(0.0, -0.0, 1e-320, 1e300, -1e300, 0.5, math.nan, math.inf, -math.inf),
    *(None, True, False, "", "all", "None", "nan", "\x00", "\ud800", "a" * 10_000),
    *([], [[]], [1], [1, 2.5, "a", None], list(range(1000)), {}, {"a": 1}, {1: 2}, {None: []}),
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-10, max_value=10),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(EXTREMES),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
TRIES = settings(max_examples=100, deadline=None)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


NESTED = [nested(50), nested(100_000)]


@st.composite
def mutated(draw):
    """The sections of an experiment with something removed, added or of another kind."""
    values = json.loads(json.dumps(BASES[draw(st.sampled_from(sorted(BASES)))]))
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from([*values, "nothing"])) if values else "nothing"
        place = values.get(section)
        if not isinstance(place, dict) or draw(st.integers(0, 9)) == 0:
            values[section] = draw(VALUES)
            continue
        field = draw(st.sampled_from([*place, "nothing"]))
        action = draw(st.sampled_from(["set", "remove", "double", "wrap", "text"]))
        if action == "remove":
            place.pop(field, None)
        elif action == "double":
            old = place.get(field)
            place[field] = old * 2 if isinstance(old, int | float | str | list) else [old, old]
        elif action == "wrap":
            place[field] = [place.get(field)]
        elif action == "text":
            place[field] = shown_value(place.get(field))
        else:
            place[field] = draw(VALUES)
    return values


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


@TRIES
@given(values=mutated())
def test_any_values_are_valid_or_refused(values):
    built(lambda: ExperimentConfig.from_dict(values))


@TRIES
@given(value=VALUES)
def test_what_is_no_configuration_at_all_is_refused(value):
    built(lambda: ExperimentConfig.from_dict(value))
    built(lambda: ExperimentConfig.from_dict({"model": value, "training": value}))


@pytest.mark.parametrize("section", ["model", "training", "optimizer", "evaluation"])
def test_every_field_takes_every_extreme_or_refuses_it(section):
    name = "wikitext103_base"
    for field in BASES[name][section]:
        for value in [*EXTREMES, 10**5000, *NESTED]:
            values = {**BASES[name], section: {**BASES[name][section], field: value}}
            built(lambda values=values: ExperimentConfig.from_dict(values))


@TRIES
@given(
    names=st.lists(st.sampled_from([*BASES["enwik8_base"]["model"], "x", ""]), max_size=3),
    section=st.sampled_from(["model", "training", "model.model", "", "é", "."]),
    text=st.text(max_size=40) | SCALARS.map(shown_value) | VALUES.map(shown_value),
)
def test_any_override_is_valid_or_refused(names, section, text):
    base = ExperimentConfig.from_dict(BASES["enwik8_base"])
    built(lambda: base.with_overrides([f"{section}.{name}={text}" for name in names]))
    built(lambda: base.with_overrides([text]))


def assert_read_or_refused(path, content):
    """A file, whatever is in it: an experiment, a study, or a usage error."""
    path.write_bytes(content)
    begin = time.monotonic()
    for load in (load_experiment, load_study):
        try:
            load(str(path), [])
        except (UsageError, InputMissingError) as error:
            text = printed_error(error)
            assert len(text.splitlines()) <= 3
            assert all(line.isprintable() and len(line) < 450 for line in text.split("\n"))
    assert time.monotonic() - begin < 5.0


TINY = b'{"model": {"vocabulary_size": 9}, "training": {"num_steps": 1}}'
FOUND = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"1",
    "bytes": b"\xff\xfe{}",
    "nul": b"\x00",
    "mark": b"\xef\xbb\xbf{}",
    "deep": b"[" * 100_000,
    "deep object": b'{"model":' * 100_000,
    "deep value": b'{"model": {"dropout": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "digits": b'{"model": {"dropout": ' + b"9" * 400 + b"}}",
    "more digits": b'{"model": {"dropout": ' + b"9" * 5000 + b"}}",
    "exponent": b'{"model": {"dropout": 1e999999}}',
    "nan": b'{"model": {"dropout": NaN}}',
    "twice": b'{"model": {"dropout": 0.1, "dropout": 0.2}, "model": {}}',
    "surrogate": b'{"model": {"\\ud800": 1}}',
    "long": b" " * (2 << 20),
    "long key": b'{"' + b"k" * 500_000 + b'": 1}',
    "number for a section": b'{"model": 3, "training": {}}',
    "cut": TINY[:-3],
    "study of numbers": b'{"experiment": "quickstart", "seeds": 3}',
    "study of text": b'{"experiment": "quickstart", "seeds": ["a"], "rows": "b"}',
    "rows of numbers": b'{"experiment": "quickstart", "seeds": [1], "rows": [1, 2]}',
    "set": b'{"experiment": "quickstart", "seeds": [1], "rows": [{}], "set": {"a": 1}}',
    "nothing named": b'{"experiment": "\\u0000", "seeds": [1], "rows": [{}]}',
    "seed of many bits": b'{"experiment": "quickstart", "seeds": [18446744073709551615], '
    b'"rows": [{}]}',
    "name": json.dumps(
        {"experiment": "quickstart", "seeds": [1], "rows": [{"name": "a" * 300}]}
    ).encode(),
}
FOUND_TOML = {
    "deep": b"a = " + b"[" * 100_000,
    "deep table": b"[" + b"a." * 50_000 + b"a]",
    "deep inline": b"a = " + b"{b = " * 50_000,
    "digits": b"[model]\ndropout = " + b"9" * 5000,
    "hexadecimal": b"[model]\nnum_layers = 0x" + b"f" * 5000,
    "nan": b"[model]\ndropout = nan\n[training]\nnum_steps = inf",
    "twice": b"[model]\na = 1\na = 2",
    "date": b"[model]\nnum_layers = 1979-05-27T07:32:00Z\n[training]",
    "bytes": b"[model]\nname = '\xff'",
    "return": b"a = 1\rb = 2",
}


@pytest.mark.parametrize("name", FOUND)
def test_json_files_that_were_found_wrong(tmp_path, name):
    assert_read_or_refused(tmp_path / "a.json", FOUND[name])


@pytest.mark.parametrize("name", FOUND_TOML)
def test_toml_files_that_were_found_wrong(tmp_path, name):
    assert_read_or_refused(tmp_path / "a.toml", FOUND_TOML[name])


@TRIES
@given(values=mutated())
def test_any_file_is_read_or_refused(tmp_path_factory, values):
    try:
        content = json.dumps(values).encode()
    except (ValueError, TypeError):
        return
    assert_read_or_refused(tmp_path_factory.getbasetemp() / "mutated.json", content)


@TRIES
@given(
    place=st.integers(0, 10**6),
    replacement=st.binary(max_size=6)
    | st.sampled_from(
        [b"\n", b"[", b"]", b'"', b"=", b"nan", b"1e999", b"a.b", b"'''", b"\\u0000"]
    ),
    num_removed=st.integers(0, 20),
)
def test_any_change_of_a_toml_file_is_read_or_refused(
    tmp_path_factory, place, replacement, num_removed
):
    lines = [
        f"[{section}]\n"
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items() if value)
        for section, fields in BASES["wikitext103_base"].items()
    ]
    content = "".join(lines).encode()
    place %= len(content)
    changed = content[:place] + replacement + content[place + num_removed :]
    assert_read_or_refused(tmp_path_factory.getbasetemp() / "mutated.toml", changed)
