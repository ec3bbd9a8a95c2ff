"""``streamjoin convert``: manifests in another version, with their comments."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from streamjoin.cli.exits import Exit
from streamjoin.cli.validate import Unreadable, located, read_text
from streamjoin.manifest.rewriting import rewritten
from streamjoin.manifest.validate import parse
from streamjoin.manifest.versions import GROUP


def convert_files(names: Sequence[str], version: str, *, write: bool) -> Exit:
    """Print the manifest in ``version`` (``v1beta1``), or write it into its file. A file whose manifests are not valid then stays as it is,
    with all problems on standard error."""
    done = Exit.DONE
    for name in names:
        try:
            text = read_text(name)
        except Unreadable as refusal:
            click.echo(f"{name}: {refusal}", err=True)
            done = Exit.USAGE
            continue
        converted = rewritten(text, f"{GROUP}/{version}")
        # No line is added or taken away, so lines are those of the file.
        problems = [problem for document in parse(converted) for problem in document.problems]
        if problems:
            for problem in problems:
                click.echo(located(name, problem), err=True)
            done = Exit.USAGE
        elif not write:
            click.echo(converted, nl=False)
        elif converted == text:
            click.echo(f"{name}: is {version} already")
        else:
            try:
                _write(Path(name), converted)
            except OSError as error:
                click.echo(f"{name}: cannot be written: {error.strerror}", err=True)
                done = Exit.USAGE
                continue
            click.echo(f"{name}: {version}")
    return done


def _write(path: Path, text: str) -> None:
    """All of it or nothing, with the file's own permissions; a link stays one. Raises OSError."""
    target = path.resolve()
    bom = "utf-8-sig" if target.read_bytes().startswith(b"\xef\xbb\xbf") else "utf-8"
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode(bom))
        shutil.copymode(target, name)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
