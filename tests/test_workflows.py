"""GitHub's workflows: what they run is what can be run here, they may do no more than they must, and their actions are pinned."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import kubernetes_programs
from release_steps.images import IMAGES
from release_steps.publishing import tell_workflow
from skips import lacks

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

if not (ROOT / "mkdocs.yml").exists():
    TARGETS.add("docs")  # comes with the site

MAY_WRITE = {("release", "publish"): {"contents", "packages", "id-token", "attestations"}, ("release", "docs"): {"contents"}}
"""By workflow and job, what it may do besides reading; all others read."""

Object = dict[str, Any]


def read(path: Path) -> Object:
    # YAML 1.1 takes the key `on` for a truth value.
    return {("on" if key is True else key): value for key, value in yaml.safe_load(path.read_text()).items()}


def steps(workflow: Object) -> list[tuple[str, Object]]:
    return [(name, step) for name, job in workflow["jobs"].items() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_runs_is_a_target_or_a_script_of_ours(path: Path) -> None:
    for name, step in steps(read(path)):
        for line in str(step.get("run", "")).splitlines():
            program, *arguments = shlex.split(line)
            if program == "make":
                [target] = [argument for argument in arguments if "=" not in argument]
                assert target in TARGETS, f"{name}: {line}"
            else:
                assert program == "bash", f"{name}: {line}: give it a target of the Makefile, to run it elsewhere"
                script, *targets = arguments
                assert (ROOT / script).is_file(), f"{name}: {line}"
                assert set(targets) <= TARGETS, f"{name}: {line}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_may_do_no_more_than_it_must(path: Path) -> None:
    workflow = read(path)
    assert "pull_request_target" not in workflow["on"], "it runs what strangers wrote, with our secrets"
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        written = {what for what, right in job.get("permissions", {}).items() if right == "write"}
        assert written == MAY_WRITE.get((path.stem, name), set())
        assert job["timeout-minutes"] <= 300
    text = path.read_text()
    assert "secrets." not in text, "a secret that is stored can be stolen; take github.token or an identity of the moment"
    for line in re.findall(r"run: (.*)", text):
        assert "${{" not in line, f"{line}: what GitHub puts into a script is run; give it as an environment variable"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_said(path: Path) -> None:
    for line in re.findall(r"uses: (.*)", path.read_text()):
        pinned = re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+(;.*)?", line)
        assert pinned, f"{line}: pin its commit, and say which version that is"
    for name, step in steps(read(path)):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, f"{name}: what runs later could push"


def test_one_version_of_an_action_is_taken_everywhere() -> None:
    used: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, commit in re.findall(r"uses: (\S+?)@(\S+)", path.read_text()):
            used.setdefault(action, set()).add(commit)
    assert {action: commits for action, commits in used.items() if len(commits) > 1} == {}


def test_tests_run_on_every_python_that_the_project_takes() -> None:
    matrix = read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert matrix == [f"3.{minor}" for minor in range(11, 15)]
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()


def test_each_night_asks_the_oldest_and_the_newest_kubernetes_and_the_chart_takes_none_that_is_older() -> None:
    matrix = read(ROOT / ".github/workflows/ci.yml")["jobs"]["kubernetes"]["strategy"]["matrix"]["kubernetes"]
    assert matrix == [kubernetes_programs.OLDEST, kubernetes_programs.NEWEST]
    oldest, usual, newest = (version.rpartition(".")[0] for version in (matrix[0], kubernetes_programs.USUAL, matrix[1]))
    chart = yaml.safe_load((ROOT / "charts/streamjoin-operator/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={oldest.removeprefix('v')}.0-0"
    page = (ROOT / "docs/kubernetes.md").read_text()
    tested = re.findall(r"^\| (1\.\d+) \|", page.partition("### Versions of Kubernetes")[2].partition("\n#")[0], re.MULTILINE)
    assert [f"v{version}" for version in tested] == [oldest, usual, newest]


def test_each_night_runs_every_shard_of_all_tests() -> None:
    shards = read(ROOT / ".github/workflows/ci.yml")["jobs"]["all"]["strategy"]["matrix"]["shard"]
    assert shards == [f"{number}/{len(shards)}" for number in range(1, len(shards) + 1)]


def test_provenance_is_stated_of_each_image_that_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    tell_workflow({f"ghcr.io/team/streamjoin-{name}": f"sha256:{name}" for name in IMAGES})
    told = dict(line.split("=") for line in (tmp_path / "output").read_text().splitlines())
    publish = read(ROOT / ".github/workflows/release.yml")["jobs"]["publish"]["steps"]
    about = [step["with"] for step in publish if "subject-name" in step.get("with", {})]
    asked = {each["subject-name"].rpartition("/")[2]: each["subject-digest"] for each in about}
    assert asked == {name: f"${{{{ steps.published.outputs.{name} }}}}" for name in told}


def test_actionlint_finds_nothing() -> None:
    actionlint = kubernetes_programs.find("actionlint")
    if actionlint is None:
        pytest.skip(lacks("actionlint", "make kubernetes"))
    done = subprocess.run([actionlint, "-no-color", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
