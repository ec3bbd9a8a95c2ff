"""The comparison as text for a terminal, and as the page ``docs/papers.md``.

Always holds: the page says on which machine its rows of kind R ran; all other lines are the same wherever they are made.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from streamjoin_research.papers.catalogue import ALGORITHMS, NOT_COMPARED, ROWS
from streamjoin_research.papers.rows import PAPERS, Comparison, Kind, Row

WIDTH = 118
KINDS = {
    Kind.ARITHMETIC: "arithmetic of plans and formulas, exact",
    Kind.SIMULATED: "a simulated network or chain, deterministic",
    Kind.RUN: "run on one machine: ratios",
}


def told(comparison: Comparison) -> str:
    """A row as a paragraph for a terminal."""
    row = comparison.row
    heading = f"{row.name}, {row.part}"
    verdict = "agrees" if comparison.agrees else "DIFFERS"
    lines = [f"{heading} {'.' * max(3, WIDTH - len(heading) - len(verdict) - 2)} {verdict}"]
    says = f"{row.says} ({place(row)})"
    entries = [("with", row.parameters), ("paper", says), ("ours", comparison.ours.text), ("rule", row.rule_text)]
    if not comparison.agrees:
        entries.append(("not so", "; ".join(check.text for check in comparison.failed)))
    entries += [("note" if comparison.agrees else "why", row.why), ("data", row.data)]
    for name, text in entries:
        if text:
            lines += textwrap.wrap(text, WIDTH, initial_indent=f"  {name:<8}", subsequent_indent=" " * 10)
    return "\n".join(lines) + "\n"


def summary(judged: Sequence[tuple[Row, bool]]) -> str:
    """How many rows agree, in one line."""
    parts = []
    for kind in Kind:
        of_kind = [agrees for row, agrees in judged if row.kind is kind]
        if of_kind:
            parts.append(f"{kind.value} {sum(of_kind)} of {len(of_kind)}")
    return f"{sum(agrees for _, agrees in judged)} of {len(judged)} rows agree ({', '.join(parts)})."


def page(comparisons: Sequence[Comparison], machine: str, before: str = "") -> str:
    """``docs/papers.md``. ``machine``: what rows of kind R ran on; ``before``: the page so far, from which the lines of rows that were not
    computed are kept, and the machine where none of kind R was. A row that was never computed is left out."""
    kept, computed = lines_of(before), {comparison.row: comparison for comparison in comparisons}
    if not any(comparison.row.kind is Kind.RUN for comparison in comparisons):
        machine = next((line.removeprefix(RAN_ON).rstrip(".") for line in before.splitlines() if line.startswith(RAN_ON)), machine)
    found: list[tuple[Row, list[str]]] = []
    for row in ROWS:
        line = [escaped(text) for text in cells(computed[row])] if row in computed else kept.get(escaped(subject(row)))
        if line is not None:
            found.append((row, line))
    told_of = summary([(row, line[VERDICT] == AGREES) for row, line in found])
    parts = [
        "# The papers and this code\n",
        "What five papers report, what this code gives with the same parameters, and whether they agree. This page is written by "
        "`streamjoin bench paper --document docs/papers.md`; `streamjoin bench paper --figure 002:4` prints one figure, `--picture DIR` "
        "draws them, `--json` is for machines ([options](cli.md#bench-paper)). `make setup-research` installs this command, from the "
        "package `streamjoin-research` (`engine/streamjoin_research`): it has what reproduces papers, is not needed to run a join, and is "
        "in no image and no release. `make research-check` runs its tests, which keep this page true.\n",
        f"{told_of} Where one differs, its line says why, if that is known. Agreement is decided by a rule that the line gives, and that "
        "can fail. The papers' figures are pictures that our texts of them do not hold; of those, the shape is compared that their prose "
        "describes. Kinds of rows:\n",
        "\n".join(f"- {kind.value}: {text}." for kind, text in KINDS.items()),
        f"\n{RAN_ON}{machine}.\n",
        "## Where each algorithm is\n",
        _table(
            ["paper", "what", "module, below `engine/streamjoin`; `research/`: below `engine/streamjoin_research`"],
            [[paper, what, f"`{modules}`"] for paper, what, modules in ALGORITHMS],
        ),
    ]
    for paper, title in PAPERS.items():
        of_paper = [line for row, line in found if row.paper == paper]
        if of_paper:
            parts += [f"\n## {paper}: {title}\n", _table(HEADER, of_paper)]
    parts += ["\n## Not compared\n", _table(["paper", "figure", "why not"], NOT_COMPARED)]
    return "\n".join(parts) + "\n"


def lines_of(text: str) -> dict[str, list[str]]:
    """The rows' lines on a page, by their first cell."""
    lines = (_BETWEEN.split(line.strip().removeprefix("| ").removesuffix(" |")) for line in text.splitlines() if line.startswith("| "))
    return {line[0]: line for line in lines if len(line) == len(HEADER) and line[0] not in (HEADER[0], RULE)}


HEADER = ["figure", "with", "the paper", "ours", "rule", "", "why, and what to know"]
RULE = "---"
OURS, VERDICT = 3, 5
"""The cells of a line that are computed."""
AGREES = "agrees"
RAN_ON = "Rows of kind R ran on: "
_BETWEEN = re.compile(r" (?<!\\)\| ")


def cells(comparison: Comparison) -> list[str]:
    """A row as the cells of its line on the page."""
    row = comparison.row
    return [
        subject(row),
        row.parameters,
        f"{row.says} ({place(row)})",
        comparison.ours.text,
        row.rule_text,
        comparison.verdict,
        " ".join(filter(None, [row.why, row.data])),
    ]


def subject(row: Row) -> str:
    """The first cell, which no other row has."""
    title = f"Fig. {row.figure}" if row.figure[0].isdigit() else row.figure
    return f"{row.paper} {title}, {row.part} ({row.kind.value})"


def place(row: Row) -> str:
    """Where the paper says it: a section's number or its title."""
    return f"section {row.section}" if row.section[0].isdigit() else row.section


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, [RULE] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escaped(text: str) -> str:
    """A text as a cell of a table in Markdown."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
