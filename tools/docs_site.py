"""What the site has beside the pages of ``docs/`` (a hook of MkDocs, see mkdocs.yml).

- ``reference/commands.md`` and ``reference/python.md``, made from the commands' own options and the library's docstrings.
- The files of the repository that pages link to (examples, the chart's values, ...), at the same paths below the site's root; so a link
  like ``../examples/band.yaml`` works in the repository's own view of a page and in the site.
- Diagrams as the pictures that tools/diagrams.py has drawn.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from diagrams import DIAGRAM, picture_of

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
log = logging.getLogger("mkdocs.hooks.docs_site")

LINK = re.compile(r"(?P<head>!?\[[^\]]*\]\()(?P<path>[^)\s#:]+)(?P<tail>#[^)\s]*)?\)")
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
PUBLIC = ("Join", "Run", "Epoch", "Outline", "Reason", "Failure", "PlanRefusal", "ManifestError", "Problem", "QueryError")
"""Of ``streamjoin``, in the order in which somebody meets them."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made, and what pages link to outside of ``docs/``."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/python.md", content=library()))
    wanted = {target for page in sorted(DOCS.rglob("*.md")) for target in outside(page, page.read_text())}
    pending, added = sorted(wanted), set[Path]()
    while pending:
        target = pending.pop()
        if target in added or not target.is_file():
            continue
        added.add(target)
        name = target.relative_to(ROOT).as_posix()
        if target.suffix == ".md":
            text = target.read_text()
            files.append(File.generated(config, name, content=text))
            pending += outside(target, text)
        else:
            files.append(File.generated(config, name, abs_src_path=str(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links lead to where the site has the file, and diagrams are pictures."""
    source = ROOT / page.file.src_uri if page.file.generated_by else DOCS / page.file.src_uri
    base = posixpath.dirname(page.file.src_uri)

    def diagram(match: re.Match[str]) -> str:
        picture = picture_of(match[1])
        if not picture.exists():
            log.warning("%s: a diagram has changed and has no picture: make diagrams", page.file.src_uri)
        return f"![diagram]({posixpath.relpath(picture.relative_to(DOCS).as_posix(), base or '.')})"

    def moved(match: re.Match[str]) -> str:
        target = resolved(source, match["path"])
        if target is None:
            return match[0]
        if target.is_dir():
            log.warning("%s: link to the directory %s; link to a file in it", page.file.src_uri, match["path"])
            return match[0]
        inside = target.relative_to(DOCS if target.is_relative_to(DOCS) else ROOT).as_posix()
        return f"{match['head']}{posixpath.relpath(inside, base or '.')}{match['tail'] or ''})"

    return outside_of_code(DIAGRAM.sub(diagram, markdown), lambda text: LINK.sub(moved, text))


def outside_of_code(markdown: str, change: Callable[[str], str]) -> str:
    """The text with all but its fenced blocks changed."""
    parts: list[str] = []
    at = 0
    for match in CODE.finditer(markdown):
        parts += [change(markdown[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*parts, change(markdown[at:])])


def resolved(source: Path, path: str) -> Path | None:
    """The file of the repository that a link in ``source`` names; None where there is none."""
    target = Path(os.path.normpath(source.parent / path))
    return target if target.is_relative_to(ROOT) and target.exists() else None


def outside(source: Path, text: str) -> list[Path]:
    """The files outside of ``docs/`` that a page links to."""
    targets = [resolved(source, match["path"]) for match in LINK.finditer(CODE.sub("", text))]
    return [target for target in targets if target is not None and not target.is_relative_to(DOCS)]


def library() -> str:
    """The page of the Python library: directives for mkdocstrings."""
    streamjoin: Any = importlib.import_module("streamjoin")
    missing = set(streamjoin.__all__) - {*PUBLIC, "__version__"}
    if missing:
        log.warning("reference/python.md: %s are public and in no list of tools/docs_site.py", ", ".join(sorted(missing)))
    about = "Made from the docstrings. [From Python and from Spark](../python.md) shows how the parts are used together."
    lines = ["# Python reference", "", about, ""]
    for name in PUBLIC:
        lines += [f"::: {getattr(streamjoin, name).__module__}.{name}", "    options: {heading: streamjoin." + name + "}", ""]
    lines += ["::: streamjoin.spark.joins.join", "    options: {heading: streamjoin.spark.join}", ""]
    lines += ["::: streamjoin.spark.source.StreamJoinSource", "    options: {heading: streamjoin.spark.StreamJoinSource}", ""]
    return "\n".join(lines)


def commands() -> str:
    """The page of all commands, as each says of itself with ``--help``."""
    import click

    from streamjoin.cli import main

    about = "What each command says of itself with `--help`. [The command line](../cli.md) says more."
    lines = ["# All options of all commands", "", about, ""]
    context = click.Context(main, info_name="streamjoin", max_content_width=110)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        lines += of_command(command, click.Context(command, parent=context, info_name=name, max_content_width=110), 2)
    lines += ["## kubectl streamjoin", "", "```text", kubectl_parser().format_help().rstrip(), "```", ""]
    for name, parser in subparsers(kubectl_parser()).items():
        lines += [f"### kubectl streamjoin {name}", "", "```text", parser.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def of_command(command: Any, context: Any, level: int) -> list[str]:
    lines = [f"{'#' * level} {context.command_path}", "", "```text", command.get_help(context), "```", ""]
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        import click

        lines += of_command(inner, click.Context(inner, parent=context, info_name=name, max_content_width=110), level + 1)
    return lines


def kubectl_parser() -> argparse.ArgumentParser:
    from streamjoin_operator import plugin

    parser: argparse.ArgumentParser = plugin._parser()
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=110)
    return parser


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


if __name__ == "__main__":
    sys.stdout.write(commands())
