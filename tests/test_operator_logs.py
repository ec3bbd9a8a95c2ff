"""The operator's logs: each line of a run can be read by a program."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from ports import free_address
from streamjoin.logs import FORMATS
from waiting import PATIENCE_SECONDS

LEVELS = {"debug", "info", "warning", "error", "critical"}
TOKEN = "nobody-may-see-this-token"


def lines_of_a_run(directory: Path, form: str) -> list[str]:
    """Of an operator whose API server is not there, from its start to its end."""
    kubeconfig = directory / "kubeconfig"
    named = {"clusters": "cluster", "users": "user", "contexts": "context"}
    parts: dict[str, dict[str, str]] = {
        "clusters": {"server": f"http://{free_address()}"},
        "users": {"token": TOKEN},
        "contexts": {"cluster": "one", "user": "one"},
    }
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "one"}
    kubeconfig.write_text(yaml.safe_dump(config | {kind: [{"name": "one", named[kind]: part}] for kind, part in parts.items()}))
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "STREAMJOIN_LOG_FORMAT": form, "STREAMJOIN_LOG_LEVEL": "debug"}
    port = free_address().rpartition(":")[2]
    command = [sys.executable, "-m", "streamjoin_operator", "--port", port, "--watch-namespaces", "team-a"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        lines = []
        for line in running.stdout:
            lines.append(line)
            if "will retry" in line:
                break
        running.send_signal(signal.SIGTERM)
        rest, error = running.communicate(timeout=PATIENCE_SECONDS)
    assert lines, error
    return [line.rstrip("\n") for line in lines + rest.splitlines()]


def test_every_line_of_a_run_is_one_json_object_of_one_schema(tmp_path: Path) -> None:
    for line in lines_of_a_run(tmp_path, "json"):
        found = json.loads(line)
        assert (
            {"time", "level", "logger", "message"} <= found.keys() <= {"time", "level", "logger", "message", "namespace", "name", "error"}
        )
        assert all(isinstance(value, str) for value in found.values())
        assert datetime.fromisoformat(found["time"]).tzinfo is not None
        assert found["level"] in LEVELS
        assert TOKEN not in line


def test_every_line_of_a_run_is_text_where_that_is_asked_for(tmp_path: Path) -> None:
    for line in lines_of_a_run(tmp_path, "text"):
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ ", line), line
        assert TOKEN not in line


@pytest.mark.parametrize("form", FORMATS)
def test_a_record_says_which_streamjoin_it_is_about_and_stays_one_line(form: str) -> None:
    def line(**extra: object) -> str:
        record = logging.makeLogRecord({"name": "a", "levelname": "ERROR", "msg": "first\nsecond", "created": 0.0, **extra})
        return FORMATS[form]().format(record)

    try:
        raise ValueError("wrong")
    except ValueError:
        failed = line(exc_info=sys.exc_info(), streamjoin="team-a/near")
    kopfs = line(k8s_ref={"namespace": "team-a", "name": "near"})
    for found in (failed, kopfs):
        assert len(found.splitlines()) == 1
        if form == "json":
            assert (json.loads(found)["namespace"], json.loads(found)["name"]) == ("team-a", "near")
            assert json.loads(found)["message"] == "first\nsecond"
        else:
            assert found.startswith("1970-01-01T00:00:00.000Z ERROR a [team-a/near] first\\nsecond")
    assert "ValueError: wrong" in failed
