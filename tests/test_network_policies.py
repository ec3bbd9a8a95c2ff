"""The NetworkPolicies of the chart and of joins, enforced: what they are to let through passes, and all else is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from chart import of_kind, rendered
from operator_parts import streamjoin
from policy_network import Connection, Pod, passing, unusable
from streamjoin_operator import children
from streamjoin_operator.derived import derive
from streamjoin_operator.pod_templates import driver_template, executor_template, queries_template
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings

Object = dict[str, Any]
Change = Callable[[dict[str, Object]], Any]
NAMESPACES = {
    name: {"kubernetes.io/metadata.name": name, **labels}
    for name, labels in {"operators": {}, "team-a": {"tier": "gold"}, "team-b": {}, "monitoring": {"scrapes": "yes"}}.items()
}
PORTS = [f"tcp/{port}" for port in (22, 53, 80, 443, 6443, 7076, 7077, 7078, 7079, 7080, 7095, 7096, 8080, 8081, 9090, 9443)]
PORTS += ["udp/53", "udp/8080"]
PROMETHEUS = {"prometheus": {"url": "http://prometheus.monitoring:9090"}}
CHARTS: dict[str, Object] = {
    "all namespaces": PROMETHEUS,
    "one namespace": PROMETHEUS | {"watch": {"namespaces": ["team-a"]}},
    "selected namespaces": PROMETHEUS | {"watch": {"namespaceSelector": {"matchLabels": {"tier": "gold"}}}},
    "narrow": {
        "watch": {"namespaces": ["team-a"]},
        "networkPolicy": {
            "apiServerCidrs": ["10.9.2.1/32"],
            "apiServerPorts": [6443],
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"scrapes": "yes"}}}],
        },
    },
}


def pod(name: str, namespace: str, address: str, template: Object) -> Pod:
    ports = [port for container in template["spec"]["containers"] for port in container.get("ports", [])]
    return Pod(name, namespace, address, template["metadata"]["labels"], {port["name"]: port["containerPort"] for port in ports})


def join(name: str, namespace: str, net: str, executors: int) -> tuple[list[Pod], dict[str, Object]]:
    """Its pods, as the operator and Spark make them, and its policies."""
    body = streamjoin(name, namespace, queries={"replicas": 1, "flight": True})
    derived, resource, settings = derive(body), Resource.of(body), Settings()
    assert derived.manifest is not None
    assert derived.memory is not None
    known = f"{name} in {namespace}"
    made = driver_template(resource, derived.manifest, derived.memory, settings, "1", "files")
    driver = pod(f"driver {known}", namespace, f"{net}.1", made)
    template = executor_template(resource, derived.manifest, settings)
    others = [pod(f"executor {number} {known}", namespace, f"{net}.{number + 2}", template) for number in range(executors)]
    template = queries_template(resource, derived.manifest, settings, "engine:1")
    server = pod(f"queries {known}", namespace, f"{net}.{executors + 2}", template)
    into_driver, into_executors = children.network_policies(resource, derived.manifest)
    (into_server,) = (
        each for each in children.query_servers(resource, derived.manifest, settings, "engine:1") if each["kind"] == "NetworkPolicy"
    )
    policies = {f"driver {known}": into_driver, f"executors {known}": into_executors, f"queries {known}": into_server}
    return [driver, *others, server], policies


def cluster(values: Object) -> tuple[list[Pod], dict[str, Object]]:
    """Two joins in one namespace, one of the same name in another, the operator, and what has no policy."""
    (deployment,) = of_kind(rendered(values), "Deployment")
    (policy,) = of_kind(rendered(values), "NetworkPolicy")
    pods = [pod("operator", "operators", "10.9.1.1", deployment["spec"]["template"])]
    policies = {"operator": policy}
    for number, (name, namespace, executors) in enumerate((("one", "team-a", 2), ("two", "team-a", 1), ("one", "team-b", 1))):
        more, its_policies = join(name, namespace, f"10.9.{number + 10}", executors)
        pods += more
        policies |= its_policies
    pods += [
        Pod("prometheus", "monitoring", "10.9.1.2"),
        Pod("stranger", "team-a", "10.9.1.3", {"app": "web"}),
        Pod("API server", "", "10.9.2.1"),
        Pod("outside", "", "10.9.2.2"),
    ]
    return pods, policies


def may_call(values: Object, source: Pod, target: Pod, port: str) -> bool:
    """As docs/operator.md and docs/kubernetes.md say it."""
    in_cluster = source.namespace != ""
    part, _, of = target.name.partition(" ")
    caller, _, caller_of = source.name.partition(" ")
    of, caller_of = of.removeprefix("0 ").removeprefix("1 "), caller_of.removeprefix("0 ").removeprefix("1 ")
    is_narrow = "networkPolicy" in values
    watched = ("team-a",) if "watch" in values else ("team-a", "team-b")
    if source.name == "operator":
        to_api = port == "tcp/6443" and target.name == "API server" if is_narrow else port in ("tcp/443", "tcp/6443")
        to_driver = port == "tcp/8080" and part == "driver" and target.namespace in watched
        if not (port in ("tcp/53", "udp/53") or to_api or to_driver or (port == "tcp/9090" and "prometheus" in values)):
            return False
    if target.name == "operator":
        return port == "tcp/8080" and (source.name == "prometheus" if is_narrow else in_cluster)
    if part == "driver":
        from_executor = caller == "executor" and caller_of == of
        return (port == "tcp/8080" and in_cluster) or (from_executor and port in ("tcp/7077", "tcp/7078", "tcp/7079"))
    if part == "queries":
        return port in ("tcp/8080", "tcp/8081") and in_cluster
    if part == "executor":
        if caller_of != of or caller not in ("driver", "executor"):
            return False
        return port == "tcp/7079" or (caller == "executor" and port in ("tcp/7080", "tcp/7095"))
    return True


def expected(values: Object, pods: list[Pod]) -> set[Connection]:
    pairs = [(source, target) for source in pods for target in pods if source is not target]
    return {(one.name, other.name, port) for one, other in pairs for port in PORTS if may_call(values, one, other, port)}


@pytest.fixture(autouse=True)
def network_namespaces() -> None:
    reason = unusable()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("name", CHARTS)
def test_what_is_to_pass_passes_and_all_else_is_refused(name: str) -> None:
    pods, policies = cluster(CHARTS[name])
    found, without = passing(pods, NAMESPACES, PORTS, [list(policies.values()), []])
    everything = {(one.name, other.name, port) for one in pods for other in pods if one is not other for port in PORTS}
    assert without == everything, "where there is no policy"
    wanted = expected(CHARTS[name], pods)
    assert found - wanted == set(), "too much passes"
    assert wanted - found == set(), "too little passes"


DRIVER, EXECUTORS = "driver one in team-a", "executors one in team-a"
WIDER: dict[str, Change] = {
    "no policy of the driver": lambda policies: policies.pop(DRIVER),
    "no policy of the query server": lambda policies: policies.pop("queries one in team-a"),
    "metrics for the world": lambda policies: policies[DRIVER]["spec"]["ingress"][1].pop("from"),
    "epochs from the namespace": lambda policies: policies[DRIVER]["spec"]["ingress"][0].update({"from": [{"podSelector": {}}]}),
    "all ports of the driver": lambda policies: policies[DRIVER]["spec"]["ingress"][0].pop("ports"),
    "another port of workers": lambda policies: policies[EXECUTORS]["spec"]["ingress"][1]["ports"][0].update(endPort=7096),
    "pieces from the driver": lambda policies: policies[EXECUTORS]["spec"]["ingress"][1].pop("from"),
    "no egress of the operator": lambda policies: policies["operator"]["spec"].update(policyTypes=["Ingress"]),
    "port 8080 of everything": lambda policies: policies["operator"]["spec"]["egress"][-1].pop("to"),
    "drivers of all namespaces": lambda policies: policies["operator"]["spec"]["egress"][-1]["to"][0].update(namespaceSelector={}),
    "the operator for the world": lambda policies: policies["operator"]["spec"]["ingress"][0].pop("from"),
}
NARROWER: dict[str, Change] = {
    "no blocks of the driver": lambda policies: policies[DRIVER]["spec"]["ingress"][0]["ports"].pop(),
    "no metrics": lambda policies: policies[DRIVER]["spec"]["ingress"].pop(),
    "metrics for the namespace": lambda policies: policies[DRIVER]["spec"]["ingress"][1].update({"from": [{"podSelector": {}}]}),
    "no Spark of executors": lambda policies: policies[EXECUTORS]["spec"]["ingress"].pop(0),
    "one port of workers less": lambda policies: policies[EXECUTORS]["spec"]["ingress"][1]["ports"][0].update(endPort=7094),
    "no queries": lambda policies: policies["queries one in team-a"]["spec"].update(ingress=[]),
    "no UDP": lambda policies: policies["operator"]["spec"]["egress"][0]["ports"].pop(0),
    "no API server": lambda policies: policies["operator"]["spec"]["egress"].pop(1),
    "no drivers": lambda policies: policies["operator"]["spec"]["egress"].pop(),
    "no scrapes of the operator": lambda policies: policies["operator"]["spec"].update(ingress=[]),
}


def test_a_policy_that_is_too_wide_or_too_narrow_is_noticed() -> None:
    values = CHARTS["one namespace"]
    pods, policies = cluster(values)
    changes = {**WIDER, **NARROWER}
    sets = []
    for change in changes.values():
        changed = copy.deepcopy(policies)
        change(changed)
        sets.append(list(changed.values()))
    wanted = expected(values, pods)
    for name, found in zip(changes, passing(pods, NAMESPACES, PORTS, sets), strict=True):
        assert bool(found - wanted) is (name in WIDER), name
        assert bool(wanted - found) is (name in NARROWER), name
