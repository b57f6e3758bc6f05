"""Files with random damage: read, or refused by an error that a job reports."""

import functools
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
    "own.jsonl": '{"q": "two words", "p": "a passage", "y": "passage"}\n'
    '{"q": "two words", "p": "a passage", "y": ""}\n',
    "own.tsv": "q\tp\ty\ntwo words\ta passage\tpassage\ntwo words\ta passage\t\n",
    "own.csv": 'q,p,y\n"two words","a passage",passage\n"two words","a passage",""\n',
}


def own_case(folder, name):
    path, columns = folder / name, Columns(text=("q", "p"), label="y")
    path.write_text(OWN[name])
    return path, functools.partial(read_own_data, {"train": str(path)}, "span", columns)


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
    **{name: functools.partial(own_case, name=name) for name in OWN},
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
