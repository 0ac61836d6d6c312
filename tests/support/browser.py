"""Headless Chromium for tests of pages, driven by Playwright: Debian's `chromium` package, another one on the path, or Playwright's own.

The last needs no root: `.venv/bin/playwright install --only-shell chromium` fetches it (about 110 MB) into the user's cache.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_MS = 90_000


@contextlib.contextmanager
def browser() -> "Iterator[Browser]":
    """Skips the test that asks where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    with api.sync_playwright() as driver:
        try:
            opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [], timeout=START_MS)
        except api.Error as error:
            if path is not None:
                raise
            why = error.message.splitlines()[0]
            pytest.skip(f"no browser on this machine: none of {', '.join(NAMES)}, and Playwright's own does not start: {why}")
        try:
            yield opened
        finally:
            opened.close()


class Watched:
    """A page whose troubles are kept: errors of its scripts and on its console, and requests to anybody but `url`."""

    def __init__(self, page: "Page", url: str) -> None:
        self.page = page
        self.troubles: list[str] = []
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("console", lambda message: self.troubles.append(f"console: {message.text}") if message.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith(url + "/") else self.troubles.append(f"request: {request.url}"))
