"""The tools that make a cluster for tests, without one: which cluster they choose, what they end, what Prometheus is told to scrape."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cluster
import kubernetes_programs
import node
from waiting import PATIENCE_SECONDS


def test_a_given_cluster_is_taken_and_never_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    found = cluster.find_cluster()
    assert type(found) is cluster.Cluster
    found.down()
    assert "was not started here" in capsys.readouterr().err
    with pytest.raises(cluster.ClusterError, match=r"config: no API server answers; .* unset KUBECONFIG"):
        found.up()
    monkeypatch.delenv("REGISTRY", raising=False)
    with pytest.raises(cluster.ClusterError, match="REGISTRY"):
        found.load("streamjoin-engine:1")


def test_the_kubeconfig_of_our_own_node_means_that_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.HOME / "kubeconfig"))
    monkeypatch.setattr(cluster, "succeeds", lambda *command: False)
    assert type(cluster.find_cluster()) is cluster.Single


def test_an_image_that_is_none_of_ours_is_named() -> None:
    with pytest.raises(cluster.ClusterError, match="driver: no such image; there are engine, operator, prometheus, kafka"):
        cluster.load_images(cluster.Cluster(Path("none")), ["driver"])


def test_a_process_is_ended_and_another_with_its_number_is_not(tmp_path: Path) -> None:
    mine = node.Node(tmp_path)
    mine.run.mkdir()
    with subprocess.Popen(["sleep", "60"]) as process:
        (mine.run / "etcd.pid").write_text(f"{process.pid} 1")
        mine._stop("etcd")
        assert process.poll() is None, "a process that started at another time is another process"
        (mine.run / "etcd.pid").write_text(f"{process.pid} {node._started(process.pid)}")
        mine._stop("etcd")
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert node._started(process.pid) is None
    assert node._started(os.getpid()) is not None


def test_a_missing_pid_file_is_no_process(tmp_path: Path) -> None:
    assert not node.Node(tmp_path).is_up()


@pytest.mark.parametrize(
    ("version", "toolchain", "is_taken"),
    [
        ("go1.26.0", "local", True),
        ("go1.24.9", "local", False),
        ("go1.24.9", "auto", True),  # it fetches a newer one by itself
        ("go1.19.8", "", False),
        ("devel", "local", False),
    ],
)
def test_a_go_that_is_too_old_is_passed_over(
    version: str, toolchain: str, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\nprintf '%s\\n' '{version}' '{toolchain}'\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (kubernetes_programs.find_go() == str(go)) is is_taken


def test_servers_of_another_version_have_a_cache_of_their_own_and_all_else_is_shared(tmp_path: Path) -> None:
    ask = "from kubernetes_programs import PROGRAMS, cache; print(*(f'{name} {cache(name).name}' for name in PROGRAMS), sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(Path(kubernetes_programs.__file__).parent), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", ask]
    told = {
        version: subprocess.run(command, env={**environment, "STREAMJOIN_KUBERNETES": version}, capture_output=True, text=True, check=True)
        for version in ("", "v1.31.0")
    }
    usual, other = (dict(line.split() for line in told[version].stdout.splitlines()) for version in ("", "v1.31.0"))
    assert set(usual.values()) == {f"kubernetes-{kubernetes_programs.USUAL}"}
    servers = {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}
    assert {name for name, directory in other.items() if directory == "kubernetes-v1.31.0"} == servers
    assert {name: other[name] for name in usual if name not in servers} == {name: usual[name] for name in usual if name not in servers}


def test_a_server_of_another_version_is_not_looked_for_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kube-apiserver", "kubectl"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    server = dataclasses.replace(kubernetes_programs.PROGRAMS["kube-apiserver"], version="v1.31.0")
    monkeypatch.setitem(kubernetes_programs.PROGRAMS, "kube-apiserver", server)
    monkeypatch.setattr(kubernetes_programs, "KUBERNETES", "v1.31.0")
    assert kubernetes_programs.find("kube-apiserver") is None
    assert kubernetes_programs.find("kubectl") == tmp_path / "kubectl"


def test_prometheus_scrapes_running_pods_that_ask_for_it() -> None:
    def pod(name: str, phase: str = "Running", **asked: str) -> dict[str, Any]:
        annotations = {f"prometheus.io/{key}": value for key, value in asked.items()}
        metadata = {"namespace": "a", "name": name, "annotations": annotations, "labels": {"app.kubernetes.io/name": "streamjoin"}}
        return {"metadata": metadata, "status": {"phase": phase, "podIP": "10.0.0.1"}}

    others = [pod("two", scrape="false"), pod("three", "Pending", scrape="true"), pod("four")]
    found = [pod("one", scrape="true", port="8080", path="/m"), *others]
    labels = {"__metrics_path__": "/m", "job": "streamjoin", "namespace": "a", "pod": "one"}
    assert discover().targets(found) == [{"targets": ["10.0.0.1:8080"], "labels": labels}]


def discover() -> Any:
    spec = importlib.util.spec_from_file_location("discover", cluster.PARTS / "discover.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
