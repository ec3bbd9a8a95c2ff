"""The plan of joins as data: what it says is what the condition means, by DuckDB, and it is the same whoever prints it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot
from click.testing import CliRunner

from cases import how_many
from harness import join_of, make_job
from random_joins import any_way
from streamjoin.cli import main
from streamjoin.compilation import compile_job, with_checkpoint
from streamjoin.job import Job
from streamjoin.language.predicate import MainKind
from streamjoin.manifest import parse
from streamjoin.plan.explaining import explained
from streamjoin.plan.join_plan import JoinPlan, JoinPlanError, Stage
from streamjoin.plan.join_plan import Path as JoinPath
from streamjoin.plan.of_job import join_plan

ROOT = Path(__file__).resolve().parent.parent
PLANS = Path(__file__).with_name("plans")
EXAMPLES = sorted(
    path for path in (ROOT / "examples").rglob("*.yaml") if "kind: StreamJoin" in path.read_text() and "testdata" not in path.parts
)
COLUMNS = ("rid", "n", "m")


def jobs_of(example: Path) -> list[Job]:
    documents = [document for document in parse(example.read_text()) if document.manifest is not None]
    jobs = [compile_job(with_checkpoint(document.manifest)) for document in documents]
    return [job.lying(job.layouts[0]) for job in jobs]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_plans_of_examples_are_as_they_were(example: Path) -> None:
    """``python tests/test_join_plan.py`` writes them anew."""
    assert shown(example) == kept(example).read_text()


def kept(example: Path) -> Path:
    return PLANS / f"{'-'.join(example.relative_to(ROOT / 'examples').with_suffix('').parts)}.txt"


def shown(example: Path) -> str:
    return "\n".join(explained(join_plan(job, 1)) for job in jobs_of(example))


def condition(rng: random.Random, names: list[str]) -> str:
    """Of parts that compare two streams, so that all are connected, and some others."""

    def term(name: str) -> str:
        return rng.choice([f"{name}.n", f"{name}.m", f"{name}.n + {rng.randint(-3, 3)}", f"{name}.m - {name}.n"])

    def part(one: str, other: str) -> str:
        forms = ["{} = {}", "{} < {}", "{} >= {}", "{} <> {}", f"abs({{}} - {{}}) <= {rng.randint(0, 3)}"]
        return rng.choice(forms).format(term(one), term(other))

    parts = [part(rng.choice(names[:at]), names[at]) for at in range(1, len(names))]
    for _ in range(rng.randint(0, 2)):
        one, other = rng.sample(names, 2)
        parts.append(rng.choice([part(one, other), f"({part(one, other)} OR {term(one)} > 5)", f"{term(one)} IS NOT NULL"]))
    if len(names) > 2:
        parts.append(" + ".join(f"{name}.n" for name in rng.sample(names, 3)) + f" <= {rng.randint(5, 25)}")
    rng.shuffle(parts)
    return " AND ".join(parts)


def drawn_plan(seed: int, root: Path) -> tuple[list[str], str, JoinPlan]:
    rng = random.Random(seed)
    names = [f"s{number}" for number in range(rng.randint(2, 5))]
    text = condition(rng, names)
    files = {"files": {"path": str(root / "in"), "format": "json"}}
    streams = [{"name": name, "source": files, "schema": "rid BIGINT, n BIGINT, m BIGINT"} for name in names]
    output = {"select": [f"{name}.rid AS r{number}" for number, name in enumerate(names)]}
    joins = [join_of(root, on=text, window={"unbounded": True}, output=output)]
    job = make_job(root, streams=streams, joins=joins, model="square", workers=2)
    job = job.lying(rng.choice(job.layouts))
    path_plans = {placed.join: tuple(any_way(placed.graph, head, rng) for head in range(len(names))) for placed in job.multiway}
    return names, text, join_plan(job, 2, path_plans)


def database(rng: random.Random, names: list[str]) -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    for name in names:
        found.execute(f"CREATE TABLE {name} (rid BIGINT, n BIGINT, m BIGINT)")
        rows = [(rid, *(None if rng.random() < 0.1 else rng.randint(0, 9) for _ in "nm")) for rid in range(7)]
        found.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
    return found


def in_duckdb(sql: str) -> str:
    (text,) = sqlglot.transpile(sql, read="spark", write="duckdb")
    return text


def qualified(sql: str, stream: str) -> str:
    """An expression over bare columns, with those of a stream."""
    tree = sqlglot.parse_one(sql, read="spark")
    for each in tree.find_all(sqlglot.exp.Column):
        each.set("table", sqlglot.exp.to_identifier(stream))
    return tree.sql("duckdb")


def probed(plan: JoinPlan, stage: Stage) -> list[str]:
    """What a stage states."""
    main = stage.main
    ends = sorted((plan.arrangements[each] for each in (stage.arrangement, stage.probing)), key=lambda each: each.side)
    names = [plan.streams[each.stream].name for each in ends]
    found = []
    for sqls in zip(*(key.sql for key in main.keys), strict=True):
        left, right = (qualified(sql, name) for sql, name in zip(sqls, names, strict=True))
        if main.kind is MainKind.NOT_EQUAL:
            found.append(f"{right} <> {left}")
        else:
            found += [] if main.low is None else [f"({right}) - ({left}) {'>' if main.low_strict else '>='} {main.low}"]
            found += [] if main.high is None else [f"({right}) - ({left}) {'<' if main.high_strict else '<='} {main.high}"]
    return found + [f"({in_duckdb(check)})" for check in stage.checks]


def results_of(plan: JoinPlan, path: JoinPath, names: list[str]) -> str:
    """A path as a query."""
    visited = [plan.streams[path.stream].name, *(plan.streams[plan.arrangements[stage.arrangement].stream].name for stage in path.stages)]
    stated = [text for stage in path.stages for text in probed(plan, stage)] or ["TRUE"]
    return f"SELECT {', '.join(f'{name}.rid' for name in names)} FROM {', '.join(visited)} WHERE {' AND '.join(stated)}"


@pytest.mark.parametrize("seeds", range(10))
def test_each_path_finds_what_the_condition_says(seeds: int, tmp_path: Path) -> None:
    count = how_many(50, of=500) // 10
    for seed in range(seeds * count, (seeds + 1) * count):
        names, text, plan = drawn_plan(seed, tmp_path)
        assert json.loads(json.dumps(plan.to_json())) == plan.to_json()
        found = database(random.Random(seed), names)
        query = f"SELECT {', '.join(f'{name}.rid' for name in names)} FROM {', '.join(names)} WHERE {in_duckdb(text)}"
        expected = Counter(found.execute(query).fetchall())
        for path in plan.joins[0].paths:
            assert Counter(found.execute(results_of(plan, path, names)).fetchall()) == expected, (seed, text, explained(plan))


def test_each_pair_of_new_tuples_is_found_by_one_path(tmp_path: Path) -> None:
    """Of any two streams, one's delta meets the state alone, the other's the delta, too."""
    for seed in range(50):
        _, _, plan = drawn_plan(seed, tmp_path)
        seen = Counter(
            frozenset([path.stream, plan.arrangements[stage.arrangement].stream])
            for path in plan.joins[0].paths
            for stage in path.stages
            if stage.with_delta
        )
        assert set(seen.values()) == {1}


def test_joins_without_a_common_key_find_their_pairs_by_indexes(tmp_path: Path) -> None:
    conditions = {"same": "l.n = r.n", "near": "abs(l.m - r.m) <= 2"}
    files = {"files": {"path": str(tmp_path / "in"), "format": "json"}}
    streams = [{"name": name, "source": files, "schema": "rid BIGINT, n BIGINT, m BIGINT"} for name in "lr"]
    output = {"select": ["l.rid AS one", "r.rid AS other"]}
    joins = [join_of(tmp_path / name, name=name, on=text, window={"unbounded": True}, output=output) for name, text in conditions.items()]
    job = make_job(tmp_path, streams=streams, joins=joins, model="square", workers=2)
    plans = [join_plan(job.lying(layout), 2) for layout in job.layouts]
    assert [len(plan.arrangements) for plan in plans] == [2, 4]
    assert ["by an index on m with" in explained(plan) for plan in plans] == [True, False]
    found = database(random.Random(0), ["l", "r"])
    for plan in plans:
        for join in plan.joins:
            expected = Counter(found.execute(f"SELECT l.rid, r.rid FROM l, r WHERE {conditions[join.name]}").fetchall())
            for path in join.paths:
                assert Counter(found.execute(results_of(plan, path, ["l", "r"])).fetchall()) == expected


def broken(plan: JoinPlan, **fields: Any) -> JoinPlan:
    """With another first stage of its first path."""
    (join,) = plan.joins
    first, *others = join.paths
    stages = (replace(first.stages[0], **fields), *first.stages[1:])
    return replace(plan, joins=(replace(join, paths=(replace(first, stages=stages), *others)),))


def test_a_plan_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    plan = next(plan for seed in range(100) if len((plan := drawn_plan(seed, tmp_path)[2]).streams) == 3)
    plan.check()
    last = next(number for number, each in enumerate(plan.arrangements) if each.stream == 2)
    bad = [
        (broken(plan, arrangement=99), "stage 0: no arrangement 99"),
        (broken(plan, probing=last), "stage 0: probes like a tuple of stream 2, and only"),
        (replace(plan, arrangements=(replace(plan.arrangements[0], stream=7), *plan.arrangements[1:])), "arrangement 0: no stream 7"),
        (replace(plan, joins=(replace(plan.joins[0], paths=plan.joins[0].paths[:1]),)), "one of each of two streams or more"),
    ]
    for each, message in bad:
        with pytest.raises(JoinPlanError, match=message):
            each.check()


def test_the_command_shows_it() -> None:
    result = CliRunner().invoke(main, ["plan", str(ROOT / "examples/three-streams.yaml"), "--explain"])
    assert result.exit_code == 0
    assert "\njoin delivered: pairs\n  delta of orders\n    repartition, probe arrangement" in result.output


if __name__ == "__main__":
    PLANS.mkdir(exist_ok=True)
    for path in EXAMPLES:
        kept(path).write_text(shown(path))
