"""Every fenced block of the documentation is what it says it is, as far as that can be told without running it.

Manifests are valid, also those that are given in parts; options of commands exist; JSON, SQL and Python can be read; programs that pages
start are there. What is run, and held against what pages print: tests/test_followed_pages.py and tests/test_examples.py. A block that
no test can judge has a comment above it with the reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import sqlglot
import yaml

from pages import ROOT, Block, blocks, steps
from streamjoin.cli import main
from streamjoin.manifest import check, parse
from streamjoin.manifest.model import Manifest
from streamjoin_operator import plugin

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
BLOCKS = [block for page in PAGES for block in blocks(page)]
KINDS = {"console", "json", "mermaid", "promql", "python", "sh", "sql", "text", "usage", "yaml"}
"""``text`` is output and formulas; ``usage``: a command with what it takes, in brackets what may be left out. Prometheus reads what is
``promql`` in tests/test_prometheus.py, and tests/test_site.py has a picture of all that is ``mermaid``."""
NOT_JUDGED = 5
"""So many blocks have a reason why they are not run."""
EXTRAS = {"research", *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
OTHER_PROGRAMS = {
    *("cat", "cd", "cosign", "cp", "curl", "diff", "docker", "export", "gh", "git", "helm", "mkdir"),
    *("openssl", "pip", "rm", "sed", "sha256sum", "spark-submit", "tar", "tools/images.sh", "uv", "vi"),
}
"""Programs of which only the name is looked at, beside kubectl: tests/test_chart.py renders the chart as ``helm`` is told to."""
SEPARATORS = {";", "|", "||", "&&"}

GOOD = """
apiVersion: streamjoin.dev/v1beta1
kind: StreamJoin
metadata: {name: good}
spec:
  streams:
    - {name: a, source: {files: {path: in/a, format: json}}, schema: "id BIGINT, k INT, at TIMESTAMP", eventTime: at, watermark: 0s}
    - {name: b, source: {files: {path: in/b, format: json}}, schema: "id BIGINT, k INT, at TIMESTAMP", eventTime: at, watermark: 0s}
  joins:
    - name: pairs
      condition: "a.k = b.k"
      window: {within: 1m}
      output: {select: [a.id AS left_id, b.id AS right_id, a.k AS customer], sink: {files: {path: out/pairs, format: json}}}
  checkpoint: {location: out/state}
"""
OF_STREAM = {"source", "watermark", "maxAhead", "idleTimeout", "where", "schema", "eventTime", "select"}
OF_JOIN = {"condition", "type", "window", "output"}
OF_SPEC = {field.alias or name for name, field in Manifest.model_fields["spec"].annotation.model_fields.items()}  # type: ignore[union-attr]
VALUES = yaml.safe_load((ROOT / "charts" / "streamjoin-operator" / "values.yaml").read_text())


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.kind in kinds and block.reason is None]


def test_every_block_says_what_it_is() -> None:
    wrong = [f"{block}: {block.kind or 'nothing'}" for block in BLOCKS if block.kind not in KINDS]
    assert wrong == [], f"write one of {', '.join(sorted(KINDS))} after the fence"
    found = Counter(block.kind for block in BLOCKS)
    assert found["yaml"] > 40
    assert found["console"] > 15


def test_blocks_that_no_test_judges_say_why() -> None:
    reasons = {str(block): block.reason for block in BLOCKS if block.reason is not None}
    assert len(reasons) == NOT_JUDGED, reasons
    comments = sum(len(re.findall(r"^ *<!-- not run:", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert comments == NOT_JUDGED, "each stands right above its block"


@pytest.mark.parametrize("block", of_kind("yaml"))
def test_yaml_is_a_manifest_or_a_part_of_one_or_values_of_the_chart(block: Block) -> None:
    for document in yaml.safe_load_all(block.text):
        assert isinstance(document, dict), block
        if "apiVersion" in document:
            problems = [str(problem) for found in parse(yaml.safe_dump(document, sort_keys=False)) for problem in found.problems]
            assert document["kind"] != "StreamJoin" or problems == []
        elif set(document) <= {"spec"} | OF_STREAM | OF_JOIN | OF_SPEC and not set(document) <= set(VALUES):
            assert problems_of(document) == []
        else:
            unknown = [path for path in paths_of(document) if not is_value(path)]
            assert unknown == [], "neither a part of a manifest nor values of the chart"


def problems_of(part: dict[str, Any]) -> list[str]:
    """What is wrong with a good manifest that has this part."""
    resource = yaml.safe_load(GOOD)
    spec = resource["spec"]
    part = copy.deepcopy(part)
    part |= part.pop("spec", {})
    if "streams" in part and "joins" not in part:
        names = [stream["name"] for stream in part["streams"]]
        assert names == ["a", "b"]
    named = dict.fromkeys(re.findall(r"([a-z]\w*)\.\w+", str(part.get("condition", ""))))
    if len(named) == 2 and set(named) != {"a", "b"} and "streams" not in part:
        for stream, name in zip(spec["streams"], named, strict=True):
            columns = dict.fromkeys(re.findall(rf"\b{name}\.(\w+)", part["condition"]))
            stream |= {"name": name, "schema": ", ".join([*(f"{column} DOUBLE" for column in columns), "at TIMESTAMP"])}
        spec["joins"][0]["output"].pop("select")
    for stream in spec["streams"] if "source" not in part else spec["streams"][:1]:
        stream |= {key: part[key] for key in OF_STREAM & set(part)}
    spec["joins"][0] |= {key: part[key] for key in OF_JOIN & set(part)}
    if "shedding" not in part and "budget" in part.get("scaling", {}):
        part["shedding"] = {"model": "linear"}
    if "queries" in part or "persistentVolumeClaim" in part.get("checkpoint", {}):
        spec["checkpoint"] = {"persistentVolumeClaim": "claim"}
    spec |= {key: value for key, value in part.items() if key not in OF_STREAM | OF_JOIN}
    return [str(problem) for problem in check(resource).problems]


def paths_of(document: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*above, key))


def is_value(path: tuple[str, ...]) -> bool:
    """Whether the chart has such a value; below an empty mapping anything may stand, such as labels."""
    at: Any = VALUES
    for name in path:
        if at == {}:
            return True
        if not isinstance(at, dict) or name not in at:
            return False
        at = at[name]
    return True


@pytest.mark.parametrize("block", of_kind("sh", "console"))
def test_commands_have_the_options_that_are_given(block: Block) -> None:
    texts = [block.text] if block.kind == "sh" else [step.command for step in steps(block.text)]
    for text in texts:
        for words in commands(text):
            judge(words)


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a script, as words. Substitutions stay as they are."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in lexer:
            if word in SEPARATORS:
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words


def judge(words: list[str]) -> None:
    """Raises where the command does not exist, or has no such option."""
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):  # variables before a command
        words = words[1:]
    words = [word for number, word in enumerate(words) if word != ">" and (number == 0 or words[number - 1] != ">")]
    program, *arguments = words
    name = program.removeprefix(".venv/bin/")
    if name == "streamjoin":
        streamjoin(arguments)
    elif name == "kubectl" and arguments[0] == "streamjoin":
        kubectl_streamjoin(arguments[1:])
    elif name == "make":
        targets = (ROOT / "Makefile").read_text()
        is_there = re.search(rf"^{arguments[0]}:", targets, re.MULTILINE) or arguments[0] in {f"setup-{each}" for each in EXTRAS}
        assert is_there, f"no such target: {arguments[0]}"
    elif name == "kubectl":
        for number, word in enumerate(arguments):
            if word == "-f" and arguments[number + 1].startswith(("examples/", "crds/", "charts/")):
                assert (ROOT / arguments[number + 1]).exists(), arguments[number + 1]
    elif name in ("python", "pytest"):
        scripts = [word for word in arguments if word.endswith(".py")]
        assert all((ROOT / script).exists() for script in scripts), scripts
    elif name not in ("echo", "base64"):
        assert name in OTHER_PROGRAMS, f"{name}: unknown; judge it here"


def streamjoin(arguments: list[str]) -> None:
    """Parsed by the command's own options. Files that are named need not be there; those of the repository must."""
    command: click.Command = main
    context = click.Context(main, info_name="streamjoin")
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        inner = command.get_command(context, arguments[0])
        assert inner is not None, f"no such command: {' '.join(arguments)}"
        command, context, arguments = inner, click.Context(inner, parent=context, info_name=arguments[0]), arguments[1:]
    values, _, _ = command.make_parser(context).parse_args(list(arguments))
    for word in arguments:
        if word.startswith(("examples/", "tests/")):
            assert (ROOT / word).exists(), word
    for parameter in command.params:
        if isinstance(parameter, click.Option) and isinstance(values.get(str(parameter.name)), str):
            kind = parameter.type
            if isinstance(kind, click.Choice | click.types.IntParamType | click.types.FloatParamType) or type(kind).__name__ == "Duration":
                kind.convert(values[str(parameter.name)], parameter, context)


def kubectl_streamjoin(arguments: list[str]) -> None:
    try:
        plugin._parser().parse_args(arguments)
    except SystemExit as ended:
        raise AssertionError(f"kubectl streamjoin {' '.join(arguments)}") from ended


@pytest.mark.parametrize("block", of_kind("usage"))
def test_usage_names_commands_and_options_that_exist(block: Block) -> None:
    for line in block.text.splitlines():
        words = line.split()
        assert words[0] == "streamjoin"
        command: click.Command = main
        for word in words[1:]:
            if not isinstance(command, click.Group):
                break
            inner = command.get_command(click.Context(command), word)
            assert inner is not None, line
            command = inner
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert set(re.findall(r"(?<![\w-])--[a-z-]+", line)) <= known, line


@pytest.mark.parametrize("block", of_kind("json"))
def test_json_can_be_read(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", of_kind("sql"))
def test_sql_can_be_read(block: Block) -> None:
    assert sqlglot.parse(block.text, dialect="duckdb")


@pytest.mark.parametrize("block", of_kind("sh", "console"))
def test_sql_in_commands_can_be_read(block: Block) -> None:
    for words in (words for text in [block.text.replace("\n$ ", "\n")] for words in commands_or_nothing(text)):
        for word in words:
            if re.match(r"SELECT\b", word):
                assert sqlglot.parse(re.sub(r" AS OF \d+", "", word), dialect="duckdb")


def commands_or_nothing(text: str) -> Iterator[list[str]]:
    """The commands among the lines; what is printed between them may be no words at all."""
    for line in text.splitlines():
        if "SELECT" in line:
            yield from commands(line.removeprefix("$ "))


@pytest.mark.parametrize("block", of_kind("python"))
def test_python_can_be_read(block: Block) -> None:
    ast.parse(block.text)


def test_the_parser_of_commands_knows_wrong_ones() -> None:
    for wrong in (["streamjoin", "run", "a.yaml", "--no-such-option"], ["streamjoin", "rum"], ["make", "nothing"], ["nothing"]):
        with pytest.raises((AssertionError, click.UsageError)):
            judge(wrong)
    with pytest.raises(AssertionError):
        judge(["kubectl", "streamjoin", "fly", "near"])
    assert list(commands("a 'b c' | d # e\nf \\\n g")) == [["a", "b c"], ["d"], ["f", "g"]]
    assert problems_of({"scaling": {"tau1": 0.95}}) != []
    assert not is_value(("watch", "nothing"))
    assert isinstance(plugin._parser(), argparse.ArgumentParser)


def test_relative_links_lead_to_files() -> None:
    """In the repository's own view of the pages; tests/test_site.py has those of the site, with anchors."""
    broken = []
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)", text):
            if not (page.parent / Path(target)).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_the_comparison_has_the_figures_of_the_benchmarks() -> None:
    """Each figure of its table of measurements stands in benchmarks.md, but the sum of two of these."""
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    table = (ROOT / "docs" / "comparison.md").read_text().split("## What was measured")[1].split("\n\n")[2]
    figures = [re.findall(r"[\d.]+(?: million| thousand)?", cell) for row in table.splitlines()[2:] for cell in row.split("|")[2:4]]
    assert len(figures) == 18
    assert "| 5,000 | 0.9 | 3.4 | 1.3 | 6 |" in benchmarks
    elsewhere = {figure for [figure] in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", benchmarks)}
    assert elsewhere <= {f"{3.4 + 1.3:.1f}"}


@pytest.mark.parametrize("name", ["architecture", "joins-of-many-streams", "recovery", "invariants"])
def test_modules_that_pages_about_the_inside_name_are_there(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    named = {(path, inside) for path, inside in re.findall(r"`([\w/]+\.py)(?:: (\w+))?`", text) if "/" in path or inside}
    places = {path: [base / path for base in (ROOT, ROOT / "engine" / "streamjoin") if (base / path).is_file()] for path, _ in named}
    assert [path for path, found in places.items() if not found] == []
    assert [f"{path}: {inside}" for path, inside in named if inside and inside not in places[path][0].read_text()] == []


def test_the_page_about_the_inside_has_the_layers_of_the_import_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [set(re.findall(r"\w+", layer)) for layer in next(each for each in contracts if each["id"] == "layers")["layers"]]
    modules = {"bearer", "endpoint", "location", "logs", "pages"}
    block = text.split("## Packages")[1].split("```text\n")[1].split("```")[0]
    assert [set(re.findall(r"\w+", line.split("   ")[0])) for line in block.splitlines()] == [*layers[1:-1], layers[-1] - modules]
