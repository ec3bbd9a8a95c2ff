"""Snapshots by the clock: the schedule beside cron's rules, and what is made and deleted of a StreamJoin as time goes on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from operator_cluster import SNAPSHOTS, Cluster
from operator_parts import streamjoin
from streamjoin.manifest import check
from streamjoin.manifest.schedule import Schedule
from streamjoin_operator import backups, names
from streamjoin_operator.api import ApiError
from streamjoin_operator.backups import LATE_SECONDS, SCHEDULED, Backups
from streamjoin_operator.seen import Seen
from streamjoin_operator.settings import Settings
from streamjoin_operator.snapshot_model import resource
from streamjoin_operator.snapshots import Snapshots
from test_operator_snapshots import is_kept
from waiting import wait_for

Object = dict[str, Any]
KEY = ("default", "one")


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}Z")


@pytest.mark.parametrize(
    ("schedule", "now", "last", "following"),
    [
        ("30 2 * * *", "2026-03-10T02:29", "2026-03-09T02:30", "2026-03-10T02:30"),
        ("30 2 * * *", "2026-03-10T02:30", "2026-03-10T02:30", "2026-03-11T02:30"),
        ("*/15 * * * *", "2026-03-10T23:59", "2026-03-10T23:45", "2026-03-11T00:00"),
        ("5/20 8-10,22 * * *", "2026-03-10T10:46", "2026-03-10T10:45", "2026-03-10T22:05"),
        ("0 0 1 */3 *", "2026-03-10T00:00", "2026-01-01T00:00", "2026-04-01T00:00"),
        ("0 6 * * 1-5", "2026-03-08T12:00", "2026-03-06T06:00", "2026-03-09T06:00"),  # a Sunday
        ("0 6 * * 7", "2026-03-08T12:00", "2026-03-08T06:00", "2026-03-15T06:00"),
        ("0 6 13 * 5", "2026-03-08T12:00", "2026-03-06T06:00", "2026-03-13T06:00"),  # a Friday, or the 13th
        ("0 6 13 * *", "2026-03-08T12:00", "2026-02-13T06:00", "2026-03-13T06:00"),
        ("0 0 29 2 *", "2026-03-10T00:00", "2024-02-29T00:00", "2028-02-29T00:00"),
    ],
)
def test_it_is_due_when_cron_says(schedule: str, now: str, last: str, following: str) -> None:
    made = Schedule.parse(schedule)
    assert (made.last(at(now)), made.next(at(now))) == (at(last), at(following))


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("60 2 * * *", "has the minute '60', which is not *, or from 0 to 59, a range, or one with /n; correct it"),
        ("0 24 * * *", "has the hour '24'"),
        ("0 0 0 * *", "has the day '0'"),
        ("0 0 * 13 *", "has the month '13'"),
        ("0 0 * * 8", "has the weekday '8'"),
        ("5-1 * * * *", "has the minute '5-1'"),
        ("*/0 * * * *", "has the minute '*/0'"),
        ("0 0 30 2 *", "is never due; correct day and month"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(schedule: str, said: str) -> None:
    problems = check(streamjoin(backup={"schedule": schedule})).problems
    assert [problem.field for problem in problems] == ["spec.backup.schedule"]
    assert said in str(problems[0])


def test_what_is_no_schedule_at_all_the_api_server_refuses_too() -> None:
    for schedule in ("daily", "0 0 * *", "0 0 * * MON", "0  0 * * *"):
        assert check(streamjoin(backup={"schedule": schedule})).problems, schedule


class World:
    """A StreamJoin with snapshots every night, of which each is ready at once."""

    def __init__(self, keep: int = 2) -> None:
        self.now, self.is_ready = at("2026-03-10T12:00"), True
        self.join = streamjoin(backup={"schedule": "30 2 * * *", "keep": keep})
        self.join["metadata"] |= {"resourceVersion": "1", "creationTimestamp": "2026-03-10T12:00:00Z"}
        self.snapshots: dict[str, Object] = {}
        self.becomes_ready = True

    async def create(self, kind: Any, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if name in self.snapshots:
            raise ApiError(409, "AlreadyExists", name)
        status = {"conditions": [{"type": "Ready", "status": str(self.becomes_ready)}]}
        self.snapshots[name] = {**body, "metadata": {**body["metadata"], "namespace": namespace, "uid": name}, "status": status}
        return body

    async def delete(self, kind: Any, namespace: str, name: str, uid: str) -> None:
        assert uid == name
        del self.snapshots[name]

    def pass_time(self, *, sees: bool = True, **span: float) -> float | None:
        """Another operator looks. ``sees``: whether its watch has shown the snapshots by then."""
        self.now += timedelta(**span)
        seen = Seen()
        seen.saw(self.join)
        if self.is_ready:
            seen.deployments[KEY] = {"metadata": {}, "status": {"readyReplicas": 1}}
        snapshots = Snapshots(self, self, Settings(), seen)  # type: ignore[arg-type]
        snapshots.bodies = {("default", name): body for name, body in self.snapshots.items() if sees}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backups, "now", lambda: self.now)
            return asyncio.run(Backups(self, Settings(), seen, snapshots).reconcile(KEY))  # type: ignore[arg-type]


def test_one_is_made_when_it_is_due_and_the_oldest_go() -> None:
    world = World()
    world.pass_time()
    assert world.snapshots == {}, "nothing was due since it was made"
    assert world.pass_time(hours=14, minutes=29, seconds=30) == 31.0
    world.pass_time(seconds=31)
    assert list(world.snapshots) == ["one-20260311-0230"]
    made = world.snapshots["one-20260311-0230"]
    assert made["metadata"]["labels"] == {names.NAME: "one", SCHEDULED: "true"}
    assert made["spec"] == {"streamJoin": "one"}
    world.pass_time(minutes=1)
    world.pass_time(sees=False)
    assert list(world.snapshots) == ["one-20260311-0230"], "one for a time, whoever looks"
    for _ in range(3):
        world.pass_time(days=1)
        world.pass_time()
    assert list(world.snapshots) == ["one-20260313-0230", "one-20260314-0230"]


def test_those_that_are_not_ready_are_no_reason_to_delete_older_ones() -> None:
    world = World()
    for day in range(6):
        world.becomes_ready = day < 2
        world.pass_time(days=1, hours=-9.4 if day == 0 else 0)
        world.pass_time()
    kept = [name for name, body in world.snapshots.items() if body["status"]["conditions"][0]["status"] == "True"]
    assert len(kept) == 2
    assert len(world.snapshots) == 6
    world.becomes_ready = True
    for _ in range(2):
        world.pass_time(days=1)
        world.pass_time()
    assert len(world.snapshots) == 2


def test_what_others_have_made_is_left_alone() -> None:
    world = World(keep=1)
    world.snapshots["mine"] = {"metadata": {"name": "mine", "uid": "mine"}, "spec": {"streamJoin": "one"}, "status": {}}
    labels = {names.NAME: "two", SCHEDULED: "true"}
    world.snapshots["a-20200101-0000"] = {"metadata": {"uid": "a-20200101-0000", "labels": labels}, "spec": {"streamJoin": "two"}}
    for _ in range(3):
        world.pass_time(days=1, hours=-9.4 if len(world.snapshots) == 2 else 0)
        world.pass_time()
    assert len(world.snapshots) == 3
    assert {"mine", "a-20200101-0000"} < world.snapshots.keys()


def test_a_join_that_does_not_run_has_none_and_one_that_runs_soon_after_has() -> None:
    world = World()
    world.is_ready = False
    assert world.pass_time(hours=14, minutes=31) == Settings().poll_seconds
    assert world.snapshots == {}
    world.is_ready = True
    world.pass_time(minutes=10)
    assert list(world.snapshots) == ["one-20260311-0230"]
    late = World()
    late.is_ready = False
    late.pass_time(hours=14, minutes=31)
    late.is_ready = True
    late.pass_time(seconds=LATE_SECONDS)
    assert late.snapshots == {}, "the next time comes"


def test_without_a_schedule_or_with_one_that_is_wrong_nothing_is_made() -> None:
    for backup in (None, {"schedule": "61 * * * *"}, {"schedule": "0 * * * *", "keep": 0}):
        world = World()
        world.join["spec"]["backup"] = backup
        if backup is None:
            del world.join["spec"]["backup"]
        assert world.pass_time(days=1) is None
        assert world.snapshots == {}


def a_backup_is_made_and_an_older_one_deleted(cluster: Cluster) -> None:
    """Against a real API server, with the rights of the chart. It is some minutes later."""
    path = SNAPSHOTS.format(cluster.namespace)
    with pytest.MonkeyPatch.context() as patch, cluster.operator():
        patch.setattr(backups, "now", lambda: datetime.now(UTC) + timedelta(minutes=5))
        cluster.run()
        old = resource("one-20200101-0000", "one")
        old["metadata"]["labels"] = {names.NAME: "one", SCHEDULED: "true"}
        cluster.admin.create(path, old)
        wait_for("an old one is kept", lambda: is_kept(cluster, "one-20200101-0000"))
        cluster.change({"backup": {"schedule": "* * * * *", "keep": 1}})

        def made() -> list[str]:
            return [each["metadata"]["name"] for each in cluster.admin.get(path)["items"]]

        wait_for("the old one has given way", lambda: made() and "one-20200101-0000" not in made())
        assert all(name.startswith("one-2") for name in made())


@pytest.mark.apiserver
def test_a_backup_is_made_and_an_older_one_deleted(cluster: Cluster) -> None:
    a_backup_is_made_and_an_older_one_deleted(cluster)
