"""What a newcomer meets on a machine of their own: each error that ``docs/troubleshooting.md`` lists is brought about, and said so."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pages import ROOT, blocks
from streamjoin.cli import main

[MANIFEST] = [block.text for block in blocks(ROOT / "README.md") if block.kind == "yaml" and "apiVersion" in block.text]
SECTION = (ROOT / "docs/troubleshooting.md").read_text().partition("## On your machine")[2]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \((\d)\) \| .+ \|$", SECTION, re.MULTILINE)
QUOTE = '{"id": 1, "price": 1.5, "at": "2026-03-01T00:00:00Z"}\n'


def begin(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's manifest beside its directories, which are empty."""
    monkeypatch.chdir(root)
    Path("near.yaml").write_text(MANIFEST)
    for name in ("trades", "quotes"):
        Path("data", name).mkdir(parents=True)


def run(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["run", "near.yaml", "--runner", "inline", "--until-idle", *options])
    return done.exit_code, done.output


def no_directory() -> tuple[int, str]:
    Path("data/trades").rmdir()
    return run()


def half_a_file() -> tuple[int, str]:
    Path("data/trades/a.parquet").write_bytes(b"PAR1")
    return run()


def another_type() -> tuple[int, str]:
    pq.write_table(pa.table({"id": ["x"], "price": ["y"], "at": ["z"]}), "data/trades/a.parquet")
    return run()


def no_json() -> tuple[int, str]:
    Path("data/quotes/a.json").write_text("this is no JSON\n")
    return run()


def second_run() -> tuple[int, str]:
    run()
    return run()


def another_condition() -> tuple[int, str]:
    Path("data/quotes/a.json").write_text(QUOTE)
    run()
    Path("near.yaml").write_text(MANIFEST.replace("<= 0.05", "<= 0.10"))
    return run()


def below_a_file() -> tuple[int, str]:
    Path("out").touch()
    return run()


@contextmanager
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def taken_port() -> tuple[int, str]:
    with taken() as port:
        return run("--metrics-port", str(port))


MISTAKES = (no_directory, half_a_file, another_type, no_json, second_run, another_condition, below_a_file, taken_port)
"""In the order of the table."""


@pytest.mark.parametrize(("row", "mistake"), list(zip(ROWS, MISTAKES, strict=True)), ids=[mistake.__name__ for mistake in MISTAKES])
def test_the_error_is_the_one_that_the_page_lists(
    row: tuple[str, str, str], mistake: Callable[[], tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, monkeypatch)
    code, said = mistake()
    _, expected, expected_code = row
    assert code == int(expected_code), said
    assert re.search(".*".join(re.escape(part.strip()) for part in expected.split("...")), said, re.DOTALL), said
    assert "Traceback" not in said


def test_a_warning_that_an_epoch_has_told_is_not_repeated_when_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, monkeypatch)
    Path("data/trades/a.parquet").write_bytes(b"PAR1")
    Path("data/quotes/a.json").write_text(QUOTE)
    code, said = run()
    told = [line for line in said.splitlines() if line.startswith("warning: ") and "is not a complete Parquet file" in line]
    assert (code, len(told)) == (0, 1), said


@pytest.mark.parametrize("what", ["record", "file"])
def test_a_stream_may_end_the_run_at_what_is_bad(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, monkeypatch)
    Path("near.yaml").write_text(re.sub(r"- name: (trades|quotes)\n", "- onBad: fail\n      name: \\1\n", MANIFEST))
    Path("data/quotes/a.json").write_text(QUOTE + ("no JSON\n" if what == "record" else ""))
    if what == "file":
        Path("data/trades/a.parquet").write_bytes(b"PAR1")
    code, said = run()
    where = "stream quotes: a.json byte" if what == "record" else "stream trades: a.parquet: the file cannot be read: it is not a complete"
    assert code == 3, said
    assert where in said
    assert "mend or remove it, or let onBad of the stream be deadLetter" in said
