"""Which tests run: those that every change must pass, or all, or a shard of all.

``make test`` has ``STREAMJOIN_TESTS=change``: every test but those that need a *real system* (Spark, an API server, Kafka, ...), of which
each has at most :data:`MOST_SMOKE` smoke tests, those that ``tiers.toml`` leaves to the night, and those of documents, releases and
research, which ``make docs-check``, ``make release-check`` and ``make research-check`` run. Without the variable everything runs
(``make test-all``), or what the command line names. ``STREAMJOIN_SHARD=2/6`` is the second of six parts of that, by files.

Always holds: every test runs in ``make test-all``, in one shard; every line of ``tiers.toml`` names a test that is there; no system is
without a smoke test (:func:`problems`, which each whole run asks).
"""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

SYSTEMS = ("spark", "apiserver", "helm", "prometheus", "kafka", "postgres", "cassandra", "s3", "chromium")
"""Marks: the test needs this real system."""

OF_FIXTURES = {
    "api_server": "apiserver",
    "broker": "kafka",
    "cassandra": "cassandra",
    "chromium": "chromium",
    "postgres": "postgres",
    "s3": "s3",
    "s3_server": "s3",
}
"""The system that a fixture starts: its tests need no mark."""

MOST_SMOKE = 10
"""Smoke tests of a system."""

EVERY = pytest.StashKey[dict[str, tuple[str, ...]]]()
"""The systems of every test that was collected, by its name."""

NAME = pytest.StashKey[str]()
"""Of an item, as ``tiers.toml`` has it: without ``tests/``, and without the group that xdist writes behind it."""

CHECKS = ("docs", "release", "research")
"""Files of tests that have a make target of their own."""


@dataclass(frozen=True)
class Tiers:
    """``tiers.toml``. Tests are named without ``tests/``; a name without parameters stands for all of a test's cases."""

    smoke: dict[str, tuple[str, ...]]
    """By system."""
    nightly: tuple[str, ...]
    checks: dict[str, tuple[str, ...]]
    """Files, by :data:`CHECKS`."""

    @classmethod
    @cache  # it is asked once for each path that is collected
    def read(cls, path: Path = TESTS / "tiers.toml") -> Tiers:
        tables = tomllib.loads(path.read_text())
        nightly = tuple(name for names in tables["nightly"].values() for name in names)
        return cls(
            {system: tuple(names) for system, names in tables["smoke"].items()},
            nightly,
            {check: tuple(names) for check, names in tables["checks"].items()},
        )

    def runs(self, name: str, systems: Collection[str], tier: str) -> bool:
        """Whether a test runs in a tier: ``change``, one of :data:`CHECKS`, or ``""``, which has all. O(1) but for the tables' sizes."""
        if tier == "":
            return True
        file = name.partition("::")[0]
        check = next((check for check, files in self.checks.items() if file in files), None)
        if check or tier != "change":
            return check == tier
        if named(name, self.nightly):
            return False
        return not systems or any(named(name, names) for names in self.smoke.values())


def named(name: str, names: Collection[str]) -> bool:
    """Whether one of the names is this test's, or that of all of its cases."""
    return name in names or name.partition("[")[0] in names


def systems_of(item: pytest.Item) -> tuple[str, ...]:
    """The real systems that a test needs, by its marks, its fixtures and the stores that these are made for."""
    called = getattr(item, "callspec", None)
    given = {value for value in called.params.values() if isinstance(value, str)} if called else set()
    by_fixture = {OF_FIXTURES[fixture] for fixture in getattr(item, "fixturenames", ()) if fixture in OF_FIXTURES}
    return tuple(system for system in SYSTEMS if item.get_closest_marker(system) or system in by_fixture or system in given)


def shard_of(files: Iterable[tuple[str, int]], shards: int) -> dict[str, int]:
    """Deals files, each with its number of tests, to so many shards, 0 on: the largest first, each to the shard with the fewest tests."""
    loads = [0] * shards
    dealt: dict[str, int] = {}
    for file, tests in sorted(files, key=lambda one: (-one[1], one[0])):
        dealt[file] = loads.index(min(loads))
        loads[dealt[file]] += tests
    return dealt


def asked_shard(text: str) -> tuple[int, int]:
    """``2/6`` as (1, 6). Raises ValueError, whose text is for people."""
    number, _, shards = text.partition("/")
    if not (number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise ValueError(f'STREAMJOIN_SHARD: "{text}" is no shard; write 2/6 for the second of six')
    return int(number) - 1, int(shards)


def problems(tiers: Tiers, tests: dict[str, tuple[str, ...]]) -> list[str]:
    """What is wrong with the tables, for the tests that there are and the systems that each needs."""
    found = []
    plain = {name.partition("[")[0] for name in tests}
    for system in SYSTEMS:
        count = sum(named(name, tiers.smoke.get(system, ())) for name in tests)
        if not 1 <= count <= MOST_SMOKE:
            found.append(f"smoke.{system} has {count} tests; it takes 1 to {MOST_SMOKE}")
        needless = [name for name, needs in tests.items() if named(name, tiers.smoke.get(system, ())) and system not in needs]
        found += [f"smoke.{system}: {name} does not need it; mark the test, or remove the line" for name in needless]
    every = [*tiers.nightly, *(name for names in tiers.smoke.values() for name in names)]
    found += [f"{name} is no test; mend the name, or remove it" for name in every if name not in tests and name not in plain]
    found += [f"{name} is named twice; remove one" for name, count in Counter(every).items() if count > 1]
    checked = [file for names in tiers.checks.values() for file in names]
    found += [f"checks: {file} is not there; mend the name" for file in checked if not (TESTS / file).exists()]
    return found


def choose(items: Sequence[pytest.Item], *, tier: str, shard: str, tiers: Tiers) -> list[pytest.Item]:
    """The items that run. Raises ValueError for a tier or a shard that cannot be."""
    if tier not in ("", "change", *CHECKS):
        raise ValueError(f'STREAMJOIN_TESTS: "{tier}" is no tier; write change, docs, release or research, or leave it out for all')
    chosen = [item for item in items if tiers.runs(item.stash[NAME], systems_of(item), tier)]
    if shard:
        number, shards = asked_shard(shard)
        dealt = shard_of(Counter(item.nodeid.partition("::")[0] for item in chosen).items(), shards)
        chosen = [item for item in chosen if dealt[item.nodeid.partition("::")[0]] == number]
    return chosen


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Files of which no test runs are not even imported."""
    tier = os.environ.get("STREAMJOIN_TESTS", "")
    checks = {file: check for check, files in Tiers.read().checks.items() for file in files}
    return True if tier and checks.get(collection_path.name, "change") != tier and collection_path.is_file() else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Chooses after all others have, who may add marks and leave cases out."""
    for item in items:
        item.stash[NAME] = item.nodeid.removeprefix("tests/")
    config.stash[EVERY] = {item.stash[NAME]: systems_of(item) for item in items}
    yield
    tier, shard = os.environ.get("STREAMJOIN_TESTS", ""), os.environ.get("STREAMJOIN_SHARD", "")
    try:
        chosen = set(choose(items, tier=tier, shard=shard, tiers=Tiers.read()))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
