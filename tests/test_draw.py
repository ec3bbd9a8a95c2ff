"""The picture of a scheme: that it is one, shows every task and the result band, and is the same every time."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from streamjoin.api.key_spaces import KeySpace, key_spaces_of, statistics_of
from streamjoin.cli import wording
from streamjoin.cli.draw import draw, render_change, render_scheme
from streamjoin.elastic.plan import Plan
from streamjoin.elastic.planner import follow
from streamjoin.language.ddl import parse_schema
from streamjoin.language.graph import join_graph
from streamjoin.language.layout import Layout
from streamjoin.language.predicate import Encoding, KeyExpression, MainKind, MainPredicate
from streamjoin.language.sides import LEFT
from streamjoin.language.types import DataType, TypeName
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.models import MODELS, plan_for_capacity, plan_for_tasks
from streamjoin.scheme.statistics import Histogram, SideStatistics, Statistics

KEY = KeyExpression(("k",), (DataType(TypeName.BIGINT),), Encoding.INTEGER)
HASH = KeyExpression(("k",), (DataType(TypeName.BIGINT),), Encoding.HASH)
BAND = MainPredicate(MainKind.RANGE, (KEY, KEY), -50, 50, text="abs(l.k - r.k) <= 50")
ALL = MainPredicate(MainKind.ALL)


def band(statistics: Statistics) -> list[KeySpace]:
    return [KeySpace.alone(BAND, statistics)]


def known(left: float = 3000, right: float = 2000) -> Statistics:
    rng = np.random.default_rng(50)
    sides = (SideStatistics(tuples, Histogram.from_sample(rng.normal(0, 1000, 5000).astype(np.int64), 200)) for tuples in (left, right))
    return Statistics(tuple(sides))


def texts(svg: bytes) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())


def pixels(png: bytes) -> np.ndarray:
    return matplotlib.image.imread(io.BytesIO(png), format="png")


@pytest.mark.parametrize("tasks", [1, 6, 30])
@pytest.mark.parametrize(
    ("main", "statistics"),
    [
        (BAND, known()),
        (MainPredicate(MainKind.RANGE, (KEY, KEY), 1, None), known()),
        (MainPredicate(MainKind.RANGE, (HASH, HASH), 0, 0), Statistics((SideStatistics(70), SideStatistics(99)))),
        (ALL, Statistics((SideStatistics(0), SideStatistics(0)))),
    ],
)
def test_every_task_has_its_number_in_the_matrix_and_beside_its_bar(tasks: int, main: MainPredicate, statistics: Statistics) -> None:
    scheme = plan_for_tasks("adsp", statistics, main, tasks)
    found = texts(render_scheme("svg", scheme, statistics, [KeySpace.alone(main, statistics)]))
    for task in range(scheme.tasks):
        assert found.count(str(task)) >= 2, (task, found)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("main", [BAND, ALL])
def test_every_model_is_drawn(model: str, main: MainPredicate) -> None:
    scheme = plan_for_tasks(model, known(), main, 5)
    found = texts(render_scheme("svg", scheme, known(), [KeySpace.alone(main, known())]))
    for task in range(scheme.tasks):
        assert found.count(str(task)) >= 2, (task, found)


def test_a_change_is_drawn_as_both_schemes_and_who_goes_on_keeps_the_colour() -> None:
    first = Plan.initial(plan_for_tasks("square", known(1000, 0), ALL, 4))
    plan = follow(first, plan_for_tasks("square", known(1000, 0), ALL, 5), known(1000, 0), ALL).plan
    assert any(area.units[LEFT].gaps for area in plan.scheme.areas)
    picture = render_change("svg", first.scheme, plan, known(1000, 0), [KeySpace.alone(ALL, known(1000, 0))])
    found = texts(picture)
    assert "left ⋈ right by square: 4 tasks" in found
    assert "left ⋈ right by square: 5 tasks" in found
    fills = Counter(re.findall(r"fill: (#[0-9a-f]{6})", picture.decode()))
    # A worker's area and bar, twice; the new one's four parts and bar.
    assert sorted(count for colour, count in fills.items() if count in (4, 5))[:5] == [4, 4, 4, 4, 5]


def test_the_title_says_what_is_joined_how_and_by_how_many() -> None:
    statistics = known()
    scheme = plan_for_tasks("adsp", statistics, BAND, 4)
    found = texts(render_scheme("svg", scheme, statistics, [KeySpace.alone(BAND, statistics, ("orders", "payments"))], Capacity(2000)))
    assert "orders ⋈ payments by adsp: 4 tasks" in found
    assert any("abs(l.k - r.k) &lt;= 50" in text and scheme.summary.replace("<", "&lt;").replace(">", "&gt;") in text for text in found)
    assert {"largest", "mean (dashed)", "capacity", "2,000"} <= set(found)


def test_the_same_scheme_gives_the_same_bytes() -> None:
    statistics = known()
    scheme = plan_for_tasks("adsp", statistics, BAND, 4)
    for form in ("svg", "png"):
        assert render_scheme(form, scheme, statistics, band(statistics)) == render_scheme(form, scheme, statistics, band(statistics))


def test_results_are_darker_than_what_is_covered_for_nothing() -> None:
    statistics = known()
    whole = plan_for_capacity("square", statistics, BAND, 1e9)
    assert whole.tasks == 1
    picture = pixels(render_scheme("png", whole, statistics, band(statistics)))[:, :, :3].sum(axis=2)
    shades, counts = np.unique(picture.round(2), return_counts=True)
    covered, results = shades[np.argsort(-counts)][1:3]
    assert results < covered
    # A band of 100 among keys of deviation 1000 is about a thirtieth of the matrix.
    share = counts[shades == results] / (counts[shades == results] + counts[shades == covered])
    assert 0.01 < share < 0.1


@pytest.mark.parametrize("form", ["svg", "png"])
def test_the_suffix_decides_the_format(tmp_path: Path, form: str) -> None:
    statistics = known()
    path = tmp_path / "new" / f"plan.{form}"
    draw(path, lambda form: render_scheme(form, plan_for_tasks("adsp", statistics, BAND, 3), statistics, band(statistics)))
    assert path.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"plan\.gif: its suffix must be one of \.svg, \.png"):
        draw(tmp_path / "plan.gif", lambda form: b"")


def test_hundreds_of_tasks_are_drawn() -> None:
    statistics = known()
    scheme = plan_for_tasks("hash", statistics, BAND, 200)
    assert scheme.tasks > 128
    assert len(render_scheme("png", scheme, statistics, band(statistics))) > 10_000


@pytest.mark.parametrize("model", MODELS)
def test_three_streams_have_a_matrix_for_each_part_of_the_condition_that_finds_results(model: str) -> None:
    schemas = {name: parse_schema("id BIGINT, k INT") for name in ("orders", "payments", "shipments")}
    layout = Layout.of_graph(join_graph("orders.id = payments.id AND abs(payments.k - shipments.k) <= 50", schemas))
    of_band = known().sides
    key_spaces = key_spaces_of(layout, tuple(schemas), (SideStatistics(3000), SideStatistics(3000), *of_band))
    statistics = statistics_of(key_spaces)
    scheme = plan_for_tasks(model, statistics, layout.main, 5)
    found = texts(render_scheme("svg", scheme, statistics, key_spaces, Capacity(4000)))
    assert f"orders ⋈ payments ⋈ shipments by {model}: {wording.plural(scheme.tasks, 'task')}" in found
    assert {"orders.id = payments.id", "abs(payments.k - shipments.k) &lt;= 50"} <= set(found)
    assert "shipments by k: 2,000 tuples, keys, to the scale of their tuples" in found
    for task in range(scheme.tasks):
        assert found.count(str(task)) >= 2, (task, found)
    change = render_change("svg", scheme, Plan.initial(scheme), statistics, key_spaces)
    assert len(re.findall("orders.id = payments.id", change.decode())) == 2
