"""A headless Chromium for the tests; without one they skip and name what is missing."""

import contextlib
import pathlib
import shutil

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
    """A tab that records console messages, page errors and requests.

    Args:
      browser: to open it in.
      width: of the window in pixels.
      scheme: "light" or "dark".
    """

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


def spread_of(path: pathlib.Path):
    """Spread of a screenshot's pixel values; 0 for a blank one."""
    import numpy as np
    from PIL import Image

    return float(np.asarray(Image.open(path).convert("L"), np.float64).std())
