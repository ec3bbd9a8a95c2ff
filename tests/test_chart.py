"""The chart, rendered for a matrix of values: what comes out is asked of a real API server, Pod Security and RBAC included."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import alerts
import chart_readme
from apiserver import ApiError, ApiServer, program, running
from chart import CHART, KUBERNETES, RIGHTS, helm, install, of_kind, path_of, plural, rendered
from documents import all_parsed, parsed
from restricted_v2 import refusals
from streamjoin_operator import crd, snapshot_model
from streamjoin_operator.admission import DIRECTORY, PATH
from streamjoin_operator.settings import Settings, read
from waiting import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).resolve().parent.parent
CRD = ROOT / "crds" / "streamjoins.streamjoin.dev.yaml"
ACCESS = CHART / "files" / "access.py"

Object = dict[str, Any]

PLACED: Object = {
    "commonLabels": {"team": "a"},
    "deploymentAnnotations": {"a": "b"},
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
        {
            "maxSkew": 1,
            "topologyKey": "rack",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"x": "y"}},
        },
    ],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
}
"""Where the operator's pod is, and what it has."""
MATRIX: dict[str, Object] = {
    "defaults": {},
    "namespaced": {"watch": {"namespaces": ["team-a", "team-b"]}},
    "everything": {
        **PLACED,
        "watch": {"namespaces": ["team-a"]},
        "image": {"repository": "registry.example.com/op", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
        "engine": {"repository": "registry.example.com/engine", "tag": "9"},
        "imagePullSecrets": ["registry", "other"],
        "fullnameOverride": "joins",
        "serviceAccount": {"annotations": {"a/b": "c"}},
        "operator": {"logLevel": "debug", "workers": 2, "pollSeconds": 2.5, "resyncSeconds": 60},
        "podAnnotations": {"team": "a"},
        "podLabels": {"team": "a"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}], "apiServerCidrs": ["10.0.0.1/32"]},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "admission": {"enabled": True, "secretName": "webhook", "caBundle": "bm9uZQ=="},
        "joins": {"podMonitorLabels": {"release": "prometheus", "example.com/team": "a"}},
        "prometheus": {
            "url": "https://prometheus.monitoring:9091/team-a",
            "tokenSecret": {"name": "prometheus"},
            "caConfigMap": {"name": "authorities", "key": "all.pem"},
            "timeoutSeconds": 2.5,
        },
        "cost": {"pricePerExecutorHour": 0.25},
        "dashboard": {"enabled": True, "annotations": {"folder": "Joins"}},
        "alerts": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "alertLabels": {"team": "a"},
            "runbookUrl": "https://docs.example.com/alerts.md",
            "rules": {"StreamJoinSheds": {"threshold": 0.05, "for": "1h", "severity": "page"}, "StreamJoinFails": {"enabled": False}},
        },
    },
    "as little as possible": {
        "crds": {"install": False},
        "serviceAccount": {"create": False, "name": "default"},
        "rbac": {"create": False},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "joins": {"networkPolicy": False, "podMonitor": "off"},
        "driverPolicy": {"enabled": False},
    },
    "selected": {
        "watch": {"namespaceSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold"]}]}},
        "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/certificates"}],
        "extraEnvFrom": [{"configMapRef": {"name": "a"}}],
        "prometheus": {"allowedUrls": ["http://prometheus.team-a:9090"]},
        "driverPolicy": {"hostAccess": True},
        "operator": {"port": 9000},
    },
    "not aggregated, not kept": {"rbac": {"aggregate": False}, "crds": {"keep": False}},
}

REFUSED: list[tuple[Object, str]] = [
    ({"colour": "red"}, "colour"),
    ({"watch": {"namespaces": "team-a"}}, "watch/namespaces|watch.namespaces"),
    ({"watch": {"namespaces": ["Team A"]}}, "watch"),
    ({"operator": {"logLevel": "loud"}}, "logLevel"),
    ({"operator": {"workers": 0}}, "workers"),
    ({"replicas": -1}, "replicas"),
    ({"operatorClass": "Blue team"}, "operatorClass"),
    ({"joins": {"podMonitor": "on"}}, "podMonitor"),
    ({"admission": {"enabled": True, "secretName": "a"}}, "admission.caBundle: is empty"),
    ({"admission": {"enabled": True, "certManager": True, "secretName": "a", "caBundle": "bm9uZQ=="}}, "admission.certManager: admission"),
    ({"joins": {"podMonitorLabels": {"release": "a,b"}}}, "podMonitorLabels"),
    ({"joins": {"podMonitorLabels": {"no label": "a"}}}, "podMonitorLabels"),
    ({"image": {"repository": ""}}, "repository"),
    ({"image": {"digest": "md5:5"}}, "digest"),
    ({"networkPolicy": {"apiServerPorts": []}}, "apiServerPorts"),
    ({"dashboard": {"namespace": "Not One"}}, "dashboard"),
    ({"alerts": {"runbookUrl": "here"}}, "runbookUrl"),
    ({"alerts": {"rules": {"StreamJoinSleeps": {}}}}, "StreamJoinSleeps"),
    ({"alerts": {"rules": {"StreamJoinSheds": {"for": "soon"}}}}, "for"),
    ({"alerts": {"rules": {"StreamJoinSheds": {"threshold": "5%"}}}}, "threshold"),
    ({"alerts": {"rules": {"StreamJoinIsDown": {"threshold": 5}}}}, "threshold"),
    ({"alerts": {"rules": {"StreamJoinIsDown": {"severity": ""}}}}, "severity"),
    ({"prometheus": {"url": "prometheus:9090"}}, "url"),
    ({"prometheus": {"token": "secret"}}, "token"),
    ({"prometheus": {"timeoutSeconds": 0}}, "timeoutSeconds"),
    ({"prometheus": {"headers": {"X-Scope OrgID": "a"}}}, "headers"),
    ({"prometheus": {"headers": {"X-Scope-OrgID": "a\nb"}}}, "headers"),
    ({"prometheus": {"serviceAccountToken": {"audience": "a", "expirationSeconds": 60}}}, "expirationSeconds"),
    (
        {"prometheus": {"tokenSecret": {"name": "a"}, "basicSecret": {"name": "b"}}},
        "prometheus.basicSecret.name: prometheus.tokenSecret.name is given too; remove one of them",
    ),
    ({"cost": {"pricePerExecutorHour": -1}}, "pricePerExecutorHour"),
    ({"networkPolicy": {"prometheusPorts": [0]}}, "prometheusPorts"),
    ({"networkPolicy": {"dnsPorts": []}}, "dnsPorts"),
    ({"watch": {"namespaces": ["a"], "namespaceSelector": {"matchLabels": {"a": "b"}}}}, "Selector: watch.namespaces is given too"),
    ({"watch": {"namespaceSelector": {"labels": {}}}}, "labels"),
    ({"prometheus": {"allowedUrls": ["prometheus:9090"]}}, "allowedUrls"),
    ({"driverPolicy": {"hostAccess": "some"}}, "hostAccess"),
    ({"operator": {"port": 80}}, "port"),
    ({"global": {"imageRegistry": "https://registry.example.com"}}, "imageRegistry"),
    ({"commonLabels": {"no label": "a"}}, "commonLabels"),
    ({"dnsPolicy": "Some"}, "dnsPolicy"),
    ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "maxSkew"),
    ({"tables": {"digest": "none"}}, "tables.digest"),
    ({"extraEnv": {"A": "b"}}, "extraEnv"),
    ({"serviceAccount": {"create": False}}, "serviceAccount.name: is empty, and serviceAccount.create is false"),
]


@pytest.fixture(params=MATRIX, ids=str)
def values(request: pytest.FixtureRequest) -> Object:
    return MATRIX[request.param]


def test_the_chart_carries_the_definition() -> None:
    """Otherwise: make crds"""
    for file in CRD.parent.iterdir():
        assert (CHART / "files" / file.name).read_text() == file.read_text()


def test_the_readme_has_all_values_with_their_comments() -> None:
    """Otherwise: make crds"""
    assert (CHART / "README.md").read_text() == chart_readme.readme()
    assert [path for path, _, _ in chart_readme.rows("a:\n  # One.\n  b: 1\n# All.\nc: {d: 2}\n")] == ["a.b", "c"]


@pytest.mark.helm
def test_lint(values: Object) -> None:
    helm("lint", "--strict", str(CHART), values=values)


@pytest.mark.helm
def test_rendered_again_without_a_cluster_it_is_the_same_byte_for_byte(values: Object) -> None:
    template = ("template", "sj", str(CHART), "--namespace", "operators", "--kube-version", KUBERNETES)
    first, second = (helm(*template, values=values).stdout for _ in range(2))
    assert first == second


@pytest.mark.helm
@pytest.mark.parametrize(("values", "message"), REFUSED, ids=str)
def test_values_that_are_wrong_are_refused_by_name(values: Object, message: str) -> None:
    done = helm("template", "sj", str(CHART), "--kube-version", KUBERNETES, values=values, check=False)
    assert done.returncode != 0
    assert re.search(message, done.stderr), done.stderr


def test_every_value_is_in_the_schema_and_commented() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def fields(value: Any, schema: Object, path: str) -> Iterator[str]:
        if "$ref" in schema:
            schema = root["definitions"][schema["$ref"].rsplit("/", 1)[1]]
        for name, inner in value.items() if isinstance(value, dict) and "properties" in schema else ():
            assert name in schema["properties"], f"{path}.{name}"
            yield from fields(inner, schema["properties"][name], f"{path}.{name}")

    root = schema
    list(fields(parsed((CHART / "values.yaml").read_text()), schema, ""))


@pytest.mark.helm
def test_the_definition_is_installed_as_it_is_with_a_note_to_keep_it() -> None:
    definitions, loose = (of_kind(rendered({"crds": {"keep": keep}}), "CustomResourceDefinition") for keep in (True, False))
    assert [each["spec"] for each in definitions] == [parsed(file.read_text())["spec"] for file in sorted(CRD.parent.iterdir())]
    assert all(each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for each in definitions)
    assert not any("annotations" in each["metadata"] for each in loose)
    assert of_kind(rendered({"crds": {"install": False}}), "CustomResourceDefinition") == []


@pytest.mark.helm
def test_prometheus_is_told_to_the_operator_with_its_files_and_its_port() -> None:
    objects = rendered(MATRIX["everything"])
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    told = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert told["STREAMJOIN_PROMETHEUS_URL"] == "https://prometheus.monitoring:9091/team-a"
    assert told["STREAMJOIN_PROMETHEUS_TOKEN_FILE"] == f"{mounts['prometheus-token']}/token"
    assert told["STREAMJOIN_PROMETHEUS_CA_FILE"] == f"{mounts['prometheus-ca']}/all.pem"
    assert volumes["prometheus-token"]["secret"]["secretName"] == "prometheus"
    assert volumes["prometheus-ca"]["configMap"]["name"] == "authorities"
    settings = read(told)
    assert (settings.prometheus_timeout_seconds, settings.price_per_executor_hour) == (2.5, 0.25)
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert [{"protocol": "TCP", "port": 9091}] in [rule["ports"] for rule in policy["spec"]["egress"]]
    for url, port in (("http://prometheus", 80), ("https://prometheus/a", 443)):
        (policy,) = of_kind(rendered({"prometheus": {"url": url}, "networkPolicy": {"prometheusPorts": [9090]}}), "NetworkPolicy")
        wanted = [{"protocol": "TCP", "port": port}, {"protocol": "TCP", "port": 9090}]
        assert wanted in [rule["ports"] for rule in policy["spec"]["egress"]]


LOGINS: dict[str, tuple[Object, str, Object]] = {
    "a token of the service account": (
        {"serviceAccountToken": {"audience": "thanos", "expirationSeconds": 900}},
        "token",
        {
            "projected": {
                "defaultMode": 0o440,
                "sources": [{"serviceAccountToken": {"path": "token", "audience": "thanos", "expirationSeconds": 900}}],
            }
        },
    ),
    "a user": ({"basicSecret": {"name": "a"}}, "user", {"secret": {"secretName": "a", "defaultMode": 0o440}}),
    "a certificate": ({"clientCertificateSecret": {"name": "a"}}, "certificate", {"secret": {"secretName": "a", "defaultMode": 0o440}}),
    "headers": ({"headersSecret": {"name": "a"}}, "headers", {"secret": {"secretName": "a", "defaultMode": 0o440}}),
}


@pytest.mark.helm
@pytest.mark.parametrize("name", LOGINS)
def test_what_the_operator_logs_in_to_prometheus_by_is_mounted(name: str) -> None:
    given, volume, wanted = LOGINS[name]
    (deployment,) = of_kind(rendered({"prometheus": given}), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": f"prometheus-{volume}", **wanted} in pod["volumes"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == f"prometheus-{volume}"]
    files = [
        one["value"] for one in container["env"] if one["name"].startswith("STREAMJOIN_PROMETHEUS_") and "/etc/" in one.get("value", "")
    ]
    assert files
    assert all(file.startswith(mount["mountPath"]) for file in files)
    assert mount["readOnly"]


@pytest.mark.helm
def test_the_webhook_has_a_certificate_of_the_operator_of_cert_manager_or_one_that_is_given() -> None:
    own = rendered({"admission": {"enabled": True}})
    assert of_kind(own, "Certificate", "Issuer") == []
    (configuration,) = of_kind(own, "ValidatingWebhookConfiguration")
    name = settings_of({"admission": {"enabled": True}}).admission_certificate
    assert configuration["metadata"]["name"] == f"{name}-operators"
    assert configuration["webhooks"][0]["clientConfig"]["service"]["name"] == name
    for kind in ("Role", "ClusterRole"):
        (role,) = [each for each in of_kind(own, kind) if name in each["metadata"]["name"]]
        assert all(name in rule["resourceNames"][0] for rule in role["rules"] if rule["verbs"] != ["create"])
    objects = rendered({"admission": {"enabled": True, "certManager": True}, "watch": {"namespaces": ["team-a"]}, "operatorClass": "blue"})
    (service,) = [each for each in of_kind(objects, "Service") if each["metadata"]["name"].endswith("-admission")]
    (configuration,), (certificate,) = (of_kind(objects, kind) for kind in ("ValidatingWebhookConfiguration", "Certificate"))
    name = service["metadata"]["name"]
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": f"operators/{name}"}
    (webhook,) = configuration["webhooks"]
    assert webhook["clientConfig"] == {"service": {"name": name, "namespace": "operators", "path": PATH, "port": 443}}
    assert webhook["namespaceSelector"]["matchExpressions"][0]["values"] == ["team-a"]
    assert "== 'blue'" in webhook["matchConditions"][0]["expression"]
    assert (webhook["failurePolicy"], certificate["spec"]["dnsNames"]) == ("Ignore", [f"{name}.operators.svc"])
    (deployment,) = of_kind(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "admission"]
    assert volume["secret"]["secretName"] == certificate["spec"]["secretName"]
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "admission"]
    assert mount["mountPath"] == str(DIRECTORY)
    given = rendered({"admission": {"enabled": True, "secretName": "mine", "caBundle": "bm9uZQ=="}})
    assert of_kind(given, "Certificate", "Issuer") == []
    (configuration,) = of_kind(given, "ValidatingWebhookConfiguration")
    assert configuration["webhooks"][0]["clientConfig"]["caBundle"] == "bm9uZQ=="


@pytest.mark.helm
@pytest.mark.parametrize(
    ("value", "apis", "is_openshift"),
    [
        ("auto", ["security.openshift.io/v1"], True),
        ("auto", [], False),
        (True, [], True),
        (False, ["security.openshift.io/v1"], False),
    ],
)
def test_on_openshift_the_cluster_chooses_users_and_dns_listens_elsewhere(value: Any, apis: list[str], is_openshift: bool) -> None:
    flags = [flag for api in apis for flag in ("--api-versions", api)]
    text = helm("template", "sj", str(CHART), "--kube-version", KUBERNETES, *flags, values={"openshift": value}).stdout
    objects = all_parsed(text)
    (deployment,) = of_kind(objects, "Deployment")
    (test,) = of_kind(objects, "Pod")
    for spec in (deployment["spec"]["template"]["spec"], test["spec"]):
        assert (refusals(spec) == []) is is_openshift
        assert spec["securityContext"]["runAsNonRoot"] is True
    (policy,) = of_kind(objects, "NetworkPolicy")
    assert {port["port"] for port in policy["spec"]["egress"][0]["ports"]} == ({53, 5353} if is_openshift else {53})
    told = {one["name"]: one.get("value") for one in deployment["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert told["STREAMJOIN_ASSIGNED_USERS"] == str(is_openshift).lower()


@pytest.mark.helm
def test_what_pods_write_on_their_node_is_bounded_and_asked_for() -> None:
    objects = rendered({})
    pods = [one["spec"]["template"]["spec"] for one in of_kind(objects, "Deployment")] + [one["spec"] for one in of_kind(objects, "Pod")]
    assert len(pods) == 2
    for spec in pods:
        assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume)
        assert all("ephemeral-storage" in container["resources"]["requests"] for container in spec["containers"])


@pytest.mark.helm
def test_the_webhooks_service_has_the_families_that_are_asked_for() -> None:
    asked = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    for services in ({}, asked):
        (service,) = of_kind(rendered({"admission": {"enabled": True}, "services": services}), "Service")
        assert {name: service["spec"][name] for name in asked if name in service["spec"]} == services


@pytest.mark.helm
def test_nodes_are_read_only_where_that_is_asked_for_and_then_in_the_cluster() -> None:
    for given in (False, True):
        objects = rendered({"watch": {"namespaces": ["team-a"]}, "rbac": {"nodes": given, "aggregate": False}})
        rules = [role["rules"] for role in of_kind(objects, "ClusterRole")]
        assert rules == [[{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]] * given


@pytest.mark.helm
def test_monitors_and_rules_have_the_label_that_a_prometheus_selects_by() -> None:
    """As kube-prometheus-stack does, by the name of its release."""
    objects = rendered(MATRIX["everything"])
    for kind in ("PodMonitor", "PrometheusRule"):
        (found,) = of_kind(objects, kind)
        assert found["metadata"]["labels"]["release"] == "prometheus"
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    told = read({one["name"]: one["value"] for one in container["env"] if "value" in one})
    assert told.monitor_labels == {"release": "prometheus", "example.com/team": "a"}
    (deployment,) = of_kind(rendered({}), "Deployment")
    assert "STREAMJOIN_POD_MONITOR_LABELS" not in json.dumps(deployment)


SETTINGS: dict[str, tuple[Object, Any]] = {
    "watch_namespaces": ({"watch": {"namespaces": ["a", "b"]}}, ("a", "b")),
    "watch_namespace_selector": (
        {
            "watch": {
                "namespaceSelector": {
                    "matchLabels": {"a.b/c": "d"},
                    "matchExpressions": [
                        {"key": "e", "operator": "In", "values": ["f", "g"]},
                        {"key": "h", "operator": "NotIn", "values": ["i"]},
                        {"key": "j", "operator": "Exists"},
                        {"key": "k", "operator": "DoesNotExist"},
                    ],
                }
            }
        },
        "a.b/c=d,e in (f,g),h notin (i),j,!k",
    ),
    "engine_image": ({"engine": {"repository": "r", "tag": "9"}}, "r:9"),
    "tables_image": ({"tables": {"repository": "t", "digest": "sha256:" + "0" * 64}}, "t@sha256:" + "0" * 64),
    "spark_image": ({"spark": {"repository": "s", "tag": "8"}}, "s:8"),
    "image_pull_policy": ({"engine": {"pullPolicy": "Always"}}, "Always"),
    "image_pull_secrets": ({"imagePullSecrets": ["a", "b"]}, ("a", "b")),
    "assigned_users": ({"openshift": True}, True),
    "port": ({"operator": {"port": 9000}}, 9000),
    "admission_port": ({"admission": {"enabled": True, "port": 9443, "secretName": "a", "caBundle": "bm9uZQ=="}}, 9443),
    "admission_certificate": ({"admission": {"enabled": True}}, "sj-streamjoin-operator-admission"),
    "page_port": ({"operator": {"pagePort": 9001}}, 9001),
    "page_token_file": ({"operator": {"pageTokenSecret": {"name": "a"}}}, "/etc/page-token/token"),
    "workers": ({"operator": {"workers": 3}}, 3),
    "poll_seconds": ({"operator": {"pollSeconds": 1.5}}, 1.5),
    "resync_seconds": ({"operator": {"resyncSeconds": 2.5}}, 2.5),
    "start_seconds": ({"operator": {"startSeconds": 3.5}}, 3.5),
    "status_seconds": ({"operator": {"statusSeconds": 4.5}}, 4.5),
    "cleanup_seconds": ({"operator": {"cleanupSeconds": 5.5}}, 5.5),
    "pod_monitor_labels": ({"joins": {"podMonitorLabels": {"release": "prometheus"}}}, ("release=prometheus",)),
    "pod_monitor": ({"joins": {"podMonitor": "off"}}, "off"),
    "network_policy": ({"joins": {"networkPolicy": False}}, False),
    "read_nodes": ({"rbac": {"nodes": True}}, True),
    "ip_family_policy": ({"services": {"ipFamilyPolicy": "PreferDualStack"}}, "PreferDualStack"),
    "ip_families": ({"services": {"ipFamilies": ["IPv6", "IPv4"]}}, ("IPv6", "IPv4")),
    "http_proxy": ({"proxy": {"http": "http://proxy.example.com:3128"}}, "http://proxy.example.com:3128"),
    "https_proxy": ({"proxy": {"https": "http://proxy.example.com:3128"}}, "http://proxy.example.com:3128"),
    "no_proxy": ({"proxy": {"http": "http://p:1", "noProxy": [".example.com", "10.0.0.0/8"]}}, (".example.com", "10.0.0.0/8")),
    "driver_url": ({"operator": {"driverUrl": "http://{service}.{namespace}:8080"}}, "http://{service}.{namespace}:8080"),
    "prometheus_url": ({"prometheus": {"url": "http://a:9090"}}, "http://a:9090"),
    "prometheus_allowed_urls": ({"prometheus": {"allowedUrls": ["http://a:1", "https://b/c"]}}, ("http://a:1", "https://b/c")),
    "prometheus_token_file": ({"prometheus": {"tokenSecret": {"name": "a"}}}, "/etc/prometheus-token/token"),
    "prometheus_username_file": ({"prometheus": {"basicSecret": {"name": "a", "usernameKey": "u"}}}, "/etc/prometheus-user/u"),
    "prometheus_password_file": ({"prometheus": {"basicSecret": {"name": "a"}}}, "/etc/prometheus-user/password"),
    "prometheus_cert_file": ({"prometheus": {"clientCertificateSecret": {"name": "a"}}}, "/etc/prometheus-certificate/tls.crt"),
    "prometheus_key_file": ({"prometheus": {"clientCertificateSecret": {"name": "a"}}}, "/etc/prometheus-certificate/tls.key"),
    "prometheus_headers": ({"prometheus": {"headers": {"X-Scope-OrgID": "a, b", "X-B": "c=d"}}}, ("X-B=c=d", "X-Scope-OrgID=a, b")),
    "prometheus_headers_directory": ({"prometheus": {"headersSecret": {"name": "a"}}}, "/etc/prometheus-headers"),
    "prometheus_query_parameters": ({"prometheus": {"queryParameters": {"dedup": "true"}}}, ("dedup=true",)),
    "prometheus_pod_label": ({"prometheus": {"podLabel": "none"}}, "none"),
    "prometheus_ca_file": ({"prometheus": {"caConfigMap": {"name": "a"}}}, "/etc/prometheus-ca/ca.crt"),
    "prometheus_insecure": ({"prometheus": {"insecure": True}}, True),
    "prometheus_timeout_seconds": ({"prometheus": {"timeoutSeconds": 6.5}}, 6.5),
    "prometheus_namespace_label": ({"prometheus": {"namespaceLabel": "ns"}}, "ns"),
    "price_per_executor_hour": ({"cost": {"pricePerExecutorHour": 7.5}}, 7.5),
    "operator_class": ({"operatorClass": "blue"}, "blue"),
    "lease_name": ({"fullnameOverride": "mine"}, "mine"),
    "log_format": ({"operator": {"logFormat": "text"}}, "text"),
    "log_level": ({"operator": {"logLevel": "debug"}}, "debug"),
}
"""By setting of the operator, a value of the chart and what becomes of it. The Lease is in the namespace of the release."""
IMPLIED = {
    "no_proxy": {"http_proxy"},
    "admission_certificate": {"admission_port"},
    "engine_image": {"tables_image", "spark_image"},
    "prometheus_username_file": {"prometheus_password_file"},
    "prometheus_password_file": {"prometheus_username_file"},
    "prometheus_cert_file": {"prometheus_key_file"},
    "prometheus_key_file": {"prometheus_cert_file"},
}
"""Other settings that such a value changes: larger images are named after the engine's, and of two files one Secret has both."""


def settings_of(values: Object) -> Settings:
    """Of the operator that the chart starts."""
    (deployment,) = of_kind(rendered(values), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return read({one["name"]: one["value"] for one in container["env"] if "value" in one})


@pytest.mark.helm
def test_every_setting_has_a_value() -> None:
    assert {*SETTINGS, "lease_namespace"} == {setting.name for setting in dataclasses.fields(Settings)}
    assert settings_of({}).lease_namespace == "operators"


@pytest.mark.helm
@pytest.mark.parametrize("name", SETTINGS)
def test_a_value_becomes_its_setting_and_no_other(name: str) -> None:
    values, wanted = SETTINGS[name]
    before, after = dataclasses.asdict(settings_of({})), dataclasses.asdict(settings_of(values))
    assert before[name] != wanted
    assert {field for field in after if after[field] != before[field]} == {name} | IMPLIED.get(name, set())
    assert after[name] == wanted


@pytest.mark.helm
def test_larger_images_are_named_after_the_engines() -> None:
    mirrored = {"repository": "registry.example.com/team/streamjoin-engine", "tag": "9"}
    settings = settings_of({"engine": mirrored})
    assert settings.engine_image == "registry.example.com/team/streamjoin-engine:9"
    assert settings.tables_image == "registry.example.com/team/streamjoin-engine-tables:9"
    assert settings.spark_image == "registry.example.com/team/streamjoin-engine-spark:9"
    # An engine's digest is not that of the other image.
    fixed = settings_of({"engine": {**mirrored, "digest": "sha256:" + "0" * 64}, "tables": {"tag": "8"}})
    assert fixed.engine_image == "registry.example.com/team/streamjoin-engine@sha256:" + "0" * 64
    assert fixed.tables_image == "registry.example.com/team/streamjoin-engine-tables:8"


@pytest.mark.helm
def test_one_registry_may_have_all_images() -> None:
    values = {"global": {"imageRegistry": "registry.example.com:5000/mirror"}, "tables": {"repository": "t"}}
    settings = settings_of(values)
    assert settings.engine_image.startswith("registry.example.com:5000/mirror/streamjoin-engine:")
    assert settings.tables_image.startswith("registry.example.com:5000/mirror/t:")
    pods = [one["spec"]["template"]["spec"] for one in of_kind(rendered(values), "Deployment")]
    pods += [one["spec"] for one in of_kind(rendered(values), "Pod")]
    assert {each["image"].rsplit("/", 1)[0] for pod in pods for each in pod["containers"]} == {"registry.example.com:5000/mirror"}
    listed = yaml.safe_load(yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]["artifacthub.io/images"])
    plain = settings_of({})
    images = {plain.engine_image, plain.tables_image, plain.spark_image}
    assert {each["image"] for each in listed} > images, "who copies them finds all in the chart"


@pytest.mark.helm
def test_the_pod_is_where_and_as_the_values_want_it() -> None:
    (deployment,) = of_kind(rendered({**PLACED, "hostNetwork": True, "runtimeClassName": "gvisor"}), "Deployment")
    assert deployment["metadata"]["annotations"] == {"a": "b"}
    assert all(one["metadata"]["labels"]["team"] == "a" for one in rendered({**PLACED, "hostNetwork": True, "runtimeClassName": "gvisor"}))
    assert "team" not in deployment["spec"]["selector"]["matchLabels"], "a selector cannot change"
    pod = deployment["spec"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"], pod["runtimeClassName"]) == (True, "ClusterFirstWithHostNet", "gvisor")
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0, "two cannot have one node's ports"
    own, given = pod["topologySpreadConstraints"]
    assert own["labelSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]
    assert given["labelSelector"] == {"matchLabels": {"x": "y"}}
    assert {"name": "ca", "mountPath": "/ca"} in pod["containers"][0]["volumeMounts"]
    assert {"name": "ca", "configMap": {"name": "ca"}} in pod["volumes"]


@pytest.mark.helm
def test_without_values_settings_have_their_defaults() -> None:
    # Outside of a pod, where others may have the port, an operator has a page only if somebody asks for it.
    derived = {"lease_name": "sj-streamjoin-operator", "lease_namespace": "operators", "page_port": 8090}
    assert dataclasses.asdict(settings_of({})) == dataclasses.asdict(Settings()) | derived


@pytest.mark.helm
def test_the_port_of_health_and_metrics_is_one_everywhere() -> None:
    (deployment,) = of_kind(rendered({"operator": {"port": 9000}}), "Deployment")
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert {"name": "http", "containerPort": 9000} in container["ports"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "9000"


@pytest.mark.helm
def test_the_operator_has_the_environment_that_is_given_it() -> None:
    reference = [{"secretRef": {"name": "a"}}]
    more = [{"name": "SSL_CERT_FILE", "value": "/certificates"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "c", "key": "d"}}}]
    (deployment,) = of_kind(rendered({"extraEnv": more, "extraEnvFrom": reference}), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"][-2:] == more
    assert container["envFrom"] == reference


@pytest.mark.helm
def test_namespaces_are_named_or_selected() -> None:
    selector = {"matchLabels": {"a": "b"}}
    objects = rendered({"watch": {"namespaceSelector": selector}})
    (policy,), (binding,) = of_kind(objects, "NetworkPolicy"), of_kind(objects, "ValidatingAdmissionPolicyBinding")
    assert policy["spec"]["egress"][-1]["to"][0]["namespaceSelector"] == selector
    assert binding["spec"]["matchResources"]["namespaceSelector"] == selector
    (role,) = [one for one in of_kind(objects, "ClusterRole") if "aggregate" not in json.dumps(one["metadata"]["labels"])]
    assert {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]} in role["rules"]
    (bound,) = of_kind(rendered({"watch": {"namespaces": ["team-a"]}}), "ValidatingAdmissionPolicyBinding")
    (named,) = bound["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (named["key"], named["values"]) == ("kubernetes.io/metadata.name", ["team-a"])
    assert "matchResources" not in of_kind(rendered({}), "ValidatingAdmissionPolicyBinding")[0]["spec"]


def commands(document: str) -> list[list[str]]:
    """All calls of ``helm install`` in the document, as a shell would read them."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", "").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("helm install")]


@pytest.mark.helm
@pytest.mark.parametrize("document", ["README.md", "docs/kubernetes.md"])
def test_the_first_way_to_install_that_is_documented_is_into_named_namespaces(document: str) -> None:
    ways = commands(document)
    for _, _, name, chart, *flags in ways:
        flags.remove("--create-namespace")
        text = helm("template", name, str(ROOT / chart), "--kube-version", KUBERNETES, *flags).stdout
        objects = all_parsed(text)
        rights = [one["metadata"]["name"] for one in of_kind(objects, "ClusterRole") if "aggregate" not in json.dumps(one["metadata"])]
        assert bool(rights) is ("watch.namespaces=" not in " ".join(flags))
    assert any(flag.startswith("watch.namespaces=") for flag in ways[0])


@pytest.mark.helm
@pytest.mark.apiserver
def test_who_installs_for_all_of_the_cluster_is_told_of_the_other_way(cluster: ApiServer) -> None:
    @functools.cache
    def notes(*flags: str) -> str:
        call = ("install", "noted", str(CHART), "--namespace", "operators", "--dry-run=server", *flags)
        return cluster.helm(*call).stdout.partition("NOTES:")[2]

    assert '--set "watch.namespaces={team-a,team-b}"' in notes()
    assert "looks after all namespaces" in notes()
    assert "Recommended" not in notes("--set", "watch.namespaces={team-a}")
    assert "looks after team-a." in notes("--set", "watch.namespaces={team-a}")
    assert "(a=b)" in notes("--set", "watch.namespaceSelector.matchLabels.a=b")


@pytest.mark.helm
def test_where_joins_may_have_their_prometheus_the_operator_can_reach_it() -> None:
    values = {"prometheus": {"url": "http://own:9090", "allowedUrls": ["http://a:1234", "https://b/c"]}}
    (policy,) = of_kind(rendered(values), "NetworkPolicy")
    wanted = [{"protocol": "TCP", "port": port} for port in (9090, 1234, 443)]
    assert wanted in [rule["ports"] for rule in policy["spec"]["egress"]]


@pytest.mark.helm
def test_one_namespace_needs_no_cluster_role() -> None:
    objects = rendered({"watch": {"namespaces": ["team-a"]}, "rbac": {"aggregate": False}})
    assert of_kind(objects, "ClusterRole") == of_kind(objects, "ClusterRoleBinding") == []
    assert {(role["metadata"]["name"], role["metadata"]["namespace"]) for role in of_kind(objects, "Role")} == {
        ("sj-streamjoin-operator", "team-a"),
        ("sj-streamjoin-operator-lease", "operators"),
    }


@pytest.mark.helm
def test_replicas_share_a_lease_that_they_may_use_and_no_other() -> None:
    objects = rendered({"replicas": 2, "operatorClass": "blue", "watch": {"namespaces": ["team-a"]}})
    (deployment,) = of_kind(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    settings = read({one["name"]: one["value"] for one in container["env"] if "value" in one})
    (role,) = [one for one in of_kind(objects, "Role") if one["metadata"]["name"].endswith("-lease")]
    assert deployment["spec"]["replicas"] == 2
    assert (settings.lease_name, settings.lease_namespace) == ("sj-streamjoin-operator", "operators")
    assert settings.operator_class == "blue"
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [settings.lease_name]]
    assert role["metadata"]["namespace"] == settings.lease_namespace


@pytest.mark.helm
def test_roles_name_every_verb_and_resource() -> None:
    for role in of_kind(rendered({}), "ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def definition_of(kind: str) -> Object:
    """One of Prometheus Operator's, as far as is needed here."""
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural(kind), "singular": kind.lower()}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural(kind)}.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": versions},
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server of this module's own, because charts install what belongs to the whole cluster."""
    program("helm")
    with running(tmp_path_factory.mktemp("chart")) as server:
        for kind in ("PodMonitor", "PrometheusRule"):
            server.install_crd(definition_of(kind))
        for name in ("team-a", "team-b", "team-c", "operators"):
            labels = {"pod-security.kubernetes.io/enforce": "restricted"}
            server.admin.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
            server.admin.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        yield server


def ensure_account(cluster: ApiServer, name: str) -> None:
    """The API server takes no pod whose service account does not exist."""
    accounts = "/api/v1/namespaces/operators/serviceaccounts"
    if not cluster.admin.exists(f"{accounts}/{name}"):
        cluster.admin.create(accounts, {"metadata": {"name": name}})


@pytest.mark.helm
@pytest.mark.apiserver
def test_the_api_server_takes_every_object(values: Object, cluster: ApiServer) -> None:
    for each in rendered(values):
        if each["kind"] == "Pod":
            ensure_account(cluster, each["spec"]["serviceAccountName"])
        cluster.admin.apply(path_of(each), each, dryRun="All", fieldValidation="Strict")
    assert not [warning for warning in cluster.admin.warnings if "would violate" in warning]


@pytest.mark.helm
@pytest.mark.apiserver
def test_restricted_pod_security_takes_every_pod(values: Object, cluster: ApiServer) -> None:
    objects = rendered(values)
    (deployment,) = of_kind(objects, "Deployment")
    pods = [*of_kind(objects, "Pod"), {"metadata": {"name": "operator"}, "spec": deployment["spec"]["template"]["spec"]}]
    assert len(pods) == 2
    for pod in pods:
        ensure_account(cluster, pod["spec"]["serviceAccountName"])
        cluster.admin.create("/api/v1/namespaces/operators/pods", pod, dryRun="All")
    pods[1]["spec"]["securityContext"] = {}
    with pytest.raises(ApiError, match="violates PodSecurity"):
        cluster.admin.create("/api/v1/namespaces/operators/pods", pods[1], dryRun="All")


def access(cluster: ApiServer, values: Object, directory: Path, account: str, token: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the script of ``helm test`` as the service account, with the checks that the chart renders."""
    (config,) = [each for each in of_kind(rendered(values), "ConfigMap") if each["metadata"]["name"].endswith("test-access")]
    (directory / "checks.json").write_text(config["data"]["checks.json"])
    (directory / "access.py").write_text(config["data"]["access.py"])
    (directory / "token").write_text(token or cluster.token("operators", account))
    (directory / "ca.crt").write_text(cluster.ca_file.read_text())
    host, port = cluster.url.removeprefix("https://").split(":")
    environment = os.environ | {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "ACCOUNT_DIRECTORY": str(directory)}
    command = [sys.executable, str(directory / "access.py"), str(directory / "checks.json")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def install_rbac(cluster: ApiServer, values: Object) -> list[Object]:
    return install(cluster.admin, values, "operators", *RIGHTS)


@pytest.mark.helm
@pytest.mark.apiserver
@pytest.mark.parametrize("watched", [[], ["team-a", "team-b"]], ids=["cluster", "namespaces"])
def test_helm_test_finds_the_rights_as_they_should_be_and_notices_others(watched: list[str], cluster: ApiServer, tmp_path: Path) -> None:
    values = {"watch": {"namespaces": watched}, "fullnameOverride": f"rights-{len(watched)}", "rbac": {"nodes": bool(watched)}}
    account = f"rights-{len(watched)}"
    made = install_rbac(cluster, values)
    right = access(cluster, values, tmp_path, account)
    assert right.returncode == 0, right.stdout + right.stderr
    assert "WRONG" not in right.stdout
    assert cluster.allowed("operators", account, "get", "nodes") is bool(watched)
    for namespace in ("team-a", "team-c"):
        is_watched = not watched or namespace in watched
        assert cluster.allowed("operators", account, "patch", "streamjoins/status", "streamjoin.dev", within=namespace) is is_watched
        assert cluster.allowed("operators", account, "create", "deployments", "apps", within=namespace) is is_watched
        assert not cluster.allowed("operators", account, "list", "secrets", within=namespace)
        assert not cluster.allowed("operators", account, "delete", "streamjoins", "streamjoin.dev", within=namespace)
    too_much = access(cluster, values, tmp_path, account, token=cluster.admin_token)
    assert (too_much.returncode, "WRONG: the operator may list secrets" in too_much.stdout) == (1, True)
    for each in made:
        if each["kind"].endswith("Binding"):
            cluster.admin.delete(path_of(each))
    wait_for("the rights are gone", lambda: not cluster.allowed("operators", account, "list", "pods", within="team-a"))
    too_little = access(cluster, values, tmp_path, account)
    assert (too_little.returncode, "WRONG: the operator may not list streamjoins.streamjoin.dev" in too_little.stdout) == (1, True)


@pytest.mark.helm
@pytest.mark.apiserver
def test_the_operator_can_give_drivers_what_they_need_and_no_more(cluster: ApiServer) -> None:
    """Nobody can make a Role with rights that he has not himself."""
    install_rbac(cluster, {"watch": {"namespaces": ["team-a"]}, "fullnameOverride": "granter"})
    operator = cluster.client("operators", "granter")
    verbs = ["get", "list", "watch", "create", "delete", "deletecollection"]
    role: Object = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "sj-x"}}
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/team-a/roles/sj-x"
    operator.apply(path, role | {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]})
    with pytest.raises(ApiError, match="is attempting to grant RBAC permissions not currently held"):
        operator.apply(path, role | {"rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}]})


@pytest.mark.helm
@pytest.mark.apiserver
def test_people_who_may_edit_a_namespace_may_edit_its_joins(cluster: ApiServer) -> None:
    view, edit = sorted(
        (role for role in of_kind(rendered({}), "ClusterRole") if "aggregate" in json.dumps(role["metadata"]["labels"])),
        key=lambda role: role["metadata"]["name"],
        reverse=True,
    )
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert "streamjoins/status" not in [resource for rule in edit["rules"] for resource in rule["resources"]]
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]


@pytest.mark.helm
@pytest.mark.apiserver
def test_helm_installs_upgrades_and_leaves_the_definition_and_the_joins(cluster: ApiServer, tmp_path: Path) -> None:
    """From a definition that lacks a column to this one, to other values and back, with a StreamJoin in between."""
    old = tmp_path / "old"
    subprocess.run(["cp", "-r", str(CHART), str(old)], check=True)
    definition = old / "files" / CRD.name
    kept = "    - name: Ready\n"
    text = definition.read_text()
    assert kept in text
    definition.write_text(text.replace("    - name: Ready\n", "    - name: Usable\n"))
    cluster.helm("install", "real", str(old), "--namespace", "operators")
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.PLURAL}.{crd.GROUP}"

    def columns() -> list[str]:
        return [column["name"] for column in cluster.admin.get(path)["spec"]["versions"][0]["additionalPrinterColumns"]]

    assert "Usable" in columns()
    joins = f"/apis/{crd.GROUP}/{crd.VERSION}/namespaces/team-a/streamjoins"
    wait_for("StreamJoins are served", lambda: cluster.admin.serves(joins))
    manifest = parsed((ROOT / "examples" / "band.yaml").read_text())
    made = cluster.admin.create(joins, json.loads(json.dumps(manifest)))
    cluster.helm("upgrade", "real", str(CHART), "--namespace", "operators")
    assert "Ready" in columns()
    assert "Usable" not in columns()
    operators = "/apis/apps/v1/namespaces/operators/deployments/real-streamjoin-operator"
    definition_before = cluster.admin.get(path)["spec"]
    for arguments, replicas in ((("upgrade", "real", str(CHART), "--set", "replicas=2"), 2), (("rollback", "real", "2"), 1)):
        cluster.helm(*arguments, "--namespace", "operators")
        assert cluster.admin.get(operators)["spec"]["replicas"] == replicas
        assert cluster.admin.get(path)["spec"] == definition_before
    assert cluster.admin.get(f"{joins}/{made['metadata']['name']}")["spec"] == made["spec"]
    cluster.helm("uninstall", "real", "--namespace", "operators")
    assert cluster.admin.exists(f"{joins}/{made['metadata']['name']}")
    assert not cluster.admin.exists(operators)


@pytest.mark.helm
@pytest.mark.apiserver
def test_helm_installs_again_under_another_name_and_the_definition_is_taken_over_by_one_command(cluster: ApiServer) -> None:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd.PLURAL}.{crd.GROUP}"
    of_snapshots = path.replace(crd.PLURAL, snapshot_model.PLURAL)
    for each in (path, of_snapshots):
        if cluster.admin.exists(each):  # of another test
            cluster.admin.delete(each)
            wait_for("the definition is gone", lambda each=each: not cluster.admin.exists(each))  # type: ignore[misc]

    def owner() -> str:
        return str(cluster.admin.get(path)["metadata"]["annotations"]["meta.helm.sh/release-name"])

    def told_command(text: str) -> list[str]:
        (line,) = [line for line in text.splitlines() if "kubectl patch crd" in line]
        return shlex.split(line[line.index("kubectl patch crd") :])[1:]

    first = cluster.helm("install", "first", str(CHART), "--namespace", "operators").stdout
    assert "kubectl patch crd" not in first
    assert "helm uninstall leaves the CustomResourceDefinition, all StreamJoins and their pods" in first
    cluster.helm("uninstall", "first", "--namespace", "operators")
    again = cluster.helm("install", "second", str(CHART), "--namespace", "team-b").stdout
    assert "was there, and belongs to release first in namespace operators" in again
    assert owner() == "first"
    cluster.helm("upgrade", "second", str(CHART), "--namespace", "team-b", "--set", "crds.keep=false")
    assert owner() == "first"
    cluster.kubectl(*told_command(again))
    upgraded = cluster.helm("upgrade", "second", str(CHART), "--namespace", "team-b", "--set", "crds.keep=true")
    assert "kubectl patch crd" not in upgraded.stdout
    assert cluster.admin.get(path)["metadata"]["labels"]["app.kubernetes.io/instance"] == "second"
    cluster.helm("uninstall", "second", "--namespace", "team-b")
    assert cluster.admin.exists(path)
    # One that no release has brought.
    removed = [f"{name}-" for name in cluster.admin.get(path)["metadata"]["annotations"]]
    cluster.kubectl("annotate", "crd", f"{crd.PLURAL}.{crd.GROUP}", f"{snapshot_model.PLURAL}.{crd.GROUP}", *removed)
    with pytest.raises(AssertionError, match="belongs to no release; set it to false, or have this release take it over: ") as refused:
        cluster.helm("install", "third", str(CHART), "--namespace", "operators")
    cluster.kubectl(*told_command(str(refused.value)))
    cluster.helm("install", "third", str(CHART), "--namespace", "operators")
    assert (owner(), cluster.admin.get(path)["metadata"]["annotations"]["helm.sh/resource-policy"]) == ("third", "keep")
    cluster.helm("uninstall", "third", "--namespace", "operators")


@pytest.mark.helm
def test_the_dashboard_is_in_its_config_map() -> None:
    for namespace in ("", "grafana"):
        objects = rendered({"dashboard": {"enabled": True, "namespace": namespace}})
        (config,) = [each for each in of_kind(objects, "ConfigMap") if "dashboard" in each["metadata"]["name"]]
        assert json.loads(config["data"]["streamjoin.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config["metadata"]["namespace"] == (namespace or "operators")


def rules_of(values: Object) -> Object:
    (rule,) = of_kind(rendered({"alerts": {"enabled": True} | values}), "PrometheusRule")
    return rule


@pytest.mark.helm
def test_the_alerts_are_those_that_are_tested() -> None:
    assert of_kind(rendered({}), "PrometheusRule") == []
    assert rules_of({})["spec"]["groups"] == alerts.groups()


@pytest.mark.helm
def test_alerts_are_as_the_values_say() -> None:
    rule = rules_of(MATRIX["everything"]["alerts"])
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    by_name = {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]}
    default = {each["alert"]: each for group in alerts.groups() for each in group["rules"]}
    assert set(default) - set(by_name) == {"StreamJoinFails"}
    assert all(each["labels"]["team"] == "a" for each in by_name.values())
    sheds = by_name["StreamJoinSheds"]
    assert sheds["expr"] == default["StreamJoinSheds"]["expr"].replace("> 0", "> 0.05")
    assert (sheds["for"], sheds["labels"]["severity"]) == ("1h", "page")
    assert sheds["annotations"]["runbook_url"] == "https://docs.example.com/alerts.md#streamjoinsheds"
    few = rules_of({"rules": {name: {"enabled": name == "StreamJoinSheds"} for name in default}})
    assert [[each["alert"] for each in group["rules"]] for group in few["spec"]["groups"]] == [["StreamJoinSheds"]]
