"""Writes a run as one HTML page: `txl report`.

    txl report --workdir DIR
    txl report --workdir DIR --out report.html

The page has the curves, the final figures with their denominators, samples, settings,
environment and commands. It needs no network and no other file. Every text of a run is escaped.
"""

import argparse
import html
import io
import math
import os
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from txl_tf import __version__
from txl_tf.config.base import flat_settings
from txl_tf.imports import require_extra
from txl_tf.model_folder import Workdir, open_model
from txl_tf.storage.files import write_file
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.training.metrics import PAGES, PROCESS_RUN, TAGS, TASK_PAGES, MetricsLog
from txl_tf.training.run_time import CAUSES, run_time_of

from ..shell.arguments import add_workdir_argument
from ..shell.progress import say

_FILE = "report.html"
_MAX_SAMPLES = 20
_FIGURES = {
    "bits/byte": ("bits_per_byte", "num_bytes", "bytes", ".6f"),
    "bits/character": ("bits_per_character", "num_characters", "characters", ".6f"),
    "nats/token": ("nats_per_token", "num_tokens", "tokens", ".6f"),
    "perplexity": ("perplexity", "num_tokens", "tokens", ".4f"),
    "perplexity/word": ("word_perplexity", "num_words", "words", ".4g"),
}
_CONDITIONS = ("segment_length", "memory_length", "clamp_length", "batch_size", "warm_up_tokens")
# Perplexity begins at the size of the vocabulary.
_LOGARITHMIC = ("loss/perplexity",)
# Ratio of the largest to the smallest value that a logarithmic axis needs for a few labels.
_LEAST_RATIO = 10.0

_NUM_COLORS = 10  # of Matplotlib's default cycle
_STYLES = ("-", "--", ":")
# Lines of at most this many points get markers: a single point has no line.
_MAX_MARKED = 24
_PARAMETERS: dict[Any, Any] = {
    # Text stays text: readers can select it, and programs can read it.
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "txl report",
    "font.family": "sans-serif",
}

Line = Sequence[tuple[float, float]]
Figures = dict[str, dict[int, dict[str, Any]]]
"""Figures by run and step, as `MetricsLines.merged` returns them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_workdir_argument(parser)
    meaning = f"file to write (default: {_FILE} in the folder of the run)"
    parser.add_argument("--out", metavar="FILE", help=meaning)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks that Matplotlib is installed."""
    require_extra("plots", "matplotlib", purpose="Drawing the charts")


def run(arguments: argparse.Namespace) -> None:
    """Reads the run and writes the page."""
    say(f"reading {arguments.workdir}")
    page = Page(Workdir(open_model(arguments.workdir).folder))
    out = arguments.out or os.path.join(arguments.workdir, _FILE)
    remedy = "Check the folder and the permissions, or name another file with --out."
    with storage_errors("The page cannot be written", out, remedy):
        write_file(out, page.html().encode("utf-8", "replace"))
    print(f"report: {out}")


class Page:
    """Contents of a run, and their HTML."""

    def __init__(self, workdir: Workdir) -> None:
        self._folder = workdir.folder
        self._run = workdir.describe()
        log = MetricsLog(workdir.metrics).read()
        self._figures: Figures = {} if log is None else log.merged()
        self._figures.pop(PROCESS_RUN, None)
        self._processes: list[dict[str, Any]] = []
        for line in [] if log is None else log.lines:
            if line["run"] == PROCESS_RUN and ("command" in line or not self._processes):
                self._processes.append(dict(line))
            elif line["run"] == PROCESS_RUN:
                self._processes[-1].update(line, step=self._processes[-1]["step"])
        time_log = MetricsLog(workdir.time).read()
        self._run_time = run_time_of([] if time_log is None else time_log.lines)
        self._results = _last_results(self._figures)
        self._is_of_task = any("figures" in result for result in self._results)

    def html(self) -> str:
        """Returns the whole page."""
        training, data = self._run.experiment.training, self._run.data
        step = max(self._figures.get("train", {}), default=0)
        start = self._run.start and self._run.start.to_dict()
        settings = {**self._run.experiment.to_dict(), "data": data, "start": start}
        last = self._processes[-1] if self._processes else {}
        environment = {"environment": last["environment"]} if "environment" in last else {}
        sections: dict[str, Iterable[str]] = {
            "Final figures": self._final_figures(),
            **{page: self._curves(page) for page in (TASK_PAGES if self._is_of_task else PAGES)},
            "Time": self._time(),
            "Samples": self._samples(),
            "Configuration": [_settings_table(settings)],
            "Environment of the last process": [_settings_table(environment)],
            "Command lines": self._commands(),
        }
        parts_by_title = {title: "\n".join(parts) for title, parts in sections.items()}
        bodies = (
            f"<section>\n<h2>{_text(title)}</h2>\n{part}\n</section>"
            for title, part in parts_by_title.items()
            if part
        )
        return string.Template((Path(__file__).parent / _FILE).read_text()).substitute(
            folder=_text(self._folder),
            step=f"step {step:,} of {training.num_steps:,}",
            data=_text(f"{data['corpus']}, {data['tokenizer']} - txl-tf {__version__}"),
            body="\n".join(bodies),
        )

    def _final_figures(self) -> Iterator[str]:
        """Yields a table with a column for each split, which keeps it narrow."""
        if not self._results:
            return
        columns = []
        for result in self._results:
            cells = {"step": f"{result.get('step', 0):,}"}
            if self._is_of_task:
                cells |= {name: f"{value:.4f}" for name, value in result["figures"].items()}
                cells["examples"] = f"{result.get('num_examples', 0):,}"
            else:
                for title, (name, count, unit, form) in _FIGURES.items():
                    value, number = result.get(name), result.get(count)
                    if isinstance(value, int | float) and isinstance(number, int | float):
                        cells[title] = f"{value:{form}} ({number:,.0f} {unit})"
                values = {name.replace("_", " "): result.get(name) for name in _CONDITIONS}
                cells |= {name: _format(value) for name, value in values.items()}
            columns.append(cells)
        names = dict.fromkeys(name for cells in columns for name in cells)
        head = ["split", *(str(result.get("split")) for result in self._results)]
        yield _table(head, [[name, *(each.get(name, "-") for each in columns)] for name in names])

    def _curves(self, page: str) -> Iterator[str]:
        charts = []
        for tag in TAGS.values():
            lines = self._lines(tag.name, tag.has_parts) if tag.page == page else {}
            if lines:
                chart = line_chart(lines, tag.name, is_logarithmic=tag.name in _LOGARITHMIC)
                charts.append(_figure(chart, tag.description, tag.name))
        if charts:
            yield '<div class="charts">' + "\n".join(charts) + "</div>"

    def _lines(self, tag: str, has_parts: bool) -> Mapping[str, Line]:
        """Returns the curves of a tag: one for each run, or for each layer."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for run_name, steps in self._figures.items():
            for step, figures in steps.items():
                for name, value in figures.items():
                    is_own = name.startswith(f"{tag}/") if has_parts else name == tag
                    if is_own and isinstance(value, int | float):
                        part = name.rpartition("/")[2].replace("_", " ")
                        lines.setdefault(part if has_parts else run_name, []).append((step, value))
        return dict(sorted(lines.items())) if has_parts else lines

    def _time(self) -> Iterator[str]:
        run_time = self._run_time
        if run_time is None:
            return
        starts = "one start" if run_time.num_starts == 1 else f"{run_time.num_starts:,} starts"
        yield (
            f"<p>Goodput {run_time.goodput:.4f}: the share of {run_time.total_seconds:,.1f} "
            f"seconds in {starts} that went to steps whose result was kept. Not counted: "
            f"{run_time.down_seconds:,.1f} seconds between the starts.</p>"
        )
        rows = [
            [name, f"{seconds:,.1f}", f"{seconds / run_time.total_seconds:.4f}", CAUSES[name]]
            for name, seconds in run_time.seconds.items()
        ]
        yield _table(["time", "seconds", "share", "meaning"], rows)

    def _samples(self) -> Iterator[str]:
        samples = [
            (step, run_name, figures["sample"])
            for run_name, steps in self._figures.items()
            for step, figures in steps.items()
            if isinstance(figures.get("sample"), str)
        ]
        for step, run_name, sample in sorted(samples, reverse=True)[:_MAX_SAMPLES]:
            title = f"{_text(run_name)}, step {step:,}"
            yield f"<details open><summary>{title}</summary><pre>{_text(sample)}</pre></details>"

    def _commands(self) -> Iterator[str]:
        for process in self._processes:
            yield f'<p class="faint">from step {process["step"]:,}</p>'
            yield f"<pre>{_text(process.get('command', ''))}</pre>"


def _last_results(figures: Figures) -> list[dict[str, Any]]:
    """Returns the last result of each split that training evaluated."""
    last_results = []
    for steps in figures.values():
        results = [
            each["result"] for each in steps.values() if isinstance(each.get("result"), dict)
        ]
        last_results += results[-1:]
    return last_results


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _format(value: Any) -> str:
    """Formats a setting for readers."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_format, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


def _settings_table(values: dict[str, Any]) -> str:
    rows = [[name, _format(value)] for name, value in flat_settings(values).items()]
    return f'<div class="settings">{_table(["setting", "value"], rows)}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(kind: str, cells: Sequence[str]) -> str:
        name, *values = (_text(cell) for cell in cells)
        cells = [f"<{kind}>{value}</{kind}>" for value in values]
        return (
            f'<tr><th scope="{"col" if kind == "th" else "row"}">{name}</th>{"".join(cells)}</tr>'
        )

    lines = "\n".join(line("td", row) for row in rows)
    return f"<table>\n<thead>{line('th', head)}</thead>\n<tbody>\n{lines}\n</tbody></table>"


def _figure(chart: str, caption: str, tag: str) -> str:
    return (
        f'<figure data-tag="{_text(tag)}">{chart}<figcaption>{_text(caption)}</figcaption></figure>'
    )


def line_chart(lines: Mapping[str, Line], title: str, *, is_logarithmic: bool = False) -> str:
    """Draws lines into one `svg` element."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    with matplotlib.rc_context(_PARAMETERS):
        # A point is a little more than a pixel of a narrow screen.
        figure = Figure(figsize=(4.8, 3.0), layout="constrained")
        axes = figure.subplots()
        for number, (name, points) in enumerate(lines.items()):
            finite = [(x, y) for x, y in points if math.isfinite(y)]
            axes.plot(
                [x for x, _ in finite],
                [y for _, y in finite],
                color=f"C{number % _NUM_COLORS}",
                linestyle=_STYLES[number // _NUM_COLORS % len(_STYLES)],
                marker="o" if len(finite) <= _MAX_MARKED else "",
                markersize=3,
                # Matplotlib hides labels with a leading underscore, and its font lacks most
                # scripts.
                label=f" {ascii(name)[1:-1]}",
            )
        values = [y for points in lines.values() for _, y in points if math.isfinite(y)]
        least, most = min(values, default=0.0), max(values, default=0.0)
        if is_logarithmic and 0.0 < least * _LEAST_RATIO < most:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            # Powers would need math text.
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        elif least == most:
            # Otherwise rounding decides the labels of a flat line.
            top = max(2 * least, 0.0) or 1.0
            axes.set_ylim(min(2 * least, -0.05 * top), top)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("step")
        axes.grid(linewidth=0.6)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8, ncols=2 if len(lines) > 6 else 1)
        buffer = io.StringIO()
        without = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=without)
    # Axes and labels have the color of the page's text, light or dark.
    text = buffer.getvalue().replace("#000000", "currentColor")
    head, rest = text[text.index("<svg") :].split(">", 1)
    names = [part for part in head.split() if not part.startswith(("width=", "height="))]
    return f'{" ".join(names)} role="img" aria-label="{_text(title)}">{rest}'
