"""Asks whether what a release has in it is known to be vulnerable.

Two programs, two sources: pip-audit asks Python's index about the locked packages, and osv-scanner asks osv.dev about all that the bills
of materials list, Debian's packages and Java archives among them. What cannot be asked about is a failure; pip-audit passes over it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_programs
from release_steps import locks
from release_steps.failure import ROOT, ReleaseError, program, say

IGNORED = "docker/vulnerabilities-accepted.txt"
"""Lines: an identifier, and why it does not matter here."""


def scan(release: Path, osv_scanner: Path | None = None, root: Path = ROOT) -> None:
    """Raises ReleaseError with a line for each finding and for each package that nobody could be asked about."""
    found = [line for name in locks.RELEASED for line in audit(locks.path(name, root), root)]
    bills = sorted(release.glob("*.cdx.json"))
    if not bills:
        raise ReleaseError(f"{release}: has no bills of materials (*.cdx.json); run tools/release.py images")
    for bill in bills:
        found += scan_bill(bill, osv_scanner, root)
    if found:
        raise ReleaseError("\n".join([*sorted(set(found)), f"update (make lock UPGRADE=1), or say in {IGNORED} why it does not matter"]))
    say(f"nothing known of {len(bills)} bills of materials and {len(locks.RELEASED)} locks")


def accepted(root: Path = ROOT) -> dict[str, str]:
    """By identifier, why it does not matter. Raises ReleaseError."""
    reasons = {}
    for number, line in enumerate((root / IGNORED).read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            identifier, _, why = line.partition(" ")
            if not why.strip():
                raise ReleaseError(f"{IGNORED}:{number}: {identifier}: gives no reason; add it after a blank")
            reasons[identifier] = why.strip()
    return reasons


def audit(lock: Path, root: Path = ROOT, *more: str) -> list[str]:
    """What Python's index knows of locked packages. Raises ReleaseError where it cannot be asked about one."""
    options = ["--require-hashes", "--disable-pip", "--format=json", "--progress-spinner=off", *more]
    done = subprocess.run([program("pip-audit"), *options, "-r", lock], capture_output=True, text=True, check=False)
    try:
        dependencies: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        raise ReleaseError(f"pip-audit {lock.name}: {done.stderr.strip()[-1000:]}") from None
    skipped = [str(each["name"]) for each in dependencies if "skip_reason" in each]
    if skipped:
        names = f"{', '.join(skipped[:5])}{' ...' if len(skipped) > 5 else ''}"
        remedy = "scan where https://pypi.org/pypi/NAME/VERSION/json can be reached"
        raise ReleaseError(f"pip-audit {lock.name}: the index answered nothing about {len(skipped)} packages ({names}); {remedy}")
    ignored = accepted(root)
    return [
        f"{lock.name}: {each['name']} {each['version']}: {one['id']}, mended in {', '.join(one['fix_versions']) or 'no version yet'}"
        for each in dependencies
        for one in each["vulns"]
        if not ignored.keys() & {one["id"], *one["aliases"]}
    ]


def scan_bill(bill: Path, osv_scanner: Path | None = None, root: Path = ROOT) -> list[str]:
    """What osv.dev knows of a bill of materials. Raises ReleaseError where it cannot be asked."""
    try:
        path = osv_scanner or kubernetes_programs.obtain("osv-scanner")
    except kubernetes_programs.MissingError as error:
        raise ReleaseError(str(error)) from error
    done = subprocess.run([path, "scan", "source", "--format=json", "--lockfile", bill], capture_output=True, text=True, check=False)
    # 0: nothing found, 1: something found; else it could not ask.
    if done.returncode not in (0, 1):
        raise ReleaseError(f"osv-scanner {bill.name}: exit code {done.returncode}: {done.stderr.strip()[-1000:]}")
    ignored = accepted(root)
    lines = []
    for result in json.loads(done.stdout).get("results") or []:
        for each in result["packages"]:
            for group in each.get("groups") or []:
                if not ignored.keys() & {*group["ids"], *(group.get("aliases") or [])}:
                    about, severity = each["package"], group.get("max_severity") or "not said"
                    lines.append(f"{bill.name}: {about['name']} {about['version']}: {group['ids'][0]}, severity {severity}")
    return lines
