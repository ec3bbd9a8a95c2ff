"""``streamjoin bench paper``: rows of the comparison with the papers, and ``docs/papers.md``, which is what they came to.

Rows that take long are computed in their smaller setting; what they come to in the full one is not checked here, only whether they agree.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import tomllib
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import streamjoin
import streamjoin_research
from streamjoin.cli import main
from streamjoin.scheme import varietal
from streamjoin_research.papers import report
from streamjoin_research.papers.catalogue import ALGORITHMS, NOT_COMPARED, ROWS
from streamjoin_research.papers.optimum import Band, fewest_tasks, matrix_of
from streamjoin_research.papers.rows import Kind, Ours, Row, equal, holds, matching, near
from streamjoin_research.papers.structures import STRUCTURES
from streamjoin_research.scheme import printed

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "papers.md"
DETERMINISTIC = [row for row in ROWS if row.kind is not Kind.RUN]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bench", "paper", *arguments])


def a_row(value: float, *, expected: float = 3, kind: Kind = Kind.ARITHMETIC) -> Row:
    ours = Ours(f"{value}", {"x": value})
    return Row("002", "3", "3.1", "a part", kind, "with | this", "3", lambda _: ours, (equal("x", expected),), ("job.py",))


@pytest.mark.parametrize("row", DETERMINISTIC, ids=report.subject)
def test_the_page_says_what_a_row_comes_to(row: Row) -> None:
    line = report.lines_of(PAGE.read_text(encoding="utf-8")).get(report.escaped(report.subject(row)))
    assert line is not None, "not on the page; make it again: streamjoin bench paper --document docs/papers.md"
    now = [report.escaped(cell) for cell in report.cells(row.compare(quick=row.slow))]
    if row.slow:
        now[report.OURS] = line[report.OURS]
    assert now == line


def test_the_page_has_all_rows_and_no_other() -> None:
    assert list(report.lines_of(PAGE.read_text(encoding="utf-8"))) == [report.escaped(report.subject(row)) for row in ROWS]


def test_the_page_has_the_table_of_algorithms() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| {paper} | {what} | `{modules}` |" in text for paper, what, modules in ALGORITHMS)


def test_rows_have_names_of_their_own_and_rules() -> None:
    subjects = [report.subject(row) for row in ROWS]
    assert len(set(subjects)) == len(subjects)
    assert all(row.rule for row in ROWS)


def test_modules_are_there() -> None:
    product, research = (Path(package.__file__).parent for package in (streamjoin, streamjoin_research))
    named = {module for row in ROWS for module in row.modules}
    for _, _, modules in ALGORITHMS:
        named |= {module.strip() for module in modules.split(",")}
    paths = {
        module: research / module.removeprefix("research/") if module.startswith("research/") else product / module for module in named
    }
    assert [module for module, path in sorted(paths.items()) if not path.exists()] == []


def test_the_distribution_has_all_packages() -> None:
    source = Path(streamjoin_research.__file__).parent
    listed = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [file.parent.relative_to(source.parent) for file in source.rglob("__init__.py")]
    assert sorted(listed) == sorted(".".join(folder.parts) for folder in folders if "build" not in folder.parts)


def test_rules_fail_where_a_number_differs() -> None:
    assert a_row(3).compare().agrees
    comparison = a_row(4).compare()
    assert not comparison.agrees
    assert comparison.verdict == "differs: not so that x is 3"
    assert near("x", 100, 0.05).holds({"x": 104.9})
    assert not near("x", 100, 0.05).holds({"x": 106})
    assert not holds("x grows", lambda values: values["x"] > 3).holds({"x": 3})


@pytest.mark.parametrize("row", [row for row in DETERMINISTIC if not row.slow], ids=report.subject)
def test_a_rule_fails_on_other_numbers(row: Row) -> None:
    values = row.ours(True).values
    chance = random.Random(0)
    for _ in range(5):
        replaced = {name: _replaced(value, chance) for name, value in values.items()}
        if any(not _holds(check.holds, replaced) for check in row.rule):
            return
    pytest.fail(f"{row.rule_text}: holds of anything")


def _replaced(value: object, chance: random.Random) -> object:
    if isinstance(value, dict):
        return {name: _replaced(inner, chance) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, chance) for inner in value]
    return not value if isinstance(value, bool) else "" if isinstance(value, str) else chance.uniform(-1000, 1000)


def _holds(predicate: object, values: dict[str, object]) -> bool:
    assert callable(predicate)
    try:
        return bool(predicate(values))
    except (ValueError, ZeroDivisionError):
        return False


def test_figures_are_named_as_papers_name_them() -> None:
    assert {row.name for row in matching(ROWS, "002:4")} == {"002:4"}
    assert matching(ROWS, "002:Fig. 4") == matching(ROWS, "002:figure 4")
    assert matching(ROWS, "002:Theorem 4") == matching(ROWS, "002:theorem4") != []
    assert {row.paper for row in matching(ROWS, "002")} == {"002"}


def test_a_figure_of_several_papers_or_of_none_is_refused() -> None:
    rows = [a_row(3), dataclasses.replace(a_row(3), paper="004")]
    with pytest.raises(ValueError, match="'3' is in several papers; say 002:3 or 004:3"):
        matching(rows, "3")
    with pytest.raises(ValueError, match="'99' is no figure of the papers; choose one of 002:3, 004:3"):
        matching(rows, "99")


def test_the_command_prints_one_figure() -> None:
    done = bench("--figure", "002:4")
    assert done.exit_code == 0
    assert "<1,2,1,row> with 10, 10, 9.5 GB" in done.output
    assert done.output.endswith("1 of 1 rows agree (C 1 of 1).\n")


def test_the_command_for_machines() -> None:
    done = bench("--figure", "002:3", "--json")
    (row,) = json.loads(done.output)["rows"]
    assert (row["agrees"], row["values"]["Eq. 9"], row["values"]["printed Alg. 1"]) == (True, 4, 2)
    assert row["rule"] == [{"text": "Eq. 9 is 4", "holds": True}]


def test_a_row_that_differs_is_no_failure_of_the_command() -> None:
    done = bench("--figure", "002:Theorem 2", "--quick")
    assert done.exit_code == 0
    assert "DIFFERS" in done.output
    assert "not so  no varietal matrix takes fewer tasks than the four P_gamma" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--figure", "002:99"], "'002:99' is no figure of the papers"),
        (["--kinds", "X"], "'X' must be made of the letters C, S and R"),
        (["--figure", "002:3", "--kinds", "S"], "has no row of the kinds S; leave out --kinds"),
        (["--quick", "--document", "page.md"], "leave out --quick"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], says: str) -> None:
    done = bench(*arguments)
    assert done.exit_code == 2
    assert says in done.output


def test_pictures_are_drawn(tmp_path: Path) -> None:
    done = bench("--figure", "002:4", "--picture", str(tmp_path / "drawn"))
    path = tmp_path / "drawn" / "002-4-alg--1.png"
    assert f"drawn: {path}" in done.output
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_page_keeps_the_lines_of_rows_that_were_not_computed(tmp_path: Path) -> None:
    path = tmp_path / "papers.md"
    assert bench("--figure", "002:3", "--document", str(path)).exit_code == 0
    assert bench("--figure", "002:4", "--document", str(path)).exit_code == 0
    lines = report.lines_of(path.read_text(encoding="utf-8"))
    assert list(lines) == ["002 Fig. 3, Eq. 9 (C)", "002 Fig. 4, Alg. 1 (C)"]
    assert "2 of 2 rows agree" in path.read_text(encoding="utf-8")


def test_cells_may_hold_any_text() -> None:
    row = a_row(3)
    text = "| " + " | ".join(report.escaped(cell) for cell in report.cells(row.compare())) + " |"
    assert report.lines_of(text)[report.escaped(report.subject(row))][1] == r"with \| this"


def coverings(band: Band, capacity: int) -> int:
    """The fewest disjoint rectangles that hold all results, by every choice of so many of all rectangles."""
    rows, columns = len(band), band[-1][1] + 1
    results = {(row, column) for row, (low, high) in enumerate(band) for column in range(low, high + 1)}
    sides = [list(combinations(range(size + 1), 2)) for size in (rows, columns)]
    held = {
        frozenset(cell for cell in product(range(top, bottom), range(begin, end)) if cell in results)
        for (top, bottom), (begin, end) in product(*sides)
        if bottom - top + end - begin <= capacity
    } - {frozenset()}
    for count in range(1, len(results) + 1):
        for chosen in combinations(held, count):
            if sum(map(len, chosen)) == len(results) and frozenset().union(*chosen) == results:
                return count
    raise AssertionError("single cells cover all")


@pytest.mark.parametrize("seed", range(12))
def test_the_fewest_tasks_are_those_of_all_coverings(seed: int) -> None:
    chance = random.Random(seed)
    stairs = [(0, seed % 2)]
    for _ in range(3):
        first, last = stairs[-1]
        low = chance.randint(first, min(2, last + 1))
        stairs.append((low, chance.randint(max(low, last), 2)))
    band = (*stairs[:-1], (stairs[-1][0], 2))
    assert matrix_of(band).rows == 4
    assert fewest_tasks(band, 4, 12) == coverings(band, 4)


def test_four_primaries_are_the_best_of_those_that_alg_1_tries() -> None:
    for left, right, capacity in product(range(1, 12), range(1, 12), (4, 5, 10)):
        half = capacity / 2
        tried = []
        for primary, secondary in ((left, right), (right, left)):
            for parts in {int(np.ceil(primary / half)), int(primary / half)} - {0}:
                width = capacity - primary / parts
                if width <= 0:
                    continue
                lines = int(secondary / width + 1e-9)
                rest = secondary - lines * width
                # The thin line, of width rest, is cut across so that a task of it holds no more than the others.
                thin = 0 if rest <= 1e-9 else int(np.ceil(primary / (capacity - rest) - 1e-9))
                tried.append(lines * parts + thin)
        assert printed.four_primaries(left, right, capacity).tasks == min(tried), (left, right, capacity)


def test_consumption_bound_is_refused_below_two() -> None:
    assert printed.consumption_bound(3, 3) == 1.5
    with pytest.raises(ValueError, match="rows 1 and columns 5 must be at least 2"):
        printed.consumption_bound(1, 5)


def test_readj_evens_loads_by_moves_and_swaps() -> None:
    even = printed.readj([6, 5, 4, 3, 2], [0, 0, 0, 1, 1], 2, [0.0, 0.2])
    assert even.largest == 10
    # Two tasks of 7 + 5 and 6 + 2: no move of a key helps, a swap of 7 and 6, or 5 and 2, does.
    swapped = printed.readj([7, 5, 6, 2], [0, 0, 1, 1], 2, [0.0])
    assert (swapped.largest, swapped.moved) in {(11.0, 13.0), (11, 13)}
    with pytest.raises(ValueError, match="sigmas: there is none"):
        printed.readj([1], [0], 1, [])


def test_printed_alg_2_takes_no_fewer_tasks_than_any_tiling() -> None:
    band = ((0, 1), (0, 3), (1, 3), (3, 3), (3, 3))
    matrix = matrix_of(band)
    assert printed.dichotomy(matrix, printed.by_equation_9(6)).tasks == 3
    assert fewest_tasks(band, 6, 3) == 2
    assert varietal.square(matrix.left, matrix.right, 6).tasks == 4


def test_every_kind_is_explained_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert re.search(r"^\d+ of \d+ rows agree \(", text, re.MULTILINE)
    assert all(f"- {kind.value}: {meaning}." in text for kind, meaning in report.KINDS.items())


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_find_all_partners_and_the_tree_stays_flat(name: str) -> None:
    chance = random.Random(8)
    # Ascending keys are the worst for a tree that is not balanced.
    keys = [*range(200), *(chance.randrange(300) for _ in range(300))]
    structure = STRUCTURES[name]()
    held: Counter[int] = Counter()
    for key in keys:
        before = structure.comparisons
        assert structure.probe(key) == held[key]
        steps = structure.comparisons - before - held[key]
        if name == "tree":
            assert steps <= 1.45 * np.log2(len(held) + 2)
        elif name == "map":
            assert steps == 1
        else:
            assert steps + held[key] == held.total()
        structure.insert(key)
        held[key] += 1


def test_what_is_not_compared_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| {paper} | {figure} | {why} |" in text for paper, figure, why in NOT_COMPARED)
