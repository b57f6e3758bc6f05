"""`txl report`: one page with all of a run, which escapes its texts and needs no network."""

import html.parser
import json
import re
import shutil
import subprocess

import pytest

from txl_tf.training.metrics import PAGES, TAGS, MetricsLog
from txl_tf.training.run_time import run_time_of


class Page(html.parser.HTMLParser):
    """Elements that are open at the end, tags, addresses, figures and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.figures, self.texts = [], set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        values = dict(attributes)
        self.addresses += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        self.figures += [values["data-tag"]] if "data-tag" in values else []
        if tag not in {"meta", "use", "path"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in {"meta", "use", "path"}:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def shown(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def run(untouched, tmp_path):
    return shutil.copytree(untouched, tmp_path / "run")


@pytest.fixture
def page_of(txl):
    """A function that writes the page of a run, and returns it read and as text."""

    def write(workdir):
        txl("report", "--workdir", workdir)
        text = (workdir / "report.html").read_text()
        page = Page(text)
        assert page.open == []
        return page, text

    return write


def test_a_run_is_on_the_page_and_the_page_needs_no_other_file(run, page_of):
    page, text = page_of(run)
    result = MetricsLog(run / "metrics.jsonl").read().merged()["valid"][40]["result"]
    assert f"{result['bits_per_byte']:.6f} ({result['num_bytes']:,.0f} bytes)" in page.shown
    assert f"{result['perplexity']:.4f} ({result['num_tokens']:,} tokens)" in page.shown
    described = json.loads((run / "run.json").read_text())
    assert described["data"]["fingerprint"] in page.shown
    assert "environment.tensorflow 2.2" in page.shown and "model.num_layers 1" in page.shown
    # Every cell is text: no list, object or cut line.
    assert not re.search(r"[{\[]['\"]|&#x27;", "".join(page.texts))
    assert "nowrap" not in text and "overflow-x" not in text
    # Steps of less than a second in all have no share of the peak.
    output = {tag for tag in TAGS if TAGS[tag].page in PAGES}
    assert set(page.figures) | {"performance/peak_share"} == output
    time = run_time_of(MetricsLog(run / "time.jsonl").read().lines)
    assert f"Goodput {time.goodput:.4f}" in page.shown
    # Parts of a chart refer to each other.
    assert all(address.startswith("#") for address in page.addresses)
    assert not {"script", "link", "iframe", "img", "object"} & page.tags
    outside = re.findall(r"@import|url\((?!#)|https?://\S+", text)
    assert all("www.w3.org" in each for each in outside)


def test_texts_of_a_run_are_never_markup_and_damaged_lines_are_left_out(run, page_of):
    markup = "</pre><blink>one</blink>&amp;\u0000<marquee title='two>"
    log = MetricsLog(run / "metrics.jsonl")
    log.continue_at_end()
    log.append(50, markup, {"sample": markup, "loss/perplexity": 2.0})
    log.append(50, "process", {"command": markup, "environment": {markup: [markup]}})
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"{]\n")
    (run / "time.jsonl").unlink()
    page, _ = page_of(run)
    assert not {"blink", "marquee"} & page.tags
    assert "".join(page.texts).count("<blink>one</blink>&amp;") >= 3
    assert "Goodput" not in page.shown


# Labels of a chart that overlap, texts below 9 pixels, and a page wider than the window.
CHECK = """<script>
const faults = [document.documentElement.scrollWidth - innerWidth].filter(each => each > 0);
for (const svg of document.querySelectorAll("svg")) {
  const labels = [...svg.querySelectorAll("text")].map(each => each.getBoundingClientRect());
  labels.forEach((a, i) => labels.slice(i + 1).forEach(b => {
    const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (width > 1 && height > 1) faults.push(svg.getAttribute("aria-label"));
  }));
  faults.push(...labels.map(each => each.height).filter(each => each < 9));
}
document.title = `${innerWidth}: ${faults}`;
</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [500, 1280])
def test_a_browser_shows_the_page_without_overlaps(run, page_of, width):
    log = MetricsLog(run / "metrics.jsonl")
    log.continue_at_end()
    for step, perplexity in ((45, 80.0), (50, 3.0)):
        log.append(step, "train", {"loss/perplexity": perplexity})
    page, text = page_of(run)
    assert "\u22120.04" not in page.shown and "\u22120.02" not in page.shown
    (run / "report.html").write_text(text.replace("</body>", f"{CHECK}</body>"))
    options = (
        "--headless",
        "--no-sandbox",
        "--enable-logging=stderr",
        f"--window-size={width},900",
    )
    command = ("chromium", *options, "--dump-dom", (run / "report.html").as_uri())
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert f"<title>{width}: </title>" in text.stdout
    assert "CONSOLE" not in text.stderr
