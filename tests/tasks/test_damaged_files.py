"""Files with random damage: read, or refused by an error that a job reports."""

import functools
import json
import random

import pytest

from tests.tasks.task_files import squad_document, write_glue, write_json, write_race
from txl_tf.errors import JobError
from txl_tf.tasks.examples import Columns, read_own_data
from txl_tf.tasks.published import read_glue, read_race, read_squad

# Bytes that mean something in one of the forms.
SHARP = b'\t\n\r",{}[]:\\ \x00\xff0-_eN'
CODES = {2, 65, 66, 74, 78}

OWN = {
    "classification": (Columns(text=("q", "p"), label="y", id="i"), "pos", "neg"),
    "regression": (Columns(text=("q", "p"), label="y", id="i"), 1.5, -2),
    "choice": (Columns(text=("q",), choices=("p", "c"), label="y", id="i"), 0, "B"),
    "span": (Columns(text=("q", "p"), label="y", id="i"), "passage", ""),
}


def own_case(folder, kind, ending="jsonl"):
    columns, first, second = OWN[kind]
    records = [
        {"i": f"id{number}", "q": "two words", "p": "a passage", "c": "option", "y": label}
        for number, label in enumerate((first, second))
    ]
    path = folder / f"own.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
    else:
        mark = {"tsv": "\t", "csv": '","'}[ending]
        edge = {"tsv": "", "csv": '"'}[ending]
        rows = [list(records[0]), *(map(str, each.values()) for each in records)]
        path.write_text("".join(f"{edge}{mark.join(row)}{edge}\n" for row in rows))
    return path, functools.partial(read_own_data, {"train": str(path)}, kind, columns)


def glue_case(folder):
    write_glue(folder, "qqp")
    return folder / "train.tsv", functools.partial(read_glue, str(folder), "qqp")


def race_case(folder):
    write_race(folder)
    return folder / "dev" / "high" / "1.txt", functools.partial(read_race, str(folder))


def squad_case(folder):
    path = write_json(folder / "train.json", squad_document())
    return folder / "train.json", functools.partial(read_squad, {"train": path})


CASES = {
    **{kind: functools.partial(own_case, kind=kind) for kind in OWN},
    "tsv": functools.partial(own_case, kind="regression", ending="tsv"),
    "csv": functools.partial(own_case, kind="span", ending="csv"),
    "glue": glue_case,
    "race": race_case,
    "squad": squad_case,
}


def damaged(content, source):
    """The content with a byte changed, put in or taken out, or with a part doubled or lost."""
    place = source.randrange(len(content))
    end = min(len(content), place + source.randrange(1, 30))
    byte = bytes([source.choice(SHARP) if source.random() < 0.7 else source.randrange(256)])
    return source.choice(
        (
            content[:place] + byte + content[place + 1 :],
            content[:place] + byte + content[place:],
            content[:place] + content[end:],
            content[:end] + content[place:],
            content[:place],
        )
    )


@pytest.mark.parametrize("case", CASES)
def test_damage_is_refused_by_an_error_of_jobs_alone(tmp_path, case):
    path, read = CASES[case](tmp_path)
    good = path.read_bytes()
    assert read().splits["train"]
    source = random.Random(case)
    refused = 0
    for _ in range(20):
        content = good
        for _ in range(source.randrange(1, 4)):
            content = damaged(content, source) or b"\n"
        path.write_bytes(content)
        try:
            data = read()
        except JobError as error:
            refused += 1
            assert error.exit_code in CODES, content
            assert str(tmp_path) in error.where, content
            assert len(str(error).splitlines()) <= 3, content
        else:
            assert all(each.texts for each in data.splits["train"])
    assert refused > 0
