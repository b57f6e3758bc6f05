"""The HTML of a report: one file, light and dark, without a network."""

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from txl_tf import __version__
from txl_tf.training.dashboard import PAGES, TAGS, TASK_PAGES, Tag
from txl_tf.training.run_time import CAUSES

from .charts import Line, line_chart
from .run_contents import RunContents, configuration_text

# It begins at the size of the vocabulary.
_LOGARITHMIC = ("loss/perplexity",)
_CONDITIONS = ("segment_length", "memory_length", "clamp_length", "batch_size", "warm_up_tokens")
_MAX_SAMPLES = 20
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --faint: #5c6370;
  --grid: #d9dce1; --panel: #f5f6f8;
  --series-1: #1f6fd0; --series-2: #d9480f; --series-3: #2b8a3e; --series-4: #862e9c;
  --series-5: #0b7285; --series-6: #c2255c; --series-7: #7a5c00; --series-8: #495057; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14161a; --ink: #e6e8eb; --faint: #9aa2ad; --grid: #3a3f47; --panel: #1e2127;
    --series-1: #6cb0ff; --series-2: #ff9a62; --series-3: #69d383; --series-4: #d69cf0;
    --series-5: #55cfe0; --series-6: #ff8fb3; --series-7: #e3c14e; --series-8: #b4bcc6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; } .faint { color: var(--faint); }
.charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; min-width: 0; } figcaption { color: var(--faint); font-size: .85rem; }
svg { display: block; width: 100%; height: auto; } svg text { font-family: inherit; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid var(--grid);
  white-space: nowrap; overflow-wrap: normal; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
pre { background: var(--panel); padding: .75rem; border-radius: 6px; margin: .5rem 0;
  white-space: pre-wrap; font-size: .85rem; }
summary { cursor: pointer; }
"""


def report_page(contents: RunContents) -> str:
    """Returns the whole page.

    Every text of the run is escaped: a sample may be any text, markup too.
    """
    title = f"Run {contents.folder}"
    sections = [
        _heading(contents),
        _section("Final figures", _final_figures(contents)),
        *(_section(page, _curves(contents, page)) for page in _pages(contents)),
        _section("Time", _time(contents)),
        _section("Context length", _context(contents)),
        _section("Attention", _attention(contents)),
        _section("Samples", _samples(contents)),
        _section("Configuration", [f"<pre>{_text(configuration_text(contents.run))}</pre>"]),
        _section("Environment", _environment(contents)),
        _section("Command lines", _commands(contents)),
        _section("Not in this report", [f"<p>{_text(line)}</p>" for line in contents.missing]),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, sections))
        + "\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _section(title: str, parts: Iterable[str]) -> str:
    """Returns a section; nothing, where it has no parts."""
    body = "\n".join(parts)
    return f"<section>\n<h2>{_text(title)}</h2>\n{body}\n</section>" if body else ""


def _heading(contents: RunContents) -> str:
    training, data = contents.run.experiment.training, contents.run.data
    return (
        f"<header>\n<h1>{_text(contents.folder)}</h1>\n"
        f'<p class="faint">step {contents.step:,} of {training.num_steps:,} - '
        f"{_text(data['corpus'])}, {_text(data['tokenizer'])} - txl-tf {_text(__version__)}</p>\n"
        "</header>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = "\n".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f'<div class="wide"><table>\n<thead><tr>{cells}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def _is_of_task(contents: RunContents) -> bool:
    return any("figures" in result for result in contents.results)


def _pages(contents: RunContents) -> tuple[str, ...]:
    return TASK_PAGES if _is_of_task(contents) else PAGES


def _task_figures(contents: RunContents) -> str:
    """Returns a table of the metrics of a fine-tuning run."""
    results = [(result, result.get("figures", {})) for result in contents.results]
    names = list(dict.fromkeys(name for _, figures in results for name in figures))
    rows = [
        [
            str(result.get("split")),
            f"{result.get('step', 0):,}",
            *(f"{figures[name]:.4f}" if name in figures else "-" for name in names),
            f"{result.get('num_examples', 0):,}",
        ]
        for result, figures in results
    ]
    return _table(["split", "step", *names, "examples"], rows)


def _final_figures(contents: RunContents) -> Iterator[str]:
    if not contents.results:
        return
    if _is_of_task(contents):
        yield _task_figures(contents)
        return
    figures = {
        "bits/byte": ("bits_per_byte", "num_bytes", "bytes", ".6f"),
        "bits/character": ("bits_per_character", "num_characters", "characters", ".6f"),
        "nats/token": ("nats_per_token", "num_tokens", "tokens", ".6f"),
        "perplexity": ("perplexity", "num_tokens", "tokens", ".4f"),
        "perplexity/word": ("word_perplexity", "num_words", "words", ".4g"),
    }
    rows = []
    for result in contents.results:
        cells = [str(result.get("split")), f"{result.get('step', 0):,}"]
        for name, count, unit, form in figures.values():
            value, number = result.get(name), result.get(count)
            is_known = isinstance(value, int | float) and isinstance(number, int | float)
            cells.append(f"{value:{form}} ({number:,.0f} {unit})" if is_known else "-")
        cells.append(", ".join(f"{name} {result.get(name)}" for name in _CONDITIONS))
        rows.append(cells)
    yield _table(["split", "step", *figures, "conditions"], rows)


def _curves(contents: RunContents, page: str) -> Iterator[str]:
    charts = []
    for tag in TAGS.values():
        lines = _lines(contents, tag) if tag.page == page else {}
        if lines:
            chart = line_chart(lines, tag.title, is_logarithmic=tag.name in _LOGARITHMIC)
            charts.append(_figure(chart, tag.description, tag.name))
    if charts:
        yield '<div class="charts">' + "\n".join(charts) + "</div>"


def _figure(chart: str, caption: str, tag: str) -> str:
    return (
        f'<figure data-tag="{_text(tag)}">{chart}<figcaption>{_text(caption)}</figcaption></figure>'
    )


def _lines(contents: RunContents, tag: Tag) -> Mapping[str, Line]:
    """Returns the curves of a tag: one for each run, or for each layer."""
    found: dict[str, list[tuple[float, float]]] = {}
    for run, steps in contents.figures.items():
        for step, figures in steps.items():
            for name, value in figures.items():
                is_own = name.startswith(f"{tag.name}/") if tag.has_parts else name == tag.name
                if is_own and isinstance(value, int | float):
                    line = name.rpartition("/")[2].replace("_", " ") if tag.has_parts else run
                    found.setdefault(line, []).append((step, value))
    return dict(sorted(found.items())) if tag.has_parts else found


def _context(contents: RunContents) -> Iterator[str]:
    report = contents.context
    if report is None:
        return
    lines = {
        run["name"]: list(zip(report["contexts"], run["perplexities"], strict=True))
        for run in report["runs"]
    }
    chart = line_chart(lines, "Perplexity by context length", "context length, tokens")
    caption = f"{report['num_tokens']:,} tokens of the split {report['split']}; {report['folder']}"
    yield _figure(chart, caption, "context")
    groups = report["relative_effective_context_length"]
    rows = [
        [
            run["name"],
            *(
                ("at least " if found["is_lower_bound"] else "") + f"{found['length']:,}"
                for group in groups
                for found in [group["runs"][run["name"]]]
            ),
        ]
        for run in report["runs"]
    ]
    yield "<p>Relative effective context length, tokens, by share r of hard tokens:</p>"
    yield _table(["run", *(f"r = {group['ratio']}" for group in groups)], rows)


def _time(contents: RunContents) -> Iterator[str]:
    found = contents.run_time
    if found is None:
        return
    starts = "one start" if found.num_starts == 1 else f"{found.num_starts:,} starts"
    yield (
        f"<p>Goodput {found.goodput:.4f}: the share of {found.total_seconds:,.1f} seconds in "
        f"{starts} that went to steps whose result was kept. Not counted: "
        f"{found.down_seconds:,.1f} seconds between the starts.</p>"
    )
    rows = [
        [name, f"{found.seconds[name]:,.1f}", f"{found.shares[name]:.4f}", meaning]
        for name, meaning in CAUSES.items()
    ]
    yield _table(["time", "seconds", "share", "what it is"], rows)


def _attention(contents: RunContents) -> Iterator[str]:
    report = contents.attention
    if report is None:
        return
    layers = range(1, len(report["mean_distance"]) + 1)
    heads = range(1, len(report["mean_distance"][0]) + 1)
    lines = {
        f"head {head}": [(layer, report["mean_distance"][layer - 1][head - 1]) for layer in layers]
        for head in heads
    }
    lines["mean of the layer"] = list(zip(layers, report["layer_mean_distance"], strict=True))
    chart = line_chart(lines, "Mean distance of attention, tokens", "layer")
    caption = (
        f"Step {report['step']:,}, {report['num_queries']:,} queries of the split "
        f"{report['split']}, memory {report['memory_length']:,}; {report['folder']}"
    )
    yield _figure(chart, caption, "attention")


def _samples(contents: RunContents) -> Iterator[str]:
    for number, (run, step, figures) in enumerate(contents.samples[:_MAX_SAMPLES]):
        perplexity = figures.get("sample/perplexity")
        named = "" if perplexity is None else f", perplexity {perplexity:.4g}"
        is_open = " open" if number == 0 else ""
        yield (
            f"<details{is_open}><summary>{_text(run)}, step {step:,}{named}</summary>"
            f"<pre>{_text(figures['sample'])}</pre></details>"
        )


def _environment(contents: RunContents) -> Iterator[str]:
    if contents.processes:
        last = contents.processes[-1]
        rows = {**last["environment"], **({"peak": last["peak"]} if last["peak"] else {})}
        shown = [
            [name, value if isinstance(value, str) else json.dumps(value)]
            for name, value in rows.items()
        ]
        yield _table(["", "last process"], shown)


def _commands(contents: RunContents) -> Iterator[str]:
    for process in contents.processes:
        yield f'<p class="faint">from step {process["step"]:,}</p>'
        yield f"<pre>{_text(process['command'])}</pre>"
