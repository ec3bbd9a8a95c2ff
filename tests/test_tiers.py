"""Which tests run in ``make test`` and which at night; and that the tables say it of the tests that there are."""

from __future__ import annotations

import random

import pytest

import cases
import tiers
from tiers import Tiers

TABLES = Tiers(
    smoke={"spark": ("test_a.py::test_one[small]",), "kafka": ("test_a.py::test_two",)},
    nightly=("test_b.py::test_long",),
    checks={"docs": ("test_pages.py",), "release": ("test_release.py",)},
)
SYSTEMS_OF = {
    "test_a.py::test_one[small]": ("spark",),
    "test_a.py::test_one[large]": ("spark",),
    "test_a.py::test_two[0]": ("kafka",),
    "test_b.py::test_long": (),
    "test_b.py::test_short": (),
    "test_pages.py::test_links": (),
    "test_release.py::test_registry": ("apiserver",),
}


def chosen(tier: str) -> list[str]:
    return [name for name, systems in SYSTEMS_OF.items() if TABLES.runs(name, systems, tier)]


def test_a_change_must_pass_all_but_what_is_left_to_the_night_and_of_real_systems_the_smoke_tests() -> None:
    assert chosen("change") == ["test_a.py::test_one[small]", "test_a.py::test_two[0]", "test_b.py::test_short"]


def test_documents_and_releases_are_checked_by_themselves_and_everything_by_all() -> None:
    assert chosen("docs") == ["test_pages.py::test_links"]
    assert chosen("release") == ["test_release.py::test_registry"]
    assert chosen("") == list(SYSTEMS_OF)


def test_each_file_is_in_one_shard_and_shards_have_about_as_many_tests() -> None:
    draw = random.Random(3)
    files = [(f"test_{number}.py", draw.randint(1, 60)) for number in range(170)]
    dealt = tiers.shard_of(files, 6)
    assert sorted(dealt) == sorted(file for file, _ in files)
    loads = [sum(tests for file, tests in files if dealt[file] == shard) for shard in range(6)]
    assert max(loads) - min(loads) <= 60
    assert dealt == tiers.shard_of(reversed(files), 6)


@pytest.mark.parametrize("text", ["0/6", "7/6", "2", "two/six", "/", "-1/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard; write 2/6 for the second of six"):
        tiers.asked_shard(text)


def test_what_is_no_tier_is_refused() -> None:
    with pytest.raises(ValueError, match='"changes" is no tier'):
        tiers.choose([], tier="changes", shard="", tiers=TABLES)


def test_tables_that_do_not_fit_the_tests_are_told() -> None:
    wrong = Tiers({"spark": ("test_b.py::test_short", "test_a.py::test_gone")}, ("test_b.py::test_short",), {"docs": ("test_no.py",)})
    found = tiers.problems(wrong, SYSTEMS_OF)
    assert "smoke.kafka has 0 tests; it takes 1 to 10" in found
    assert "smoke.spark: test_b.py::test_short does not need it; mark the test, or remove the line" in found
    assert "test_a.py::test_gone is no test; mend the name, or remove it" in found
    assert "test_b.py::test_short is named twice; remove one" in found
    assert "checks: test_no.py is not there; mend the name" in found


def test_the_tables_fit_the_tests_that_there_are(request: pytest.FixtureRequest) -> None:
    every = request.config.stash[tiers.EVERY]
    if cases.ALL or len({name.partition("::")[0] for name in every}) < 100:
        return  # this run has other cases than make test, or is not of the whole suite
    assert not tiers.problems(Tiers.read(), every)
