"""``kubectl streamjoin open``: a real browser on a real driver's page, through a kubectl that forwards ports as the real one does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser import browser
from shown_join import Shown, read
from streamjoin.bearer import TokenFile
from streamjoin_operator.following import Ended, Unreachable
from streamjoin_operator.health import Health
from streamjoin_operator.opening import keep_open
from streamjoin_operator.page import PageServer
from streamjoin_operator.queue import Queue
from streamjoin_operator.seen import Seen
from waiting import PATIENCE_SECONDS

KUBECTL = """#!{python}
import os, select, socket, sys, threading
from pathlib import Path
words, here = sys.argv[1:], Path(sys.argv[0]).parent
if "get" in words:
    if words[words.index("streamjoins.streamjoin.dev") + 1] != "one":
        sys.exit('Error from server (NotFound): streamjoins.streamjoin.dev "two" not found')
    print('{{"metadata": {{"name": "one"}}}}')
elif "exec" in words:
    assert words[words.index("exec"):] == ["exec", "deployment/sj-one", "--container=driver", "--", "cat", "/etc/streamjoin-token/token"]
    if (here / "forbidden").exists():
        sys.exit("Error from server (Forbidden): pods is forbidden")
    print(Path("{token}").read_text())
else:
    assert words[-3:-1] == ["port-forward", "deployment/sj-one"], words
    ours, theirs = words[-1].split(":")
    assert theirs == "8080"
    server = socket.create_server(("127.0.0.1", int(ours or 0)), reuse_port=False)
    print(f"Forwarding from 127.0.0.1:{{server.getsockname()[1]}} -> 8080", flush=True)
    def forward(client):
        with client, socket.create_connection(("127.0.0.1", {port})) as driver:
            while True:
                for one in select.select([client, driver], [], [])[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    (driver if one is client else client).sendall(data)
    while not (here / "cut").exists():
        if select.select([server], [], [], 0.05)[0]:
            threading.Thread(target=forward, args=(server.accept()[0],), daemon=True).start()
    (here / "cut").unlink()
    print("error: lost connection to pod", file=sys.stderr, flush=True)
    os._exit(1)
"""


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    token = tmp_path / "token"
    token.write_text("a-token")
    made = Shown(tmp_path, token=TokenFile(token))
    with made.server:
        yield made


@contextlib.contextmanager
def opened(directory: Path, port: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    kubectl = directory / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable, token=directory / "token", port=port))
    kubectl.chmod(0o755)
    environment = os.environ | {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}", "BROWSER": f"{directory}/browser %s"}
    command = [sys.executable, "-m", "streamjoin_operator.plugin", "open", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as plugin:
        try:
            yield plugin
        finally:
            plugin.kill()


@pytest.mark.chromium
def test_the_page_of_a_join_in_the_cluster_is_opened_and_found_again(shown: Shown, tmp_path: Path) -> None:
    port = shown.url.rpartition(":")[2]
    first = shown.step().epoch
    with opened(tmp_path, port, "one", "--no-browser") as plugin, browser() as chromium:
        assert plugin.stdout is not None
        assert plugin.stderr is not None
        link = plugin.stdout.readline().removeprefix("page: ").strip()
        assert link.endswith("/#token=a-token")
        with chromium.page(link) as (page, _):
            read(page, first)
            (tmp_path / "cut").touch()
            assert plugin.stderr.readline() == "error: lost connection to pod; connecting again\n"
            read(page, shown.step().epoch)
            expect(page.locator("#doing")).to_have_text("running")
        plugin.send_signal(signal.SIGINT)
        assert plugin.wait(PATIENCE_SECONDS) == 0


@pytest.mark.chromium
def test_who_may_not_read_the_token_is_asked_for_it(shown: Shown, tmp_path: Path) -> None:
    (tmp_path / "forbidden").touch()
    opener = tmp_path / "browser"
    opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    opener.chmod(0o755)
    with opened(tmp_path, shown.url.rpartition(":")[2], "one") as plugin, browser() as chromium:
        assert plugin.stdout is not None
        assert plugin.stderr is not None
        link = plugin.stdout.readline().removeprefix("page: ").strip()
        assert "#" not in link
        assert "the token cannot be read, and the page will ask for it: Error from server (Forbidden)" in plugin.stderr.readline()
        with chromium.page(link) as (page, _):
            expect(page.get_by_role("dialog", name="Token")).to_be_visible()
        plugin.send_signal(signal.SIGINT)
        assert plugin.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / "opened").read_text() == link


def test_a_join_that_there_is_not_is_said(shown: Shown, tmp_path: Path) -> None:
    with opened(tmp_path, "1", "two") as plugin:
        _, said = plugin.communicate(timeout=PATIENCE_SECONDS)
    assert said == 'kubectl streamjoin: Error from server (NotFound): streamjoins.streamjoin.dev "two" not found\n'
    assert plugin.returncode == 1


def test_a_connection_that_breaks_after_hours_is_made_again_and_given_up_when_it_stays_away() -> None:
    now, sleeps, begun, told = [0.0], list[float](), list[int](), list[str]()

    def begin(port: int) -> subprocess.Popen[str]:
        begun.append(port)
        if len(begun) > 3:
            raise Unreachable("no such pod")
        now[0] += 7200  # it lasted
        pipe = subprocess.PIPE
        script = "echo 'Forwarding from 127.0.0.1:4711 -> 8080'; echo 'Handling connection for 4711'; echo 'lost connection' >&2; exit 1"
        return subprocess.Popen(["sh", "-c", script], stdout=pipe, stderr=pipe, text=True)

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += seconds

    links: list[str] = []
    with pytest.raises(Ended, match="no such pod"):
        keep_open(begin, 0, token=lambda: "t", show=links.append, tell=told.append, sleep=sleep, clock=lambda: now[0])
    assert links == ["http://127.0.0.1:4711/#token=t"]
    assert begun[:4] == [0, 4711, 4711, 4711]
    assert told[:4] == ["lost connection; connecting again"] * 3 + ["no such pod; connecting again"]
    assert sleeps[:6] == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0]
    assert 100 < sum(sleeps[3:]) < 140
    with pytest.raises(Ended, match="no such pod"):
        keep_open(begin, 0, token=lambda: None, show=links.append, tell=told.append, sleep=sleep, clock=lambda: now[0])


@pytest.mark.chromium
@pytest.mark.parametrize("secret", ["there", "forbidden", ""])
def test_the_page_of_the_operator_is_that_of_the_pod_that_is_at_work(secret: str, tmp_path: Path) -> None:
    health = Health(Queue(lambda key: None))  # type: ignore[arg-type, return-value]
    health.state = "active"
    with PageServer(Seen(), health, 0) as server:
        kubectl = tmp_path / "kubectl"
        kubectl.write_text(OPERATORS.format(python=sys.executable, port=server.port, secret=secret))
        kubectl.chmod(0o755)
        environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        command = [sys.executable, "-m", "streamjoin_operator.plugin", "open", "--no-browser"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as plugin, browser() as chromium:
            assert plugin.stdout is not None
            assert plugin.stderr is not None
            link = plugin.stdout.readline().removeprefix("page: ").strip()
            assert link.partition("/#")[2] == ("token=a-token" if secret == "there" else "")
            if secret == "forbidden":
                assert "and the page only shows until it is given (Token): Error from server (Forbidden)" in plugin.stderr.readline()
            with chromium.page(link) as (page, _):
                expect(page.locator("#operator")).to_have_text("active")
                expect(page.get_by_text("There are none.")).to_be_visible()
            plugin.send_signal(signal.SIGINT)
            assert plugin.wait(PATIENCE_SECONDS) == 0


OPERATORS = """#!{python}
import json, sys, time
words = sys.argv[1:]
def pod(name):
    env = [{{"name": "STREAMJOIN_PAGE_PORT", "value": "8090"}}]
    spec = {{"containers": [{{"env": env}}], "volumes": [{{"name": "tmp", "emptyDir": {{}}}}]}}
    if "{secret}":
        spec["volumes"].append({{"name": "page-token", "secret": {{"secretName": "page", "items": [{{"key": "word", "path": "token"}}]}}}})
    return {{"metadata": {{"name": name, "namespace": "ops"}}, "status": {{"phase": "Running"}}, "spec": spec}}
if "pods" in words:
    print(json.dumps({{"items": [pod("one"), pod("two")]}}))
elif "secret" in words:
    assert words == ["get", "secret", "page", "--namespace=ops", "-o", "json"], words
    if "{secret}" == "forbidden":
        sys.exit("Error from server (Forbidden): secrets is forbidden")
    print(json.dumps({{"data": {{"word": "YS10b2tlbgo="}}}}))
elif "leases" in words:
    print(json.dumps({{"items": [{{"spec": {{"holderIdentity": "two_1"}}}}]}}))
else:
    assert words == ["--namespace=ops", "port-forward", "pod/two", ":8090"], words
    print("Forwarding from 127.0.0.1:{port} -> 8090", flush=True)
    time.sleep(600)
"""
