"""A headless Chromium for the tests; without one they skip and name what is missing."""

import contextlib
import pathlib
import shutil
import time

import pytest


@contextlib.contextmanager
def open_browser():
    """Debian's Chromium, driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs chromium (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A tab that records console messages, page errors and requests; `scheme` is "light" or "dark"."""

    def __init__(self, browser, *, width=1280, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.tab = self.context.new_page()
        self.complaints, self.requests = [], []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def close(self):
        self.context.close()

    @property
    def overflow(self):
        """Pixels by which the page is wider than its window."""
        return self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@contextlib.contextmanager
def watch(browser, url, *, ready=None, **options):
    """A tab that has opened a file; it must end without complaints or requests to elsewhere."""
    watched = Watched(browser, **options)
    watched.tab.goto(url)
    if ready is not None:
        watched.tab.wait_for_selector(ready)
    yield watched
    watched.close()
    assert watched.complaints == []
    assert {request.partition(":")[0] for request in watched.requests} <= {"file", "data"}


def open_demo(watched, url, ready):
    """Open a page of Gradio and wait until `ready` is there and no part of the page is loading any more."""
    watched.tab.goto(url)
    watched.tab.wait_for_selector(ready, state="attached")
    watched.tab.wait_for_selector("p.loading", state="detached")


def upload_to_demo(watched, selector, path):
    """Upload a file to a page of Gradio and wait until the function that reads it has ended."""
    ended = []
    for event in ("requestfinished", "requestfailed"):  # of the stream of its result, which either side closes first
        watched.tab.on(event, lambda request: ended.append(request.url))
    watched.tab.set_input_files(selector, path)
    deadline = time.monotonic() + 60
    while not any("/queue/data" in url for url in ended):
        assert time.monotonic() < deadline
        watched.tab.wait_for_timeout(20)


def spread_of(path: pathlib.Path):
    import numpy as np
    from PIL import Image

    return float(np.asarray(Image.open(path).convert("L"), np.float64).std())


def find_violations(tab):
    """What axe-core finds on the open page, of any impact: rule, what it asks for, and the elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    found = axe.Axe().run(tab).response
    assert len(found["passes"]) > 5, "axe-core checked nothing"
    return [
        f"{each['impact']}: {each['id']}: {each['help']}: {[str(node['target'][-1]) for node in each['nodes'][:4]]}"
        for each in found["violations"]
    ]


_BROKEN_WORDS = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    if (!node.parentElement.checkVisibility()) continue;
    for (const match of node.data.matchAll(/\\p{L}{2,}/gu)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
      const tops = new Set(boxes.map((box) => Math.round(box.top)));
      if (tops.size > 1) found.push(match[0]);
    }
  }
  return found;
}"""


def find_broken_words(tab):
    """Words of letters that the open page shows on more than one line."""
    return tab.evaluate(_BROKEN_WORDS)
