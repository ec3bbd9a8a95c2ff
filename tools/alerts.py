"""Writes ``docs/alerts.yaml``: ``python tools/alerts.py`` (``make monitoring``).

These are the chart's alerts about joins, with its default values, for a Prometheus that no chart sets up. The chart renders the same of
the same two files; ``tests/test_chart.py`` compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "streamjoin-operator"
FILE = ROOT / "docs" / "alerts.yaml"
NOTE = "# The chart's alerts about joins, with its default values: what rule_files of a Prometheus wants. Made by: make monitoring\n"
JOINS = "streamjoin"
"""The group that needs no operator."""

Object = dict[str, Any]


class _Lines(yaml.SafeDumper):
    """Leaves lines as they are."""


def _text(dumper: _Lines, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Lines.add_representer(str, _text)


def groups() -> list[Object]:
    """All groups as the chart renders them with its default values."""
    settings = yaml.safe_load((CHART / "values.yaml").read_text())["alerts"]["rules"]
    source = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    return [{"name": each["name"], "rules": [_rule(rule, settings[rule["alert"]]) for rule in each["rules"]]} for each in source["groups"]]


def _rule(rule: Object, settings: Object) -> Object:
    return {
        "alert": rule["alert"],
        "expr": rule["expr"].strip().replace("{{ .threshold }}", str(settings.get("threshold"))),
        "for": settings["for"],
        "labels": {"severity": settings["severity"]},
        "annotations": rule["annotations"] | {"runbook": f"docs/alerts.md#{rule['alert'].lower()}"},
    }


def text() -> str:
    """As it is written into the documentation."""
    kept = [group for group in groups() if group["name"] == JOINS]
    return NOTE + yaml.dump({"groups": kept}, Dumper=_Lines, sort_keys=False, width=1000)


if __name__ == "__main__":
    FILE.write_text(text())
