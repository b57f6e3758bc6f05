"""Folder of an analysis: its report as JSON, and charts of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txl_tf.storage.staging import StagingFolder


def write_report(
    folder: str,
    report_file: str,
    measure: Callable[[], dict[str, Any]],
    draw: Callable[[dict[str, Any], str], None],
) -> dict[str, Any]:
    """Measures, and writes the report with its charts into a folder that appears complete.

    Args:
        folder: str. Folder to make; it is claimed before anything is measured.
        report_file: str. Name of the report in it.
        measure: function that returns the report, a dict of JSON values.
        draw: function that draws a report into a folder.

    Returns:
        The report.

    Raises:
        OutputExistsError: If the folder exists.
        StorageError: If it cannot be written.
    """
    with StagingFolder(folder, last_file=report_file) as staging:
        report = measure()
        draw(report, staging.path)
        text = json.dumps(report, indent=1) + "\n"
        (Path(staging.path) / report_file).write_text(text, encoding="utf-8")
        staging.publish()
    return report
