"""SQuAD 1.1 and 2.0: files, exact match and F1 (Rajpurkar et al. 2016, 2018)."""

import collections
import re
import string
from collections.abc import Iterator, Sequence

from txl_tf.config.base import shown_value
from txl_tf.tasks.example_files import check_names, checked_answers
from txl_tf.tasks.examples import Example, TaskData
from txl_tf.tasks.record_files import Record, read_json_document


def read_squad(paths_by_split: dict[str, str]) -> TaskData:
    """Reads files of either version.

    Args:
        paths_by_split: dict. JSON files by split: "train", "valid" and others. Splits
            whose names begin with `train` or `valid` need answers; others may lack them.

    Returns:
        `TaskData` of kind "span", called "squad".

    Raises:
        InputMissingError: If there is no such file.
        DataDamagedError: If a file is not JSON of this form, a text is empty, an id is duplicate,
            or an answer does not occur at its start in the passage. The error names the file and
            the question.
        StorageError: If a file cannot be read.
    """
    splits = {
        split: _read_split(path, needs_answers=split.startswith(("train", "valid")))
        for split, path in paths_by_split.items()
    }
    return TaskData(
        name="squad",
        kind="span",
        labels=(),
        splits=splits,
        metrics=("span_f1", "exact_match"),
    )


def _read_split(path: str, needs_answers: bool) -> list[Example]:
    examples = []
    document = Record(path, 0, read_json_document(path))
    for article in _objects(document, "data"):
        for paragraph in _objects(article, "paragraphs"):
            passage = paragraph.text("context")
            for question in _objects(paragraph, "qas"):
                examples.append(_example(question, path, passage, needs_answers))
    if not examples:
        raise document.damaged("The file has no question.")
    check_names(examples)
    return examples


def _objects(parent: Record, key: str) -> Iterator[Record]:
    """Yields the objects of a list as records with their place in the file."""
    values = parent.values.get(key)
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise parent.damaged(
            f"The field {key!r} must be a list of objects. Received: {shown_value(values)}"
        )
    for number, each in enumerate(values):
        separator = "." if parent.where.endswith("]") else ", "
        yield Record(f"{parent.where}{separator}{key}[{number}]", number, each)


def _example(record: Record, path: str, passage: str, needs_answers: bool) -> Example:
    name = record.text("id")
    question = Record(f"{path}, question {_shown_id(name)}", record.number, record.values)
    texts = (question.text("question"), passage)
    is_impossible = question.values.get("is_impossible", False)
    answers = question.values.get("answers", None if not is_impossible else [])
    if not isinstance(is_impossible, bool):
        raise question.damaged(
            "The field 'is_impossible' must be true or false. "
            f"Received: {shown_value(is_impossible)}"
        )
    if answers is not None and not isinstance(answers, list):
        raise question.damaged(
            f"The field 'answers' must be a list. Received: {shown_value(answers)}"
        )
    if is_impossible and answers:
        raise question.damaged("The question is impossible, and has answers.")
    if needs_answers and not is_impossible and not answers:
        raise question.damaged("The question has no answer, and is not said to be impossible.")
    return Example(
        name=name,
        where=question.where,
        texts=texts,
        answers=checked_answers(question, answers or [], passage),
        is_answerable=not is_impossible,
    )


def _shown_id(name: str) -> str:
    return name if name.isprintable() and len(name) <= 100 else shown_value(name)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Normalises an answer for comparison, as the published evaluation does.

    Lower case, without ASCII punctuation and the words a, an and the, single spaces between words.
    """
    plain = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def span_scores(examples: Sequence[Example], texts: Sequence[str]) -> dict[str, float]:
    """Computes exact match and F1 of answers from 0 to 1, as the published evaluations define them.

    The best accepted answer of a question counts. If any question has no answer, the rules of
    version 2.0 hold: "no answer" is predicted by an empty text, F1 is 1 if both normalised texts
    are empty (0 in version 1.1), and figures with and without answer are added.
    """
    has_version_2 = not all(example.is_answerable for example in examples)
    exact, overlap = [], []
    for example, text in zip(examples, texts, strict=True):
        accepted = [normalized_answer(answer.text) for answer in example.answers]
        if has_version_2:
            accepted = [each for each in accepted if each] or [""]
        given = normalized_answer(text)
        exact.append(float(given in accepted))
        overlap.append(max(_f1(given, each, has_version_2) for each in accepted))
    scores = {"exact_match": _mean(exact), "span_f1": _mean(overlap)}
    if not has_version_2:
        return scores
    answerable = [number for number, each in enumerate(examples) if each.is_answerable]
    others = [number for number, each in enumerate(examples) if not each.is_answerable]
    if answerable:
        scores["exact_match_has_answer"] = _mean([exact[number] for number in answerable])
        scores["span_f1_has_answer"] = _mean([overlap[number] for number in answerable])
    scores["exact_match_no_answer"] = _mean([exact[number] for number in others])
    return scores


def _f1(given: str, accepted: str, has_version_2: bool) -> float:
    words, right = given.split(), accepted.split()
    if has_version_2 and not (words and right):
        return float(words == right)
    num_same = (collections.Counter(words) & collections.Counter(right)).total()
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(words), num_same / len(right)
    return 2 * precision * recall / (precision + recall)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
