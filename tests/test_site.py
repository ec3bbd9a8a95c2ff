"""The documentation as a site: it builds without a warning, asks no other host for anything, and has what is made from the code."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import streamjoin
from pages import ROOT
from streamjoin.cli import main
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.xdist_group("site")  # built once
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""Elements with an address that browsers fetch by themselves; links are fetched by their readers, but for those of ``FETCHED``."""
FETCHED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "manifest"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does. Warnings are errors: links and anchors that lead nowhere, pages in no menu, diagrams without a picture."""
    target = tmp_path_factory.mktemp("site")
    path = os.pathsep.join(str(ROOT / part) for part in ("engine", "operator"))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class Addresses(HTMLParser):
    """The addresses that a browser fetches to show a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and FETCHED & set((given.get("rel") or "").split()):
            self.found.append(given.get("href") or "")
        if given.get(LOADING.get(tag, "")):
            self.found.append(str(given[LOADING[tag]]))


def loaded(site: Path) -> Iterator[tuple[Path, str]]:
    for page in site.rglob("*.html"):
        for address in Addresses(page).found:
            yield page, address
    for sheet in site.rglob("*.css"):
        for address in re.findall(r"url\(\s*['\"]?([^'\")]+)", sheet.read_text()):
            yield sheet, address


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    addresses = list(loaded(site))
    assert len(addresses) > 100
    assert [(str(page), address) for page, address in addresses if re.match(r"(https?:)?//", address)] == []
    missing = [
        (str(page.relative_to(site)), address)
        for page, address in addresses
        if not address.startswith(("data:", "/", "#")) and not (page.parent / address.split("?")[0].split("#")[0]).exists()
    ]
    assert missing == []
    diagrams = [page for page in site.rglob("*.html") if 'class="mermaid"' in page.read_text()]
    assert diagrams == [], "the theme would load Mermaid from another host"


def test_the_search_finds_fields_options_and_words(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert (site / "search" / "search_index.js").exists(), "for a site that is opened as files"
    text = {document["location"]: document["title"] + " " + document["text"] for document in index["docs"]}
    for word in ("maxFilesPerEpoch", "--until-idle", "streamjoin_worker_utilization_ratio", "PlanRefusal", "watermark"):
        assert any(word in part for part in text.values()), word


def test_the_reference_has_every_command_and_every_public_name(site: Path) -> None:
    commands = html.unescape((site / "reference" / "commands.html").read_text())
    for name, command in main.commands.items():
        assert f"streamjoin {name}" in commands
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        options = [option for parameter in shown for option in parameter.opts if option.startswith("--")]
        assert [option for option in options if option not in commands] == []
    assert "kubectl streamjoin query" in commands
    library = (site / "reference" / "python.html").read_text()
    for name in streamjoin.__all__:
        assert name.startswith("__") or f"streamjoin.{name}" in library
    assert "&gt;&gt;&gt; </span>" in library, "doctests are shown as code"
