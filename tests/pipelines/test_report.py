"""`txl report`: one page with all of a run, which escapes its texts and needs no network."""

import html.parser
import json
import re
import shutil

import pytest

from pipelines.command_line import main
from txl_tf.training.dashboard import PAGES, TAGS
from txl_tf.training.metrics_log import MetricsLog
from txl_tf.training.run_time import read_run_time

_EMPTY_ELEMENTS = {"meta", "use", "path"}


class Page(html.parser.HTMLParser):
    """What is in a page: elements that are open when it ends, attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.figures, self.texts = [], set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        values = dict(attributes)
        self.addresses += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        self.figures += [values["data-tag"]] if "data-tag" in values else []
        if tag not in _EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in _EMPTY_ELEMENTS:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in _EMPTY_ELEMENTS:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def page_of(workdir, *options):
    out = workdir / "page.html"
    assert main(["report", "--workdir", str(workdir), "--out", str(out), *options]) == 0
    text = out.read_text()
    page = Page(text)
    assert page.open == []
    return page, text


@pytest.fixture
def run(untouched, tmp_path):
    return shutil.copytree(untouched, tmp_path / "run")


def test_a_run_is_on_the_page_with_its_denominators(run, capsys):
    page, text = page_of(run)
    shown = " ".join(" ".join(page.texts).split())
    result = MetricsLog(run / "metrics.jsonl").read().merged()["valid"][40]["result"]
    assert f"{result['bits_per_byte']:.6f} (895 bytes)" in shown
    assert f"{result['perplexity']:.4f} (895 tokens)" in shown
    described = json.loads((run / "run.json").read_text())
    assert described["data"]["fingerprint"] in shown
    assert "Command lines" in shown
    assert "tensorflow 2.20" in re.sub(r"\s+", " ", shown)
    # The steps of this run took less than a second.
    written = {tag for tag in TAGS if TAGS[tag].page in PAGES} - {"performance/peak_share"}
    assert set(page.figures) == written
    assert "valid, step 40, perplexity" in shown
    found = read_run_time(MetricsLog(run / "time.jsonl").read())
    assert f"Goodput {found.goodput:.4f}" in shown and "in one start" in shown
    for name, share in found.shares.items():
        assert f"{name} {found.seconds[name]:,.1f} {share:.4f}" in shown
    assert "missing: Context length" in capsys.readouterr().out
    assert "width=device-width" in text and "prefers-color-scheme: dark" in text


def test_the_page_needs_no_network_and_no_other_file(run):
    page, text = page_of(run)
    # Parts of a chart refer to each other.
    assert all(address.startswith("#") for address in page.addresses)
    assert not {"script", "link", "iframe", "img", "object"} & page.tags
    outside = re.findall(r"@import|url\((?!#)|https?://\S+", text)
    assert all("www.w3.org" in each for each in outside)


def test_texts_of_a_run_are_never_markup(run):
    hostile = "</pre><script>alert(1)</script>&amp;\u0000<img src=x onerror=alert(2)>"
    log = MetricsLog(run / "metrics.jsonl")
    log.continue_at_end()
    log.append(50, hostile, {"sample": hostile, "loss/perplexity": 2.0})
    log.append(50, "process", {"command": hostile, "environment": {hostile: [hostile]}})
    log.append(50, "_$x$", {"loss/perplexity": 2.0})
    page, _ = page_of(run)
    assert not {"script", "img"} & page.tags
    shown = "".join(page.texts)
    assert shown.count("<script>alert(1)</script>&amp;") >= 3


def test_a_run_without_metrics_says_so(run, capsys):
    for name in ("metrics.jsonl", "time.jsonl"):
        (run / name).unlink()
    page, _ = page_of(run)
    assert page.figures == []
    assert "there are no curves" in " ".join(page.texts)
    assert "goodput is not known" in " ".join(page.texts)
    assert "missing: metrics.jsonl" in capsys.readouterr().out


def test_damaged_lines_are_left_out_and_counted(run):
    content = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([content[0], b"{]\n", *content[1:]]))
    page, _ = page_of(run)
    assert "1 damaged lines of metrics.jsonl were left out." in " ".join(page.texts)


def test_analyses_below_the_run_are_shown(run):
    gains = {"length": 100, "is_lower_bound": True, "gains": []}
    context = {
        "split": "valid",
        "num_tokens": 50,
        "contexts": [50, 100],
        "runs": [{"name": "mine", "perplexities": [9.0, 8.0]}],
        "relative_effective_context_length": [{"ratio": 0.1, "runs": {"mine": gains}}],
    }
    attention = {
        "split": "valid",
        "step": 40,
        "num_queries": 99,
        "memory_length": 16,
        "mean_distance": [[1.0, 2.0], [3.0, 4.0]],
        "layer_mean_distance": [1.5, 3.5],
    }
    for name, report in (("context", context), ("attention", attention)):
        (run / name).mkdir()
        (run / name / f"{name}.json").write_text(json.dumps(report))
    page, _ = page_of(run)
    assert page.figures[-2:] == ["context", "attention"]
    shown = " ".join(page.texts)
    assert "at least 100" in shown and "99 queries" in shown


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--workdir", "{}/none"), 66),
        (("--workdir", "{}", "--out", "gs://bucket/page.html"), 2),
        (("--workdir", "{}", "--out", "{}"), 2),
    ],
)
def test_what_cannot_be_reported_is_refused(options, code, tmp_path):
    assert main(["report", *(each.format(tmp_path) for each in options)]) == code
