"""The plan API over real sockets: what it answers to good requests, to bad ones of every kind, and to clients that take their time."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from harness import SECOND, START, Input, driver_for, make_batch, make_job, manifest_text, oracle, output_of
from streamjoin.bearer import TokenFile
from streamjoin.cli import main
from streamjoin.cli.exits import Exit
from streamjoin.controlplane.driver import Driver
from streamjoin.epoch.ports import EpochFailed, EpochResult
from streamjoin.job import StreamJob
from streamjoin.runner.inline import InlineRunner
from streamjoin.scheme.capacity import Capacity
from streamjoin.scheme.statistics import Statistics
from streamjoin.scheme.tiling import Scheme
from streamjoin.serve import server as serving
from streamjoin.serve.api import MOST_BODY_BYTES, PlanApi
from streamjoin.serve.messages import MOST_AREAS, PlanAnswer, StatisticsAnswer
from streamjoin.serve.metrics import Metrics
from streamjoin.serve.observer import Steps
from streamjoin.serve.server import DriverServer
from streamjoin.state.storage import ObjectStorage
from waiting import PATIENCE_SECONDS, wait_for

EPOCHS = 14


class Served:
    """A join on the inline runner with its port."""

    def __init__(self, root: Path, *, token: Path | None = None, address: str = "127.0.0.1", **options: Any) -> None:
        rng = random.Random(7)

        def stream() -> Input:
            batches = []
            for epoch in range(EPOCHS):
                rows = [(epoch * 40 + i, rng.randint(0, 500), 0, START + epoch * SECOND + i * 20_000) for i in range(40)]
                batches.append(make_batch(rows, pa.int64()))
            return Input(batches, [1] * EPOCHS)

        self.root, self.inputs = root, (stream(), stream())
        spec = {"on": "abs(l.k - r.k) <= 5", "types": ("BIGINT", "BIGINT"), "window": {"within": "5s"}, "watermark": "1s"}
        job = make_job(root, **(spec | options))
        self.job = replace(job, min_workers=1, max_workers=4, streams=tuple(map(_quiet, job.streams)))
        self.driver: Driver = driver_for(self.job, self.inputs, ObjectStorage(str(root / "state")), InlineRunner())
        self.metrics = Metrics(self.job)
        self.watched = Steps(self.driver, [self.metrics])
        self.api = PlanApi(self.driver, self.metrics.health, token=None if token is None else TokenFile(token))
        self.server = DriverServer(self.metrics, address, api=self.api)
        self.where = ("127.0.0.1", int(self.server.url.rsplit(":", 1)[1]))

    def run(self, epochs: int = 1) -> list[EpochResult]:
        found = []
        for _ in range(epochs):
            result = self.watched.step(final=True)
            if result is None:
                break
            found.append(result)
        return found

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection(*self.where, timeout=PATIENCE_SECONDS)
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, sent, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text.startswith(b"{") else text, answer.headers

    def raw(self, data: bytes) -> bytes:
        """What comes back for these bytes."""
        with socket.create_connection(self.where, timeout=PATIENCE_SECONDS) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            found = b""
            while part := client.recv(1 << 16):
                found += part
            return found


def _quiet(stream: StreamJob) -> StreamJob:
    """Of unknown rate, so that the join begins with one worker."""
    return replace(stream, expected_rate=None)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    made.watched.start()
    with made.server:
        yield made


def test_before_the_first_input_there_is_no_plan_to_ask_about(served: Served) -> None:
    for method, path, body in (("GET", "/v1/plan", None), ("GET", "/v1/statistics", None), ("PUT", "/v1/plan", {"workers": 3})):
        status, answer, headers = served.ask(method, path, body)
        assert (status, headers["Retry-After"]) == (503, "1"), path
        assert "ask again" in answer["error"]
    status, answer, _ = served.ask("GET", "/v1/health")
    assert (status, answer["state"], answer["generation"], answer["phase"]) == (200, "running", None, None)


def test_what_is_read_is_what_the_driver_says(served: Served) -> None:
    served.run(3)
    status, answer, headers = served.ask("GET", "/v1/plan")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert PlanAnswer.model_validate(answer).generation == served.driver.checkpoint.plan.generation == 1
    assert Scheme.from_json(answer["scheme"]) == served.driver.scheme
    assert (answer["phase"], answer["workers"], answer["wanted"], answer["switched"]) == ("Running", 1, None, None)
    assert (answer["firstWorkers"], answer["warning"]) == (1, None)
    status, answer, _ = served.ask("GET", "/v1/statistics")
    assert status == 200
    StatisticsAnswer.model_validate(answer)
    assert answer.pop("predicate") == served.driver.layout.main.text == "abs(l.k - r.k) <= 5"
    accepted = [side.pop("acceptedPerSecond") for side in answer.values()]
    assert accepted == pytest.approx(served.driver.rates())
    assert Statistics.from_json(answer).to_json() == served.driver.statistics().to_json()
    status, answer, _ = served.ask("GET", "/v1/health")
    assert (status, answer["epoch"], answer["generation"], answer["workers"], answer["phase"]) == (200, 2, 1, 1, "Running")


def test_a_plan_that_is_too_full_is_taken_with_a_warning(served: Served) -> None:
    served.run(3)
    served.driver.job = replace(served.driver.job, capacity=Capacity(60))
    for method, body in (("GET", None), ("PUT", {"workers": 2})):
        warning = served.ask(method, "/v1/plan", body)[1]["warning"]
        assert warning.startswith("spec.workers.capacityTuples: task ")
        assert re.search(r"of the plan \(adsp, \d tasks?\) would hold [\d,]+ tuples, more than 60; raise it, or ask for more", warning)


def test_a_wish_is_planned_applied_and_not_applied_twice(served: Served) -> None:
    served.run(3)
    status, answer, _ = served.ask("PUT", "/v1/plan", {"workers": 3})
    assert (status, answer["generation"], answer["wanted"]["generation"], answer["wanted"]["workers"]) == (202, 1, 2, 3)
    assert served.ask("PUT", "/v1/plan", {"workers": 3})[0] == 200, "it is being applied"
    served.run(3)
    status, answer, _ = served.ask("GET", "/v1/plan")
    assert (answer["generation"], answer["workers"], answer["phase"], answer["wanted"]) == (2, 3, "Running", None)
    switched = answer["switched"]
    assert (switched["generation"], switched["epoch"]) == (2, 5), "two epochs had been begun ahead"
    assert switched["keptTuples"] > 0
    assert served.ask("PUT", "/v1/plan", {"workers": 3})[0] == 200, "it runs, and that the load has moved since is no reason"
    status, answer, _ = served.ask("PUT", "/v1/plan", {"workers": 3, "replan": True})
    assert (status, answer["wanted"]["generation"]) == (202, 3)
    status, answer, _ = served.ask("PUT", "/v1/plan", {"workers": 2, "model": "square", "after": 2})
    assert (status, answer["error"]) == (409, "after: 2 is not the newest plan, which is 3; read it again")
    status, answer, _ = served.ask("PUT", "/v1/plan", {"workers": 2, "model": "square", "after": 3})
    assert status == 202
    served.run(EPOCHS)
    answer = served.ask("GET", "/v1/plan")[1]
    assert answer["scheme"]["model"] == "square"
    assert [(plan["generation"], plan["fate"]) for plan in answer["ended"]] == [(2, "Switched"), (3, "Replaced"), (4, "Switched")]
    assert answer["ended"][1]["reason"] == "generation 3: replaced by generation 4"
    expected = oracle(served.inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 5", "abs(l.at - r.at) <= 5000000", SECOND)
    assert output_of(served.root) == expected


def test_who_wants_as_many_workers_as_run_withdraws_a_plan_that_waits_for_more(served: Served) -> None:
    served.run(3)
    assert served.ask("PUT", "/v1/plan", {"workers": 3})[0] == 202
    assert served.ask("PUT", "/v1/plan", {"workers": 1, "after": 2})[0] == 202
    answer = served.ask("GET", "/v1/plan")[1]
    assert (answer["generation"], answer["wanted"], answer["phase"]) == (1, None, "Running")
    why = "generation 2: withdrawn, as the plan that runs is wanted"
    assert answer["ended"] == [{"generation": 2, "fate": "Withdrawn", "reason": why}]
    assert served.ask("PUT", "/v1/plan", {"workers": 1})[0] == 200
    served.run(3)
    assert served.ask("GET", "/v1/plan")[1]["generation"] == 1


def test_a_whole_plan_goes_from_one_join_to_another_however_its_tasks_are_numbered(served: Served) -> None:
    served.run(2)
    served.ask("PUT", "/v1/plan", {"workers": 3})
    scheme = served.ask("GET", "/v1/plan")[1]["wanted"]["scheme"]
    served.run(3)
    for area in scheme["areas"]:
        area["task"] = (area["task"] + 1) % 3
    plan = {"generation": 2, "scheme": scheme}
    assert served.ask("PUT", "/v1/plan", plan)[0] == 200, "the same cut under the same generation"
    status, answer, _ = served.ask("PUT", "/v1/plan", {**plan, "generation": 7, "going": ["7"]})
    assert (status, answer["wanted"]["keep"]) == (202, [0, 1, 2]), "the workers are the same, whatever the numbers were"
    served.run(3)
    assert served.driver.plan_status().switched.moved_tuples == 0  # type: ignore[union-attr]
    status, answer, _ = served.ask("PUT", "/v1/plan", {**plan, "generation": 9, "keep": [2, None, 0]})
    assert (status, answer["wanted"]["keep"]) == (202, [2, None, 0])
    status, answer, _ = served.ask("PUT", "/v1/plan", {**plan, "generation": 8})
    assert status == 409
    assert answer["error"] == "plan.generation: 8 must be above 9, which is being applied; read it again"
    served.run(EPOCHS)
    assert served.driver.checkpoint.plan.generation == 9
    assert served.ask("PUT", "/v1/plan", {**plan, "generation": 3})[0] == 409


def _plan(served: Served, **changes: Any) -> dict[str, Any]:
    answer = served.ask("GET", "/v1/plan")[1]
    return {"generation": answer["generation"] + 1, "scheme": answer["scheme"]} | changes


NUMBERS = {"keys": [None, None], "units": [0, 2**32], "writes": [None, None], "holds": True}
BODIES: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "empty": (b"", r"the body: line 1, column 1: .*; it must be JSON"),
    "no JSON": (b"workers: 3", r"the body: line 1, column 1"),
    "half": (b'{"workers": 3', r"the body: line 1, column 14"),
    "no UTF-8": (b'{"workers": "\xff"}', r"it must be JSON in UTF-8"),
    "a list": (b"[3]", r"the body: \[3\] must be an object, of workers or of generation and scheme"),
    "null": (b"null", r"must be an object"),
    "deep": (b"[" * 100_000, r"it must be JSON in UTF-8"),
    "a huge number": (b'{"workers": ' + b"9" * 5000 + b"}", r"it must be JSON in UTF-8"),
    "NaN": (b'{"workers": NaN}', r"the body: NaN is no JSON"),
    "infinity": (b'{"generation": 2, "scheme": {"areas": [Infinity]}}', r"Infinity is no JSON"),
    "twice": (b'{"workers": 3, "workers": 2}', r"workers: is there twice; give it once"),
    "nothing": ({}, r"workers: is missing"),
    "text": ({"workers": "3"}, r'workers: "3" must be a whole number'),
    "true": ({"workers": True}, r"workers: true must be a whole number"),
    "a fraction": ({"workers": 2.5}, r"workers: 2.5 "),
    "none": ({"workers": 0}, r"workers: 0 is refused: input should be greater than or equal to 1"),
    "a million": ({"workers": 10**6}, r"workers: 1000000 is refused"),
    "executors that are no texts": ({"workers": 2, "going": [1]}, r"going\[0\]: 1 must be a text"),
    "a replan that is text": ({"workers": 2, "replan": "yes"}, r'replan: "yes" must be true or false'),
    "an unknown model": ({"workers": 2, "model": "best"}, r'model: "best" is refused: input should be .adsp'),
    "an unknown field": (
        {"workers": 2, "when": "now"},
        r'when: "now" is given to a field that does not exist; the fields are workers, model, replan',
    ),
    "both": ({"workers": 2, "generation": 2}, r"workers: excludes generation, scheme and keep"),
    "no scheme": ({"generation": 2}, r"scheme: is missing"),
    "no generation": ({"scheme": {}}, r"generation: is missing"),
    "a negative generation": ({"generation": -1, "scheme": {}}, r"generation: -1 is refused"),
    "a scheme that is a list": ({"generation": 2, "scheme": []}, r"scheme: \[\] must be an object"),
    "no areas": ({"generation": 2, "scheme": {"model": "adsp", "tasks": 1, "summary": ""}}, r"scheme.areas: must be a list of 1 to 2,048"),
    "too many areas": (
        {"generation": 2, "scheme": {"model": "adsp", "tasks": 1, "summary": "", "areas": [1] * (MOST_AREAS + 1)}},
        r"scheme.areas: must be a list of 1 to 2,048",
    ),
    "a billion tasks": (
        {"generation": 2, "scheme": {"model": "a", "tasks": 10**9, "summary": "", "areas": [{}]}},
        r"scheme.tasks: 1000000000 must be from 1 to the number of areas, 1",
    ),
    "an area that is none": (
        {"generation": 2, "scheme": {"model": "a", "tasks": 1, "summary": "", "areas": [3]}},
        r"scheme: this is not a scheme: .*; take one from GET /v1/plan",
    ),
    "an area without a side": (
        {"generation": 2, "scheme": {"model": "a", "tasks": 1, "summary": "", "areas": [{"task": 0, "coverage": 0, "left": NUMBERS}]}},
        r"scheme: this is not a scheme: KeyError: 'right'",
    ),
    "units that are text": (
        {
            "generation": 2,
            "scheme": {
                "model": "a",
                "tasks": 1,
                "summary": "",
                "areas": [{"task": 0, "coverage": 0, "left": NUMBERS | {"units": "all"}, "right": NUMBERS}],
            },
        },
        r"scheme: this is not a scheme: ValueError",
    ),
    "keep that is an object": ({"generation": 2, "scheme": {"areas": []}, "keep": {}}, r"keep: \{\} must be a list"),
    "keep of texts": ({"generation": 2, "scheme": {"areas": []}, "keep": ["0"]}, r'keep\[0\]: "0" must be a whole number'),
}


@pytest.mark.parametrize(("body", "error"), BODIES.values(), ids=BODIES)
def test_a_body_that_is_wrong_is_refused_with_field_value_and_remedy(served: Served, body: Any, error: str) -> None:
    served.run(1)
    before = served.driver.plan_status()
    status, answer, _ = served.ask("PUT", "/v1/plan", body)
    assert status == 400, answer
    assert list(answer) == ["error"]
    assert re.search(error, answer["error"]), answer["error"]
    assert served.driver.plan_status() == before


def test_a_plan_that_cannot_be_applied_is_refused_with_the_drivers_reason(served: Served) -> None:
    served.run(1)
    for body, error in (
        ({"workers": 5}, r"workers: 5 must be from 1 \(spec.workers.min\) to 4 \(spec.workers.max\); change either"),
        (_plan(served, scheme=_plan(served)["scheme"] | {"areas": _holes(served)}), r"scheme: no area covers every pair"),
        (_plan(served, scheme=_huge_bounds(served)), r"scheme: "),
        (_plan(served, keep=[9]), r"plan.keep\[0\]: 9 must be below 1"),
    ):
        status, answer, _ = served.ask("PUT", "/v1/plan", body)
        assert status == 422, answer
        assert re.search(error, answer["error"]), answer["error"]
    for keep, error in (([0, 0], "keep: 2 entries must be 1"), ([], "keep: 0 entries must be 1")):
        status, answer, _ = served.ask("PUT", "/v1/plan", _plan(served, keep=keep))
        assert status == 400
        assert answer["error"].startswith(error)
    assert served.ask("GET", "/v1/plan")[1]["wanted"] is None


def _holes(served: Served) -> list[dict[str, Any]]:
    areas: list[dict[str, Any]] = served.ask("GET", "/v1/plan")[1]["scheme"]["areas"]
    areas[0]["left"]["units"] = [0, 2**31]
    return areas


def _huge_bounds(served: Served) -> dict[str, Any]:
    scheme: dict[str, Any] = served.ask("GET", "/v1/plan")[1]["scheme"]
    scheme["areas"][0]["left"]["keys"] = [-(10**40), None]
    return scheme


def test_paths_and_methods_that_there_are_not(served: Served) -> None:
    for path in ("/v1", "/v1/", "/v1/plan/", "/v1/plans", "/v1/../v1/plan", "/v2/plan", "/v1/plan%00"):
        assert served.ask("GET", path)[0] == 404, path
    wrong = [("POST", "/v1/plan"), ("DELETE", "/v1/plan"), ("PATCH", "/v1/plan"), ("PUT", "/v1/health"), ("PUT", "/v1/statistics")]
    for method, path in wrong:
        status, answer, headers = served.ask(method, path)
        assert (status, headers["Allow"]) == (405, "GET, HEAD, PUT" if path == "/v1/plan" else "GET, HEAD"), (method, path)
        assert "the methods here are" in answer["error"]
    status, text, headers = served.ask("HEAD", "/v1/health")
    assert (status, text) == (200, b"")
    assert int(headers["Content-Length"]) > 0
    assert served.ask("GET", "/v1/health?verbose=1")[0] == 200
    assert served.ask("DELETE", "/healthz")[0] == 405


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 411),
        (b"Transfer-Encoding: chunked\r\n", 411),
        (b"Content-Length: 14\r\nTransfer-Encoding: chunked\r\n", 411),
        (b"Content-Length: -1\r\n", 400),
        (b"Content-Length: 1e3\r\n", 400),
        (b"Content-Length: \xb2\r\n", 400),
        (b"Content-Length: 99\r\n", 400),
        (f"Content-Length: {MOST_BODY_BYTES + 1}\r\n".encode(), 413),
        (b"Content-Length: 999999999999999999999999999999\r\n", 413),
    ],
)
def test_bodies_of_unknown_wrong_or_too_large_size(served: Served, head: bytes, status: int) -> None:
    served.run(1)
    found = served.raw(b"PUT /v1/plan HTTP/1.1\r\nHost: localhost\r\n" + head + b'\r\n{"workers": 3}')
    assert int(found.split()[1]) == status, found
    assert served.ask("GET", "/v1/plan")[1]["wanted"] is None


def test_a_body_that_is_too_large_is_answered_although_it_is_sent(served: Served) -> None:
    served.run(1)
    status, answer, _ = served.ask("PUT", "/v1/plan", b" " * (4 * MOST_BODY_BYTES))
    assert status == 413
    assert "must be at most" in answer["error"]


def test_requests_that_are_no_http(served: Served) -> None:
    tls, endless = b"\x16\x03\x01\x02\x00\x01\x00", b"GET " + b"x" * 70_000
    for data in (b"\r\n\r\n", tls, endless, b"PUT\r\n\r\n", b"GET /v1/plan HTTP/9.9\r\n\r\n", b"PUT /v1/plan"):
        served.raw(data)
    assert served.ask("GET", "/v1/health")[0] == 200


def test_slow_and_silent_clients_hold_up_neither_others_nor_the_join(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    slow: set[tuple[str, int]] = set()
    timeout = property(lambda handler: 0.3 if handler.client_address in slow else PATIENCE_SECONDS)
    monkeypatch.setattr(serving._Handler, "timeout", timeout)
    served.run(1)
    head = b"PUT /v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n"
    clients = [socket.socket() for _ in range(20)]
    for client, said in zip(clients, (b"", b"PUT", head, head + b"\r\n", head + b'\r\n{"work') * 4, strict=True):
        client.settimeout(PATIENCE_SECONDS)
        client.bind(("127.0.0.1", 0))
        slow.add(client.getsockname())
        client.connect(served.where)
        client.sendall(said)
    assert served.ask("GET", "/v1/plan")[0] == 200
    assert served.ask("PUT", "/v1/plan", {"workers": 2})[0] == 202
    assert len(served.run(2)) == 2
    for client in clients:
        with client:
            answer = client.recv(1 << 16)
            assert answer == b"" or answer.split()[1] in (b"408", b"400"), "in the end each is cut off"
    assert capfd.readouterr().err == ""


def test_a_client_that_always_says_something_is_cut_off_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LONGEST_SECONDS", 0.5)
    with socket.create_connection(served.where, timeout=PATIENCE_SECONDS) as client:
        client.sendall(b"GET /v1/health HTTP/1.1\r\n")
        client.settimeout(0.02)

        def is_gone() -> bool:
            try:
                client.sendall(b"X: y\r\n")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_for("it is cut off", is_gone, every=0)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    """With a token, open to other machines."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    made = Served(tmp_path, token=token, address="0.0.0.0")
    made.watched.start()
    made.run(1)
    with made.server:
        yield made


def test_with_a_token_nothing_is_told_and_nothing_done_without_it(guarded: Served) -> None:
    wrong = (None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer s3cre", "Bearer s3crett", "Basic s3cret", "s3cret", "Bearer s3\xe9")
    for method, path in (("GET", "/v1/plan"), ("GET", "/v1/statistics"), ("GET", "/v1/health"), ("PUT", "/v1/plan")):
        for header in wrong:
            headers = {} if header is None else {"Authorization": header}
            status, answer, given = guarded.ask(method, path, {"workers": 2} if method == "PUT" else None, **headers)
            assert (status, given["WWW-Authenticate"]) == (401, 'Bearer realm="streamjoin"'), (method, path, header)
            assert "s3cret" not in json.dumps(answer)
    assert guarded.ask("GET", "/v1/plan", Authorization="Bearer s3cret")[1]["wanted"] is None
    assert guarded.ask("PUT", "/v1/plan", {"workers": 2}, Authorization="bearer s3cret")[0] == 202
    assert guarded.ask("GET", "/healthz")[0] == guarded.ask("GET", "/metrics")[0] == 200, "as before"


def test_a_token_that_is_changed_counts_at_once_and_one_that_is_gone_lets_nobody_in(guarded: Served) -> None:
    path = guarded.root / "token"
    path.write_text("another")
    assert guarded.ask("GET", "/v1/plan", Authorization="Bearer s3cret")[0] == 401
    assert guarded.ask("GET", "/v1/plan", Authorization="Bearer another")[0] == 200
    for content in ("", " \n", "two words", "x" * 5000):
        path.write_text(content)
        status, answer, _ = guarded.ask("GET", "/v1/plan", Authorization=f"Bearer {content.strip()}")
        assert status == 503, content[:10]
        assert "nobody is let in" in answer["error"]
    path.unlink()
    assert guarded.ask("GET", "/v1/plan", Authorization="Bearer another")[0] == 503


def test_without_a_token_plans_are_taken_only_where_this_machine_alone_can_connect(tmp_path: Path) -> None:
    made = Served(tmp_path, address="0.0.0.0")
    made.watched.start()
    made.run(1)
    with made.server:
        status, answer, _ = made.ask("PUT", "/v1/plan", {"workers": 2})
        assert status == 403
        assert "from this machine only, and 0.0.0.0 is open to others; start the run with --api-token-file" in answer["error"]
        assert made.ask("GET", "/v1/plan")[0] == 200


def test_a_page_that_calls_itself_this_machine_puts_no_plans(served: Served) -> None:
    served.run(1)
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]:80", "localhost.evil.example"):
        assert served.ask("PUT", "/v1/plan", {"workers": 2}, Host=host)[0] == 403, host
    for number, host in enumerate(("localhost", "127.0.0.1:1", "[::1]:9")):
        assert served.ask("PUT", "/v1/plan", {"workers": 2 + number}, Host=host)[0] == 202, host


def test_health_says_when_the_join_has_ended(served: Served) -> None:
    served.run(1)
    served.watched.stop()
    status, answer, _ = served.ask("GET", "/v1/health")
    assert (status, answer["state"]) == (503, "ended")


def test_what_goes_wrong_inside_is_an_answer_and_no_trace(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    served.run(1)
    monkeypatch.setattr(served.driver, "statistics", lambda: 1 / 0)
    status, answer, _ = served.ask("GET", "/v1/statistics")
    assert (status, answer["error"]) == (500, "GET /v1/statistics: ZeroDivisionError: division by zero; this is a bug, please report it")
    assert capfd.readouterr().err == ""


def test_plans_put_while_epochs_run_and_fail_leave_the_results_exact(tmp_path: Path) -> None:
    """Two clients wish for numbers of workers again and again."""
    made = Served(tmp_path)
    made.watched.start()
    over = threading.Event()
    seen: set[int] = set()

    def client(seed: int) -> None:
        rng = random.Random(seed)
        while not over.is_set():
            seen.add(made.ask("PUT", "/v1/plan", {"workers": rng.randint(1, 4), "model": rng.choice(["adsp", "square", "readj"])})[0])

    with made.server:
        clients = [threading.Thread(target=client, args=(seed,)) for seed in (1, 2)]
        for thread in clients:
            thread.start()
        epochs = 0
        while epochs < EPOCHS:
            try:
                epochs += len(made.run(1))
            except EpochFailed:
                continue
        over.set()
        for thread in clients:
            thread.join()
        made.run(3)
    assert seen <= {200, 202, 409, 422, 503}
    assert 202 in seen
    expected = oracle(made.inputs, (pa.int64(), pa.int64()), "abs(l.k - r.k) <= 5", "abs(l.at - r.at) <= 5000000", SECOND)
    assert output_of(made.root) == expected


def test_a_token_file_must_be_there_at_the_start_and_has_a_port(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(manifest_text(tmp_path, on="l.k = r.k", types=("BIGINT", "BIGINT"), window={"within": "5s"}))
    command = ["run", str(path), "--runner", "inline", "--until-idle", "--api-token-file", str(tmp_path / "none")]
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, "give a port too" in result.stderr) == (Exit.USAGE, True)
    result = CliRunner().invoke(main, [*command, "--metrics-port", "0"])
    assert result.exit_code == Exit.USAGE
    assert re.search(r"--api-token-file: .*none: cannot be read \(No such file or directory\); it must hold the token", result.stderr)
