"""Quiet windows and the number of changes in an hour: by the clock on the wall, in stories, and in a simulated week."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from operator_parts import streamjoin
from streamjoin.elastic.core import DecisionCore
from streamjoin.elastic.decision import Kind, Reason
from streamjoin.elastic.events import LimitsSet, PlanApplied
from streamjoin.elastic.quiet import DAYS, WeeklyWindow
from streamjoin.elastic.settings import Mode, Rule, Settings
from streamjoin.manifest import check
from test_decision import SETTINGS, Even, Story, sample

BERLIN = ZoneInfo("Europe/Berlin")


def window(start: str, end: str, days: Sequence[str] = DAYS, zone: ZoneInfo = BERLIN) -> WeeklyWindow:
    hour = lambda text: 60 * int(text[:2]) + int(text[3:])  # noqa: E731
    return WeeklyWindow(hour(start), hour(end), frozenset(days), zone)


def noon(**more: Any) -> Settings:
    """It is quiet from half an hour on, for an hour, by the stories' clock."""
    return replace(SETTINGS, quiet=(window("00:30", "01:30", zone=ZoneInfo("Etc/UTC")),), **more)


@pytest.mark.parametrize(
    ("chosen", "local", "is_in"),
    [
        (window("08:00", "18:00", ["Mon"]), "2026-03-02T08:00", True),
        (window("08:00", "18:00", ["Mon"]), "2026-03-02T07:59", False),
        (window("08:00", "18:00", ["Mon"]), "2026-03-02T18:00", False),
        (window("08:00", "18:00", ["Mon"]), "2026-03-03T12:00", False),
        (window("22:00", "06:00", ["Fri"]), "2026-03-06T23:00", True),
        (window("22:00", "06:00", ["Fri"]), "2026-03-07T05:59", True),
        (window("22:00", "06:00", ["Fri"]), "2026-03-06T05:00", False),
        (window("22:00", "06:00", ["Sun"]), "2026-03-09T03:00", True),
        (window("12:00", "12:00", ["Wed"]), "2026-03-05T11:59", True),
        (window("12:00", "12:00", ["Wed"]), "2026-03-05T12:00", False),
        # Clocks go from 2 to 3 on the 29th of March, and twice through the hour from 2 to 3 on the 25th of October.
        (window("08:00", "09:00"), "2026-03-29T08:30", True),
        (window("02:00", "03:00"), "2026-10-25T02:30", True),
    ],
)
def test_a_window_is_by_the_clock_on_the_wall(chosen: WeeklyWindow, local: str, is_in: bool) -> None:
    moments = {datetime.fromisoformat(local).replace(tzinfo=BERLIN, fold=fold).timestamp() for fold in (0, 1)}
    assert [chosen.contains(at) for at in moments] == [is_in] * len(moments)


def test_windows_are_as_long_as_they_say_in_every_week_of_a_year_but_where_clocks_change() -> None:
    chosen = window("22:00", "06:00", ["Fri", "Sat"])
    begin = datetime(2026, 1, 5, tzinfo=UTC)
    hours = []
    for week in range(52):
        moments = [(begin + timedelta(weeks=week, minutes=30 * half)).timestamp() for half in range(7 * 48)]
        hours.append(sum(map(chosen.contains, moments)) / 2)
    assert sorted(set(hours)) == [15.0, 16.0, 17.0]
    assert (hours.count(15.0), hours.count(17.0)) == (1, 1)


def test_a_worker_that_is_full_and_loses_nothing_waits_for_the_end_of_a_window() -> None:
    story = Story(noon(scale_up_after=60))
    story.now = 31 * 60.0
    said = story.minutes([0.95] * 58)
    assert {kind for kind, _, _ in said} == {Kind.HOLD}
    assert said[-1] == (Kind.HOLD, Reason.QUIET, 4)
    after = story.minute(0.95)
    assert (story.now, after.kind, after.reason) == (90 * 60.0, Kind.ALLOCATE, Reason.FULL)


def test_lost_tuples_and_limits_do_not_wait() -> None:
    for lost in ({"shed_fraction": 0.01}, {}):
        story = Story(noon(scale_up_after=60))
        story.now = 31 * 60.0
        said = story.minutes([0.95 if lost else 1.01] * 3, **lost)
        assert said[-1][:2] == (Kind.ALLOCATE, Reason.FULL)
    story = Story(noon())
    story.now = 31 * 60.0
    story.core.handle(LimitsSet(story.now, floor=6))
    assert story.minutes([0.5])[-1] == (Kind.ALLOCATE, Reason.BELOW_FLOOR, 6)


def test_a_recommendation_is_made_at_any_time() -> None:
    story = Story(noon(scale_up_after=60, rules={Rule.ALLOCATE: Mode.RECOMMEND, Rule.REPLAN: Mode.OFF}))
    story.now = 31 * 60.0
    decision = [story.minute(0.95) for _ in range(3)][-1]
    assert (decision.kind, decision.mode) == (Kind.ALLOCATE, Mode.RECOMMEND)


def test_a_change_too_many_waits_until_the_first_is_an_hour_old_and_says_when() -> None:
    story = Story(replace(SETTINGS, scale_up_after=60, max_per_hour=2))
    story.now = 600.0
    for workers in (5, 6):
        story.apply(workers)
        story.now += 600.0
    decision = [story.minute(0.95) for _ in range(3)][-1]
    assert (decision.kind, decision.reason) == (Kind.HOLD, Reason.TOO_OFTEN)
    assert "2 changes within the hour, and 2 may be; in 37 min" in decision.sentence
    restored = DecisionCore.from_json(story.core.settings, json.loads(json.dumps(story.core.to_json())))
    assert restored.decide(story.now, Even(5.7)).reason is Reason.TOO_OFTEN, "an operator that starts anew knows it too"
    assert story.minute(0.95, shed_fraction=0.1).kind is Kind.ALLOCATE
    story.now = 600.0 + 3600.0 - 60
    story.minute(0.95)
    assert story.minute(0.95).kind is Kind.ALLOCATE


def test_in_a_simulated_week_no_change_begins_when_it_is_quiet_and_no_hour_has_too_many() -> None:
    """Load that swings each hour; a quiet window in each night, by the wall in Berlin."""
    chosen = window("22:00", "06:00")
    settings = replace(SETTINGS, scale_up_after=60, scale_down_after=120, quiet=(chosen,), max_per_hour=2)
    core, generation = DecisionCore(settings, at=0.0, generation=1, workers=4), 1
    begun: list[float] = []
    free = 0
    for minute in range(1, 7 * 1440):
        now = 1.7e9 + 60.0 * minute
        if minute == 1:
            core = DecisionCore(settings, at=now - 1, generation=1, workers=4)
        demand = 6.0 if (minute // 20) % 2 else 0.6
        tau = min(0.99, demand / core.workers)
        core.handle(sample(now, tau, workers=core.workers, generation=generation))
        decision = core.decide(now, Even(demand))
        if decision.enforced:
            begun.append(now)
            generation += 1
            core.handle(PlanApplied(now, generation, decision.target))
        free += decision.reason in (Reason.QUIET, Reason.TOO_OFTEN)
    assert free, "limits were met"
    assert len(begun) > 50
    local = [datetime.fromtimestamp(at, BERLIN).hour for at in begun]
    assert all(6 <= hour < 22 for hour in local)
    assert all(third - first >= 3600 for first, third in zip(begun, begun[2:], strict=False))


@pytest.mark.parametrize(
    ("quiet", "field", "says"),
    [
        ({"start": "8:00", "end": "18:00"}, "start", "8:00"),
        ({"start": "08:00", "end": "24:00"}, "end", "24:00"),
        ({"start": "08:00"}, "end", "is missing"),
        ({"start": "08:00", "end": "18:00", "days": ["Monday"]}, "days", "Mon"),
        ({"start": "08:00", "end": "18:00", "timeZone": "Berlin"}, "timeZone", "Europe/Berlin"),
    ],
)
def test_what_is_no_window_is_refused_by_its_field(quiet: dict[str, Any], field: str, says: str) -> None:
    problems = [str(problem) for problem in check(streamjoin(scaling={"quiet": [quiet]})).problems]
    assert any(f"spec.scaling.quiet[0].{field}" in problem and says in problem for problem in problems), problems


def test_a_manifest_says_what_the_core_is_set_to() -> None:
    quiet = [{"start": "08:00", "end": "18:00", "days": ["Mon"], "timeZone": "Europe/Berlin"}, {"start": "23:30", "end": "00:30"}]
    manifest = check(streamjoin(scaling={"quiet": quiet, "maxPerHour": 4})).manifest
    assert manifest is not None
    settings = Settings.of(manifest.spec)
    assert [str(one) for one in settings.quiet] == ["08:00 to 18:00 on Mon, Europe/Berlin", "23:30 to 00:30, Etc/UTC"]
    assert settings.max_per_hour == 4
