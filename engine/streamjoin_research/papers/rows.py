"""A row of the comparison: what a paper says, how ours is got, and the rule that decides whether they agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

Values: TypeAlias = Mapping[str, Any]
"""What a row computed, by name: numbers, texts, and lists and mappings of them, as JSON has them."""

PAPERS = {
    "000": "ESJ, Saving Communication Cost",
    "001": "ESJ, Adapting to the varying workload",
    "002": "A-DSP",
    "003": "ESJ, Operator",
    "004": "Tran and Lee, semijoins",
}


class Kind(Enum):
    """How ours is got."""

    ARITHMETIC = "C"
    """Arithmetic of plans and formulas: exact, nothing is joined."""
    SIMULATED = "S"
    """A simulated network or chain: deterministic."""
    RUN = "R"
    """Joins that run on this machine: only ratios mean something."""


@dataclass(frozen=True)
class Lines:
    """Curves over numbers, or groups of bars over names."""

    x_label: str
    y_label: str
    x: Sequence[float] | Sequence[str]
    lines: Mapping[str, Sequence[float]]
    """By name, as long as ``x``."""
    logarithmic: bool = False
    """Both axes where x are numbers, else y alone."""


@dataclass(frozen=True)
class Tiling:
    """A tuple matrix with rectangles in it."""

    title: str
    results: Sequence[tuple[float, float, float]]
    """Stripes of results: row, first column, the column after the last."""
    rectangles: Sequence[tuple[str, float, float, float, float]]
    """Label, top, bottom, begin, end, in tuples."""


Chart: TypeAlias = Lines | Sequence[Tiling]


@dataclass(frozen=True)
class Ours:
    """What a row came to."""

    text: str
    """In words and figures, for people."""
    values: Values
    chart: Chart | None = None


@dataclass(frozen=True)
class Check:
    """One inequality of a rule."""

    text: str
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class Row:
    """See the module."""

    paper: str
    """A key of :data:`PAPERS`."""
    figure: str
    """``11``, ``10a``, ``Table 3``, ``Theorem 1``, ``Alg. 4``."""
    section: str
    """Where the paper speaks of it: the texts that we have show no pages."""
    part: str
    """Which of the figure's claims this is; unique within the figure."""
    kind: Kind
    parameters: str
    says: str
    """What the paper reports; in quotation marks its words."""
    ours: Callable[[bool], Ours]
    """Given whether to be quick: a smaller setting for tests. Rows that are fast are the same either way."""
    rule: tuple[Check, ...]
    modules: tuple[str, ...]
    """Where the algorithm is, below ``streamjoin``; ``research/``: below ``streamjoin_research``."""
    why: str = ""
    """Why ours differs, if that is known. Of a row that agrees: what to know besides."""
    data: str = ""
    """Which data that cannot be had were replaced, and by what."""
    slow: bool = False
    """Its quick setting differs from its full one."""

    @property
    def name(self) -> str:
        return f"{self.paper}:{self.figure}"

    @property
    def rule_text(self) -> str:
        return "; ".join(check.text for check in self.rule)

    def compare(self, *, quick: bool = False) -> Comparison:
        """Compute ours, and judge it."""
        ours = self.ours(quick)
        return Comparison(self, ours, tuple(check for check in self.rule if not check.holds(ours.values)))


@dataclass(frozen=True)
class Comparison:
    """A row, computed."""

    row: Row
    ours: Ours
    failed: tuple[Check, ...]
    """Of the rule."""

    @property
    def agrees(self) -> bool:
        return not self.failed

    @property
    def verdict(self) -> str:
        """``agrees``, or ``differs: `` and each inequality that does not hold."""
        return "agrees" if self.agrees else f"differs: not so that {'; nor that '.join(check.text for check in self.failed)}"

    def to_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "paper": row.paper,
            "figure": row.figure,
            "section": row.section,
            "part": row.part,
            "kind": row.kind.value,
            "parameters": row.parameters,
            "says": row.says,
            "ours": self.ours.text,
            "values": dict(self.ours.values),
            "rule": [{"text": check.text, "holds": check not in self.failed} for check in row.rule],
            "agrees": self.agrees,
            "why": row.why,
            "data": row.data,
            "modules": list(row.modules),
        }


def equal(name: str, expected: Any, *, text: str = "") -> Check:
    """Exactly what the paper prints."""
    return Check(text or f"{name} is {expected}", lambda values: bool(values[name] == expected))


def near(name: str, expected: float, relative: float) -> Check:
    """What the paper prints, to within a part of it."""
    return Check(f"{name} within {relative:.0%} of {expected:g}", lambda values: math.isclose(values[name], expected, rel_tol=relative))


def holds(text: str, predicate: Callable[[Values], bool]) -> Check:
    """Any other inequality, in words."""
    return Check(text, predicate)


def figures(values: Sequence[float], digits: int = 2) -> str:
    """``1, 2.5, 3``: numbers as short as they are exact to so many digits after the point."""
    return ", ".join(number(value, digits) for value in values)


def number(value: float, digits: int = 2) -> str:
    """One of :func:`figures`."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def matching(rows: Sequence[Row], wanted: str) -> list[Row]:
    """The rows of one figure: ``002:11``, ``11`` where one paper alone has it, ``002:10`` for 10a to 10d, ``004:table3``, ``002``.

    Raises ValueError where there is none, or papers share it; with what could be meant.
    """
    paper, _, figure = wanted.strip().rpartition(":")
    if not paper and figure in PAPERS:
        return [row for row in rows if row.paper == figure]
    asked = _plain(figure)
    found = [row for row in rows if row.paper == (paper or row.paper) and any(asked == name for name in _names(row.figure))]
    papers = sorted({row.paper for row in found})
    if not found:
        there = ", ".join(dict.fromkeys(row.name for row in rows if row.paper == (paper or row.paper)) or PAPERS)
        raise ValueError(f"{wanted!r} is no figure of the papers; choose one of {there}")
    if len(papers) > 1:
        raise ValueError(f"{wanted!r} is in several papers; say {' or '.join(f'{name}:{figure}' for name in papers)}")
    return found


def _names(figure: str) -> Iterator[str]:
    """What a figure answers to: as it is, and without the letter of its part."""
    plain = _plain(figure)
    yield plain
    if plain[-1:].isalpha() and plain[:-1].isdigit():
        yield plain[:-1]


def _plain(figure: str) -> str:
    plain = "".join(figure.lower().split()).replace(".", "")
    for prefix in ("figure", "fig"):
        plain = plain.removeprefix(prefix)
    return plain
