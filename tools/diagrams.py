"""Draws the Mermaid diagrams of the documentation as SVG: `make diagrams`, after a diagram was changed.

The site shows these pictures (tools/docs_site.py), so no reader's browser has to load Mermaid from another host. A picture is named by
the digest of its text: a changed diagram without its picture is noticed when the site is built. Needs npm and Chromium; the build does not.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FOLDER = DOCS / "images" / "diagrams"
MERMAID = "mermaid@11"
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def picture_of(diagram: str) -> Path:
    """Where the picture of a diagram's text is."""
    return FOLDER / f"{hashlib.sha256(diagram.encode()).hexdigest()[:12]}.svg"


def diagrams() -> list[str]:
    """The text of each, in all pages."""
    return [text for page in sorted(DOCS.rglob("*.md")) for text in DIAGRAM.findall(page.read_text())]


def main() -> int:
    wanted = {picture_of(text): text for text in diagrams()}
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    missing = [path for path in wanted if not path.exists()]
    if missing and (chromium is None or shutil.which("npm") is None):
        print("diagrams: chromium and npm are needed (apt-get install chromium npm)", file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    for stale in set(FOLDER.glob("*.svg")) - set(wanted):
        stale.unlink()
    if missing:
        with tempfile.TemporaryDirectory() as directory:
            script = mermaid(Path(directory))
            for path in missing:
                path.write_text(drawn(wanted[path], script, str(chromium)))
                print(path.relative_to(ROOT))
    return 0


def mermaid(directory: Path) -> Path:
    """Mermaid's script, from the npm registry."""
    done = subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=directory, capture_output=True, text=True, check=True)
    with tarfile.open(directory / done.stdout.strip()) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # there is none before Python 3.11.4
        archive.extract("package/dist/mermaid.min.js", directory)
    return directory / "package/dist/mermaid.min.js"


def drawn(text: str, script: Path, chromium: str) -> str:
    """A diagram as SVG, taken from the page that Chromium makes."""
    page = script.with_name("page.html")
    page.write_text(
        f"""<!doctype html><meta charset="utf-8"><body><script src="{script.name}"></script><script>
        mermaid.initialize({{startOnLoad: false, theme: "neutral", deterministicIds: true, flowchart: {{htmlLabels: false}}}});
        mermaid.render("diagram", {json.dumps(text)}).then(found => document.body.innerHTML = found.svg);
        </script></body>"""
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([chromium, *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<svg .*</svg>", done.stdout, re.DOTALL)
    if found is None:
        raise SystemExit(f"diagrams: Mermaid draws nothing of:\n{text}")
    # As XML, not as HTML.
    return found[0].replace("<br>", "<br/>").replace("&nbsp;", "&#160;") + "\n"


if __name__ == "__main__":
    sys.exit(main())
