"""The machine's Chromium, for tests of pages: what a page logs, and whom it asks, is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from skips import lacks
from waiting import PATIENCE_SECONDS

expect.set_options(timeout=PATIENCE_SECONDS * 1000)  # or it would be five seconds, in which a busy machine starts no Spark


@dataclass
class Heard:
    """What pages have said and asked."""

    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


class Browser:
    """One for many tests: each page has a profile of its own."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextmanager
    def page(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Iterator[tuple[Page, Heard]]:
        """A page at this address, as far as it comes."""
        heard = Heard()
        scheme: Any = "dark" if dark else "light"
        context = self._chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB")
        page = context.new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.on("console", lambda message: heard.errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: heard.errors.append(f"{error}\n{error.stack}"))
        page.on("request", lambda request: heard.hosts.add(urlsplit(request.url).netloc))
        try:
            page.goto(url)
            yield page, heard
        finally:
            context.close()


@contextmanager
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip(lacks("chromium", "apt-get install chromium"))
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
