"""Tiny files in the published forms, which tests write, read and damage."""

import json
from pathlib import Path

import pytest

from txl_tf.errors import JobError

# Header lines as published, test files beside the others.
GLUE_FILES = {
    "cola": {
        "train": 'gj04\t1\t\tThe sailors rode the breeze.\ngj04\t0\t*\tThe "box contained the.\n',
        "dev": "gj04\t1\t\tBill floated into the cave.\n",
        "test": "index\tsentence\n0\tBill whistled past the house.\n1\tThe car honked.\n",
    },
    "sst2": {
        "train": "sentence\tlabel\na fine film \t1\nhide new secretions \t0\n",
        "dev": "sentence\tlabel\nunflinchingly bleak \t0\n",
        "test": "index\tsentence\n0\tuneasy mishmash\n",
    },
    "mrpc": {
        "train": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        '1\t702876\t702977\tAmrozi accused "the witness".\tHe called him "the witness.\r\n'
        "0\t210\t211\tYucaipa owned it.\tIt was sold.\r\n",
        "dev": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said so.\tSo he said.\n",
        "test": "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t3\t4\tOne.\tTwo.\n",
    },
    "stsb": {
        "train": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        "\tscore\n0\tmain\tMSRvid\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t5.000\n"
        "1\tmain\tMSRvid\t2012\t4\tnone\tnone\tA man smokes.\tA man skates.\t0.500\n",
        "dev": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        "\tscore\n0\tmain\tMSRvid\t2012\t1\tnone\tnone\tA cat.\tA dog.\t2.6\n",
        "test": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\n"
        "0\tmain\tMSRvid\t2012\t1\tnone\tnone\tA girl.\tA boy.\n",
    },
    "qqp": {
        "train": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "133273\t2133\t2134\tHow do I sleep?\tHow can I sleep?\t1\n"
        "5\t6\t7\tBroken at its line end\n\tWas he real?\t0\n"
        "8\t9\t10\tWhere?\t\t0\n",
        "dev": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tWhen?\t0\n",
        "test": "id\tquestion1\tquestion2\n0\tWho?\tWhom?\n",
    },
    "mnli": {
        name: "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
        "sentence1_parse\tsentence2_parse\tsentence1\tsentence2" + columns + "\n" + lines
        for name, columns, lines in (
            (
                "train",
                "\tlabel1\tgold_label",
                "0\t1\t1n\tfiction\t(a)\t(b)\t(S)\t(S)\tIt rains.\tIt is wet.\tneutral\tneutral\n"
                "1\t2\t2e\tfiction\t(a)\t(b)\t(S)\t(S)\tHe ran.\tHe moved.\tx\tentailment\n",
            ),
            (
                "dev_matched",
                "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
                "0\t1\t1c\tslate\t(a)\t(b)\t(S)\t(S)\tYes.\tNo.\ta\tb\tc\td\te\tcontradiction\n",
            ),
            (
                "dev_mismatched",
                "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
                "0\t1\t1c\tverbatim\t(a)\t(b)\t(S)\t(S)\tUp.\tHigh.\ta\tb\tc\td\te\tentailment\n",
            ),
            ("test_matched", "", "9\t1\t1c\tslate\t(a)\t(b)\t(S)\t(S)\tOn.\tOff.\n"),
            ("test_mismatched", "", "7\t1\t1c\toup\t(a)\t(b)\t(S)\t(S)\tIn.\tOut.\n"),
        )
    },
}

ARTICLE = {
    "id": "middle1.txt",
    "article": "Tom has a red bicycle. He rides it to school.",
    "questions": ["Tom's bicycle is _ .", "Where does Tom ride?", "_ has a _ ."],
    "options": [
        ["red", "blue", "new", "old"],
        ["Home.", "To school.", "Away.", "Nowhere."],
        ["Tom", "Ann", "\\1", ""],
    ],
    "answers": ["A", "B", "D"],
}

PASSAGE = "The Norman dukes — Rollo first — ruled Normandy. Rollo was a Viking."


def squad_document(version="v2.0"):
    questions = [
        {
            "id": "56ddde6b",
            "question": "Who ruled first?",
            "answers": [
                {"text": "Rollo", "answer_start": PASSAGE.index("Rollo")},
                {"text": "Rollo", "answer_start": PASSAGE.rindex("Rollo")},
            ],
        },
        {
            "id": "56ddde6c",
            "question": "What did they rule?",
            "answers": [{"text": "Normandy", "answer_start": PASSAGE.index("Normandy")}],
        },
    ]
    if version == "v2.0":
        for question in questions:
            question["is_impossible"] = False
        questions.append(
            {
                "id": "5ad39d53",
                "question": "Who sank?",
                "answers": [],
                "plausible_answers": [{"text": "Rollo", "answer_start": 19}],
                "is_impossible": True,
            }
        )
    paragraphs = [{"context": PASSAGE, "qas": questions}]
    return {"version": version, "data": [{"title": "Normans", "paragraphs": paragraphs}]}


def write_glue(folder: Path, task: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in GLUE_FILES[task].items():
        (folder / f"{name}.tsv").write_text(content, encoding="utf-8", newline="")
    return folder


def write_race(folder: Path) -> Path:
    for part in ("train", "dev", "test"):
        for level in ("middle", "high"):
            (folder / part / level).mkdir(parents=True)
            for number in range(2):
                path = folder / part / level / f"{number}.txt"
                path.write_text(json.dumps(ARTICLE | {"id": f"{level}{number}.txt"}))
    return folder


def write_json(path: Path, value) -> str:
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


def write_lines(path: Path, *records) -> str:
    """A JSON Lines file; a string is a line as it is."""
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def refusal(function, *arguments, code, where, says):
    """Calls a function that must refuse, and looks at the class, the place and the words."""
    with pytest.raises(JobError) as raised:
        function(*arguments)
    error = raised.value
    assert error.exit_code == code
    assert error.where.endswith(where)
    assert says in f"{error.what}\n{error.remedy}"
    assert len(str(error).splitlines()) <= 3
    return error
