"""The page of a join in a real browser: what it shows is what the driver, the metrics and the plan API say, step by step."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from playwright.sync_api import expect

from browser import Browser, browser
from shown_join import STEPS, Shown, read
from streamjoin.api.loop import Ended, Notice, Reason, Retrying
from streamjoin.bearer import Token
from streamjoin.cli import main
from streamjoin.epoch.ports import EpochResult
from streamjoin.serve.admission import Request
from streamjoin.serve.live import Board
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.xdist_group("pages")  # one browser for all
PLANS = {8: {"workers": 2}, 17: {"workers": 4}, 26: {"workers": 3, "model": "square"}, 35: {"workers": 3}, 43: {"workers": 1}}
"""At which steps which plans are put."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    made = Shown(tmp_path)
    with made.server:
        yield made


def whole(text: str) -> int:
    return int(text.replace(",", ""))


def test_at_each_of_fifty_steps_the_page_shows_what_the_api_says(shown: Shown, chromium: Browser) -> None:
    with chromium.page(shown.url) as (page, heard):
        expect(page.locator("#facts")).to_contain_text("no epoch yet")
        plans: list[int] = []
        for number in range(STEPS):
            if number in PLANS:
                before = shown.get("/v1/plan")["generation"]
                answer = shown.get("/v1/plan", "PUT", PLANS[number])
                shown.live.board.changed()
                expect(page.locator("#coming-now")).to_contain_text(f"Plan {answer['wanted']['generation']} for")
                assert page.locator("#scheme figure").count() == 2
                assert answer["wanted"]["generation"] == before + 1
            if number == 20:
                shown.tell(Retrying("epoch 20: a worker died", 1, 0.5))
                expect(page.locator("#doing")).to_have_text("retrying")
            if number == 30:
                shown.tell(Notice("warning: the plan was given up"))
            result = shown.step()
            seen = read(page, result.epoch)
            plan, samples = shown.get("/v1/plan"), shown.samples()
            check_counters(seen, samples, result)
            check_workers(seen, samples, result)
            check_delays(seen, shown.get("/v1/live"), samples)
            check_plan(seen, plan)
            assert seen["doing"] == "running"
            assert seen["facts"].startswith(f"epoch {result.epoch} · plan {plan['generation']} · ")
            assert seen["steps"][0]["epoch"] == str(result.epoch)
            assert whole(seen["steps"][0]["results"]) == result.output
            if plan["switched"] is not None and plan["switched"]["generation"] not in plans:
                plans.append(plan["switched"]["generation"])
                moved = f"{plan['switched']['movedTuples']:,} tuples moved, {plan['switched']['keptTuples']:,} stayed"
                assert moved in next(row for row in seen["plans"] if row["plan"] == str(plan["generation"]))["what it took"]
        assert len(plans) == len(PLANS)
        told = " ".join(seen["troubles"])
        assert "epoch 20: a worker died" in told
        assert "the plan was given up" in told
        shown.tell(Ended(Reason.IDLE))
        shown.live.board.finish()
        expect(page.locator("#doing")).to_have_text("done")
        expect(page.locator("#link")).to_have_text("the run is over")
        assert heard.errors == []
        assert heard.hosts == {shown.url.removeprefix("http://")}


def check_counters(seen: Any, samples: dict[tuple[str, ...], float], result: EpochResult) -> None:
    for row, stream in zip(seen["streams"], "lr", strict=True):
        assert row["stream"] == stream
        for column, metric in {"total": "input_records", "joined": "accepted_tuples", "late": "late_tuples", "shed": "shed_tuples"}.items():
            assert whole(row[column]) == samples[f"streamjoin_{metric}_total", stream], (result.epoch, stream, column)
        assert whole(row["backlog"]) == samples["streamjoin_backlog_records", stream]
    outputs = [samples["streamjoin_join_output_rows_total", join] for join in ("near", "far")]
    assert seen["tiles"]["output"][1] == f"{sum(outputs):,.0f} in all"
    for panel, output in zip(("near", "far"), outputs, strict=True):
        assert seen[panel]["results"].startswith(f"{output:,.0f}, ")
    assert seen["left"]["late"] == seen["streams"][0]["late"]
    shed, late = (sum(whole(row[column]) for row in seen["streams"]) for column in ("shed", "late"))
    assert seen["tiles"]["complete"][1] == (f"{shed:,} shed, {late:,} late" if shed or late else "nothing shed or late")


def check_delays(seen: Any, live: Any, samples: dict[tuple[str, ...], float]) -> None:
    delays = {join["name"]: join["resultDelay"] for join in live["joins"]}
    for join, delay in delays.items():
        assert seen[join]["results after"].endswith(f" of the last minute's {delay['records']:,} records")
        assert samples["streamjoin_result_delay_seconds_count", join] == delay["records"], "all epochs are of the last minute"
        assert 0 < delay["p50"] <= delay["p99"] <= delay["max"]
        assert delay["p50"] * delay["records"] / 2 <= samples["streamjoin_result_delay_seconds_sum", join]
    assert live["epochs"][-1]["resultDelay"] == [pytest.approx(live["series"]["delay"][-1])] * 2
    assert seen["tiles"]["delay"][1].startswith("p50 ")


def check_workers(seen: Any, samples: dict[tuple[str, ...], float], result: EpochResult) -> None:
    assert [row["worker"] for row in seen["workers"]] == [str(task) for task in sorted(result.held)]
    for row in seen["workers"]:
        tau = samples["streamjoin_worker_utilization_ratio", row["worker"]]
        assert abs(float(row["τ"]) - tau) <= 0.005 + 1e-6, (result.epoch, row, tau)
        # By this order of the labels: side, task.
        held = [samples["streamjoin_worker_tuples", side, row["worker"]] for side in ("left", "right")]
        assert [whole(row["held l"]), whole(row["held r"])] == held, result.epoch
    assert seen["tiles"]["workers"][0] == str(len(result.held))
    assert abs(float(seen["tiles"]["tau"][0]) - max(result.utilization.values())) <= 0.005 + 1e-6


def check_plan(seen: Any, plan: Any) -> None:
    assert seen["plan"].startswith(f"Plan {plan['generation']} runs on {plan['workers']} worker")
    if plan["wanted"] is None:
        assert seen["coming"] is None
        assert len(seen["drawn"]) == 1
    drawn = [area for area in seen["drawn"][0] if area[2] > 0 and area[4] > 0]
    assert {task for task, *_ in seen["drawn"][0]} == {area["task"] for area in plan["scheme"]["areas"]} == set(range(plan["workers"]))
    assert len(seen["drawn"][0]) == sum(len(area["left"]["units"]) * len(area["right"]["units"]) // 4 for area in plan["scheme"]["areas"])
    assert drawn, "areas have a size"


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Of two generated streams, a thousand rows a second of each, without an end."""
    columns = {"id": {"sequence": {}}, "k": {"uniform": {"min": 0, "max": 999}}}
    streams = [
        {
            "name": name,
            "source": {"generator": {"seed": seed, "rate": {"constant": 1000}, "columns": columns}},
            "schema": "id BIGINT, k BIGINT, at TIMESTAMP",
            "eventTime": "at",
            "watermark": "1s",
        }
        for seed, name in enumerate(("orders", "payments"))
    ]
    sink = {"files": {"path": str(tmp_path / "out"), "format": "parquet"}}
    output = {"select": ["orders.id AS a", "payments.id AS b"], "sink": sink}
    join = {"name": "near", "condition": "abs(orders.k - payments.k) <= 1", "window": {"within": "2s"}, "output": output}
    spec = {
        "streams": streams,
        "joins": [join],
        "workers": {"min": 1, "max": 3, "capacityTuples": 10_000},
        "epoch": {"interval": "100ms"},
        "checkpoint": {"location": str(tmp_path / "state")},
    }
    path = tmp_path / "m.yaml"
    kind = {"apiVersion": "streamjoin.dev/v1beta1", "kind": "StreamJoin", "metadata": {"name": "shop"}, "spec": spec}
    path.write_text(yaml.safe_dump(kind))
    return path


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``streamjoin run``, and the link to its page."""
    command = [sys.executable, "-m", "streamjoin", "run", *arguments, "--runner", "inline"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            found = next((line for line in run.stderr if line.startswith("page: ")), "")
            yield run, found.removeprefix("page: ").strip()
        finally:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=PATIENCE_SECONDS)


def test_the_link_that_a_run_prints_opens_its_page_and_nothing_else_does(manifest: Path, chromium: Browser) -> None:
    with running(str(manifest), "--ui", "--elastic") as (run, link):
        address, _, given = link.partition("#token=")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        for path in ("v1/live", "v1/plan", "v1/decisions"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address + path, timeout=PATIENCE_SECONDS)
            assert refused.value.code == 401
        with chromium.page(link) as (page, heard):
            expect(page.locator("#name")).to_have_text("shop")
            expect(page.locator("#doing")).to_have_text("running")
            assert given not in page.url  # so that it is in no history and no picture
            expect(page.get_by_role("tab")).to_have_text(["All", "join near", "stream orders", "stream payments"])
            page.reload()
            expect(page.locator("#doing")).to_have_text("running")

            page.get_by_role("button", name="Pause scaling").click()
            expect(page.locator("#decision-now")).to_contain_text("decisions are paused by the page")
            page.get_by_role("button", name=re.compile("^Why [0-9]+ worker")).click()
            why = page.get_by_role("dialog", name=re.compile("^Why"))
            expect(why).to_contain_text("decisions are paused by the page")
            expect(why).to_contain_text(re.compile(r"Thresholds: tau0 [0-9.]+, .*, scaleUpAfter [0-9.]+ m?s, scaleDownAfter [0-9]+ "))
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Let it scale again").click()
            expect(page.locator("#decision-now")).not_to_contain_text("paused")

            run.send_signal(signal.SIGINT)
            expect(page.locator("#link")).to_have_text("the run is over")
            # Then it is tried again, in vain, in case that somebody goes on with the join at this port.
            assert [error for error in heard.errors if "ERR_CONNECTION_REFUSED" not in error] == []
            assert heard.hosts == {address[len("http://") : -1]}


def test_a_page_without_the_token_asks_for_it(tmp_path: Path, chromium: Browser) -> None:
    made = Shown(tmp_path, token=Token("the-right-one"))
    with made.server, chromium.page(made.url) as (page, _):
        dialog = page.get_by_role("dialog", name="Token")
        expect(dialog).to_be_visible()
        dialog.get_by_label("Token").fill("guessed")
        dialog.get_by_role("button", name="Use it").click()
        expect(page.locator("#token-why")).to_have_text("The token is not the right one.")
        expect(dialog).to_be_visible()
        dialog.get_by_label("Token").fill("the-right-one")
        dialog.get_by_role("button", name="Use it").click()
        made.step()
        expect(page.locator("#doing")).to_have_text("running")
        expect(page.locator("#notice")).to_be_hidden()


def test_without_a_terminal_there_is_a_page_only_where_it_is_asked_for(manifest: Path) -> None:
    for options, has_page in (((), False), (("--metrics-port", "0"), True), (("--metrics-port", "0", "--no-ui"), False)):
        done = CliRunner().invoke(main, ["run", str(manifest), "--runner", "inline", "--for", "50ms", *options])
        assert (done.exit_code, "page: " in done.stderr) == (0, has_page), done.output


def test_on_a_terminal_a_run_has_a_page_by_itself(manifest: Path) -> None:
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "streamjoin", "run", str(manifest), "--runner", "inline", "--for", "50ms"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(command, stdout=terminal, stderr=subprocess.PIPE, text=True, env=environment) as run:
        os.close(terminal)
        with contextlib.suppress(OSError):  # of Linux, where the other end is closed
            while os.read(ours, 1 << 16):
                pass
        _, told = run.communicate(timeout=PATIENCE_SECONDS)
    os.close(ours)
    assert run.returncode == 0, told
    assert re.search(r"^page: http://127\.0\.0\.1:\d+/#token=\S{20,}$", told, re.MULTILINE)
    assert "metrics: " not in told


def test_the_page_works_with_the_keyboard_and_on_a_small_screen_in_the_dark(shown: Shown, chromium: Browser) -> None:
    for _ in range(12):
        result = shown.step()
    for width, dark in ((400, False), (400, True), (1200, True)):
        with chromium.page(shown.url, width=width, dark=dark) as (page, heard):
            read(page, result.epoch)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "what is wider than the screen scrolls by itself"
            assert page.evaluate(FAINT) == [], f"{width} pixels, {dark=}: contrast below 4.5 to 1"
            assert page.evaluate(NAMELESS) == []
            page.get_by_role("tab", name="All").focus()
            for name in ("join near", "join far", "stream l", "stream r", "All"):
                page.keyboard.press("ArrowRight")
                tab = page.get_by_role("tab", name=name)
                expect(tab).to_be_focused()
                expect(tab).to_have_attribute("aria-selected", "true")
                expect(page.get_by_role("tabpanel")).to_have_count(1)
                expect(page.get_by_role("tabpanel")).to_have_accessible_name(name)
            assert heard.errors == []


FAINT = """() => {
  const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, index) => sum + v * [0.2126, 0.7152, 0.0722][index], 0);
  const back = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parsed(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return Array.from(document.querySelectorAll("body *")).filter((one) => one.checkVisibility() && !one.closest("svg, .uplot")
      && Array.from(one.childNodes).some((child) => child.nodeType === 3 && child.textContent.trim()))
    .map((one) => {
      const [high, low] = [light(parsed(getComputedStyle(one).color)), light(back(one))].sort((a, b) => b - a);
      return [(high + 0.05) / (low + 0.05), one.outerHTML.slice(0, 80)];
    }).filter(([ratio]) => ratio < 4.5);
}"""
"""Texts that are hard to read (WCAG 2.1, 1.4.3)."""
NAMELESS = """() => Array.from(document.querySelectorAll("button, input, select, table, [role=img], [role=region], [role=tabpanel]"))
  .filter((one) => one.checkVisibility() && !(one.textContent.trim() && one.matches("button, table")))
  .filter((one) => !one.getAttribute("aria-label") && !one.getAttribute("aria-labelledby") && !one.labels?.length)
  .map((one) => one.outerHTML.slice(0, 80))"""
"""What a screen reader has no name for."""


INSIDE = 2e-4
"""So far from the corners of the band's rows they are tried; places are rounded to a hundred thousandth."""
BANDS = ("abs(l.k - r.k) <= 3", "l.k = r.k", "l.k < r.k", "l.k <> r.k", "l.v <= r.v + 5", "abs(l.k / 3.0 - r.k / 3.0) <= 1")


@pytest.mark.parametrize("near", BANDS)
def test_the_areas_of_the_picture_cover_the_band_and_no_point_twice(tmp_path: Path, near: str) -> None:
    shown = Shown(tmp_path, near=near)
    shown.server.close()
    for number in range(12):
        if number in (3, 6, 9):
            wish = {"workers": 1 + number // 3, "model": "square" if number == 6 else "adsp"}
            shown.api.answer(Request("PUT", "/v1/plan", json.dumps(wish).encode()))
        shown.step()
        shown.live.board.answer(Request("GET", "/v1/live"))  # raises where anything is no JSON
        drawn = shown.live.sections()["scheme"]
        for top, bottom, begin, end in drawn["band"]:
            for y, x in itertools.product((top + INSIDE, bottom - INSIDE), (begin + INSIDE, end - INSIDE)):
                if bottom - top < 2 * INSIDE or end - begin < 2 * INSIDE or is_cut(y, drawn, "rows") or is_cut(x, drawn, "columns"):
                    continue  # at the edge of an area, but for rounding
                inside = [area for area in drawn["areas"] if lies_in(y, area["rows"]) and lies_in(x, area["columns"])]
                assert len(inside) == 1, (number, y, x)
        hot = [one for side in drawn["sides"] for one in side["hot"]]
        assert all(0 <= one["ends"][0] <= one["ends"][1] <= 1 and 0 < one["share"] <= 1 for one in hot)
        if near in ("abs(l.k - r.k) <= 3", "l.k < r.k"):
            assert sum("only 7" in one["keys"] and one["share"] > 0.3 for one in hot) == 2, "half of all keys are 7"
        if near == "l.k = r.k":
            assert all(one["keys"].startswith("only hash ") for one in hot)
            assert max(one["share"] for one in hot) > 0.3


def is_cut(place: float, drawn: Any, side: str) -> bool:
    return any(abs(place - end) < INSIDE / 2 for area in drawn["areas"] for part in area[side] for end in part)


def lies_in(place: float, parts: list[list[float]]) -> bool:
    return any(low <= place < high for low, high in parts)


def test_the_server_gives_away_nothing_but_the_page(shown: Shown) -> None:
    def fetched(path: str, **headers: str) -> tuple[int, str, Any]:
        try:
            with urllib.request.urlopen(urllib.request.Request(shown.url + path, headers=headers), timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    status, text, headers = fetched("/", Accept="text/html,*/*")
    assert (status, text.startswith("<!doctype html>")) == (200, True)
    assert headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert fetched("/", Accept="*/*")[1].startswith("/  ")  # for curl
    for name in re.findall(r'(?:href|src)="(ui/[^"]+)"', text):
        assert fetched(f"/{name}")[0] == 200, name
    assert "MIT License" in fetched("/ui/vendor/uPlot.LICENSE")[1]
    for path in ("/ui/", "/ui/vendor", "/ui/../server.py", "/ui/%2e%2e/server.py", "/ui//etc/passwd", "/ui/page.py", "/index.html"):
        assert fetched(path)[0] == 404, path


def test_who_follows_gets_each_section_as_it_is_and_is_told_of_the_end(shown: Shown) -> None:
    connection = http.client.HTTPConnection(shown.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    connection.request("GET", "/v1/live", headers={"Accept": "text/event-stream"})
    answer = connection.getresponse()
    found: dict[str, Any] = {}

    def taken() -> str:
        lines = []
        while line := answer.readline().decode().strip():
            lines.append(line)
        kind, data = (line.partition(": ")[2] for line in lines)
        found.update(json.loads(data))
        return kind

    assert taken() == "live"
    for _ in range(5):
        number = shown.step().epoch
        for _ in range(40):
            # The clock of this join stands still, so that both come to be the same.
            if found["run"]["epoch"] == number and found == shown.get("/v1/live"):
                break
            assert taken() == "live"
        else:
            raise AssertionError(f"what came in parts is not the whole: {found}")
    shown.tell(Ended(Reason.STOPPED))
    shown.live.board.finish()
    while taken() != "end":
        pass
    assert found["run"]["ended"] == {"reason": "stopped", "error": None}
    connection.close()


def test_every_field_is_documented(shown: Shown) -> None:
    for _ in range(5):
        shown.step()
    shown.tell(Notice("warning: something"))
    shown.get("/v1/plan", "PUT", {"workers": 2})
    coming = shown.get("/v1/live")
    while shown.get("/v1/plan")["wanted"] is not None:
        shown.step()
    document = {**shown.get("/v1/live"), "coming": coming["coming"]}
    text = (Path(__file__).parent.parent / "docs" / "api.md").read_text().split("## GET /v1/live\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)(?:\[\])?` \| (.*) \|$", text, re.MULTILINE))
    assert rows.keys() == document.keys()
    for section, value in document.items():
        fields = value[0] if isinstance(value, list) and value else value
        told = set(re.findall(r"`(\w+)", rows[section]))
        missing = set(fields if isinstance(fields, dict) else ()) - told
        assert missing == set(), section


def test_a_run_does_nothing_for_a_page_that_nobody_looks_at() -> None:
    observed = []
    board = Board(lambda: observed.append(1) or {"run": {}}, pause_seconds=0.2)
    for _ in range(1000):
        board.changed()
    assert observed == []


def test_more_than_so_many_pages_are_told_to_come_again(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.serve.live.MOST_FOLLOWERS", 1)
    where = shown.url.removeprefix("http://")
    first, second = (http.client.HTTPConnection(where, timeout=PATIENCE_SECONDS) for _ in range(2))
    first.request("GET", "/v1/live", headers={"Accept": "text/event-stream"})
    assert first.getresponse().readline().startswith(b"event: live")
    second.request("GET", "/v1/live", headers={"Accept": "text/event-stream"})
    refused = second.getresponse()
    assert (refused.status, refused.headers["Retry-After"], "close a page" in json.loads(refused.read())["error"]) == (503, "5", True)
    assert shown.get("/v1/live")["run"]["name"] == "test"
    first.close()
    second.close()


def test_a_plan_is_put_after_a_look_at_what_it_moves(shown: Shown, chromium: Browser) -> None:
    for _ in range(6):
        epoch = shown.step().epoch
    with chromium.page(shown.url) as (page, heard):
        read(page, epoch)
        page.get_by_role("spinbutton", name="Workers").fill("3")
        page.get_by_role("button", name="Show what it would move").click()
        apply = page.get_by_role("button", name="Apply plan 2")
        expect(apply).to_be_visible()
        assert shown.get("/v1/plan")["wanted"] is None, "a preview is no plan"
        previewed = page.locator("#preview").inner_text()
        assert page.locator("#preview tbody tr").count() == 3
        assert {int(area.get_attribute("data-task") or "") for area in page.locator("#preview .area").all()} == {0, 1, 2}
        apply.click()
        expect(page.locator("#change-said")).to_have_text("Plan 2 is on its way.")
        wanted = shown.get("/v1/plan")["wanted"]
        assert (wanted["generation"], wanted["workers"]) == (2, 3)
        coming = shown.get("/v1/live")["coming"]
        assert f"moves\n{coming['movedTuples']:,} tuples; " in previewed
        while shown.get("/v1/plan")["generation"] != 2:
            epoch = shown.step().epoch
        assert read(page, epoch)["plan"].startswith("Plan 2 runs on 3 workers.")
        page.get_by_role("spinbutton", name="Workers").fill("9")
        page.get_by_role("button", name="Show what it would move").click()  # the browser itself refuses what is beyond the limits
        assert page.evaluate("document.querySelector('#change-workers').validity.rangeOverflow")
        page.get_by_role("spinbutton", name="Workers").fill("3")
        page.get_by_role("button", name="Show what it would move").click()
        expect(page.locator("#change-said")).to_have_text("The plan that runs serves as well: nothing would move.")
        assert heard.errors == []


def test_a_preview_puts_nothing_and_what_it_says_to_put_is_that_very_plan(shown: Shown) -> None:
    with pytest.raises(urllib.error.HTTPError) as early:
        shown.get("/v1/plan/preview", "POST", {"workers": 2})
    assert early.value.code == 503
    for _ in range(8):
        shown.step()
    before = shown.get("/v1/plan")
    told = shown.get("/v1/plan/preview", "POST", {"workers": 4})
    assert shown.get("/v1/plan") == before
    plan = json.loads(told["put"])
    assert (told["changed"], told["workers"], plan["generation"], plan["keep"]) == (True, 4, before["generation"] + 1, told["keep"])
    held = sum(sum(of_task) for of_task in shown.driver.checkpoint.state.held.values())
    assert abs(sum(told["utilization"]) * 1000 - told["moved"]["movedTuples"] - told["moved"]["keptTuples"]) <= 4
    assert told["moved"]["keptTuples"] <= held
    assert told["moved"]["leastTuples"] <= told["moved"]["movedTuples"] <= told["moved"]["naiveTuples"]
    assert sum(move["tuples"] for move in told["moved"]["moves"]) == pytest.approx(told["moved"]["movedTuples"], abs=8)
    again = shown.get("/v1/plan/preview", "POST", plan)
    assert again == told, "of a whole plan it is the same"
    assert shown.get("/v1/plan", "PUT", plan)["wanted"] == {key: plan[key] for key in ("generation", "scheme", "keep")} | {
        "workers": 4,
        "asked": 4,
    }
    for body, status, error in (
        ({"workers": 2}, 409, "plan 2 is being applied"),
        ({"workers": "2"}, 400, 'workers: "2" must be a whole number'),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            shown.get("/v1/plan/preview", "POST", body)
        assert (refused.value.code, error in json.loads(refused.value.read())["error"]) == (status, True)
    while shown.get("/v1/plan")["wanted"] is not None:
        shown.step()
    switched = shown.get("/v1/plan")["switched"]
    # What was expected came true, but for what came and went in the epochs between.
    assert switched["movedTuples"] == pytest.approx(told["moved"]["movedTuples"], rel=0.3)
    for body, error in (({"workers": 5}, "workers: 5 must be from 1 (spec.workers.min) to 4"), (plan, "generation: 2 must be above 2")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            shown.get("/v1/plan/preview", "POST", body)
        assert error in json.loads(refused.value.read())["error"]
    assert shown.get("/v1/plan/preview", "POST", {"workers": 4})["changed"] is False
    with pytest.raises(urllib.error.HTTPError) as refused:
        shown.get("/v1/scaling", "PUT", {"paused": True})
    assert (refused.value.code, "start the run with --elastic" in json.loads(refused.value.read())["error"]) == (409, True)
    assert shown.get("/v1/scaling") == {"elastic": False, "mode": "Enforce", "paused": False, "by": None}


def test_who_may_not_write_sees_no_buttons_for_it(tmp_path: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamjoin.serve.admission._is_loopback", lambda host: False)  # as on an address that others can reach
    made = Shown(tmp_path)
    with made.server, chromium.page(made.url) as (page, heard):
        read(page, made.step().epoch)
        expect(page.locator("#link")).to_have_text("live, read-only")
        expect(page.get_by_role("button", name="Show what it would move")).to_have_count(0)
        expect(page.get_by_text("Read-only: give the run's token")).to_be_visible()
        with pytest.raises(urllib.error.HTTPError) as refused:
            made.get("/v1/plan/preview", "POST", {"workers": 2})
        assert refused.value.code == 403
        assert heard.errors == []


@pytest.mark.parametrize(
    ("namespace", "told"),
    [
        (None, "Ctrl-C where it runs; streamjoin run x goes on at the same place."),
        ("shop", "kubectl streamjoin suspend test -n shop, or the page of all joins (kubectl streamjoin open)"),
    ],
)
def test_it_says_how_the_whole_join_is_stopped(namespace: str | None, told: str, tmp_path: Path, chromium: Browser) -> None:
    made = Shown(tmp_path, steps=1, namespace=namespace)
    with made.server, chromium.page(made.url) as (page, heard):
        expect(page.locator("#stopping")).to_contain_text(told)
        about = made.get("/v1/live")["about"]
        assert (about["namespace"], about["command"]) == (namespace, "streamjoin run x" if namespace is None else None)
        assert heard.errors == []
