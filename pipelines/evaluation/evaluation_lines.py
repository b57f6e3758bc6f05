"""Reads the results of earlier evaluations, which anybody may have changed."""

import dataclasses
from typing import Any

from txl_tf.errors import DataDamagedError
from txl_tf.evaluation.evaluation_result import EvaluationResult
from txl_tf.file_storage import first_line, read_file
from txl_tf.json_text import parse_json
from txl_tf.untrusted_files import MAX_DESCRIPTION_BYTES, MAX_VALUES

_REMEDY = "Restore the file from a copy, or remove it to evaluate anew."
_FIELDS = {field.name for field in dataclasses.fields(EvaluationResult)}


def read_evaluation_lines(path: str) -> list[dict[str, Any]]:
    """Reads a file with a line of JSON for each evaluation.

    Args:
        path: str. The file.

    Returns:
        List of dicts with the dicts `conditions` and `result`.

    Raises:
        DataDamagedError: If a line is not one of this program, or its figures
            do not follow from its totals.
        OSError: If it cannot be read; FileNotFoundError if it is not there.
    """
    lines = []
    for number, content in enumerate(read_file(path, max_bytes=MAX_DESCRIPTION_BYTES).splitlines()):
        try:
            lines.append(_checked(parse_json(content, max_values=MAX_VALUES)))
        except (ValueError, ArithmeticError, TypeError) as error:
            raise DataDamagedError(
                "The earlier results cannot be read: a line is not one of this program: "
                f"{first_line(error)}",
                where=f"{path}, line {number + 1}",
                remedy=_REMEDY,
            ) from error
    return lines


def _checked(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or line.keys() != {"conditions", "result"}:
        raise ValueError("`conditions` and `result` are not all that is there")
    conditions, result = line["conditions"], line["result"]
    if not isinstance(conditions, dict) or not isinstance(result, dict):
        raise ValueError("`conditions` or `result` is no object")
    if type(result.get("step")) is not int or result["step"] < 0:
        raise ValueError(f"`result.step` is {ascii(result.get('step'))[:40]}")
    # Lines of an earlier version may know less.
    if result.keys() >= _FIELDS:
        figures = EvaluationResult(**{name: result[name] for name in _FIELDS}).to_dict()
        differing = [name for name in figures if figures[name] != result.get(name)]
        if differing or figures.keys() != result.keys():
            name = (differing or sorted(figures.keys() ^ result.keys()))[0]
            raise ValueError(f"`result.{ascii(name)[1:-1][:40]}` does not follow from the totals")
    return line
