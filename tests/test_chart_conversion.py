"""The chart's part of conversions: who is asked, by which certificate, and who may change in which version StreamJoins are stored."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from chart import helm, of_kind, rendered
from test_chart import CHART

pytestmark = [pytest.mark.apiserver, pytest.mark.helm]
Object = dict[str, Any]
NAME = "sj-streamjoin-operator-convert"


def one(objects: list[Object], kind: str) -> Object:
    (found,) = of_kind(objects, kind)
    return found


def client(objects: list[Object]) -> Object:
    found: Object = one(objects, "CustomResourceDefinition")["spec"]["conversion"]["webhook"]["clientConfig"]
    return found


def environment(objects: list[Object]) -> dict[str, str]:
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def converter(objects: list[Object]) -> Object:
    (found,) = [each for each in of_kind(objects, "Service") if each["metadata"]["name"] == NAME]
    return found


def test_the_api_server_asks_pods_that_convert_also_before_they_are_ready() -> None:
    objects = rendered({})
    service, template = converter(objects), one(objects, "Deployment")["spec"]["template"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert "streamjoin.dev/converts" in service["spec"]["selector"], "which pods of the release before have not"
    (port,) = service["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in template["spec"]["containers"][0]["ports"]}
    assert ports[port["targetPort"]] == int(environment(objects)["STREAMJOIN_CONVERSION_PORT"])
    assert client(objects)["service"] == {"namespace": "operators", "name": NAME, "path": "/convert", "port": port["port"]}
    policy = one(objects, "NetworkPolicy")
    assert {"ports": [{"protocol": "TCP", "port": "conversion"}]} in policy["spec"]["ingress"]
    given = rendered({"networkPolicy": {"apiServerCidrs": ["10.1.0.0/16"]}})
    (rule,) = [each for each in one(given, "NetworkPolicy")["spec"]["ingress"] if each["ports"][0]["port"] == "conversion"]
    assert rule["from"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]


def test_the_api_server_trusts_the_certificate_that_the_pods_get() -> None:
    objects = rendered({})
    secret = one(objects, "Secret")
    assert base64.b64decode(client(objects)["caBundle"]) == base64.b64decode(secret["data"]["ca.crt"])
    assert mounted(objects) == secret["metadata"]["name"]


def mounted(objects: list[Object]) -> str:
    volumes = one(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    (found,) = [each["secret"]["secretName"] for each in volumes if each["name"] == "conversion"]
    return str(found)


def test_a_certificate_may_be_given() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"
    objects = rendered({"conversion": {"secretName": "mine", "authority": pem}})
    assert of_kind(objects, "Secret") == []
    assert mounted(objects) == "mine"
    assert base64.b64decode(client(objects)["caBundle"]).decode() == pem


def test_cert_manager_may_make_it() -> None:
    objects = rendered({"conversion": {"certManager": {"enabled": True}}})
    assert of_kind(objects, "Secret") == []
    certificate, issuer = one(objects, "Certificate"), one(objects, "Issuer")
    assert mounted(objects) == certificate["spec"]["secretName"]
    assert f"{NAME}.operators.svc" in certificate["spec"]["dnsNames"]
    assert certificate["spec"]["issuerRef"] == {"kind": "Issuer", "name": issuer["metadata"]["name"]}
    annotations = one(objects, "CustomResourceDefinition")["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"operators/{certificate['metadata']['name']}"
    assert annotations["helm.sh/resource-policy"] == "keep"
    assert "caBundle" not in client(objects)
    named = rendered({"conversion": {"certManager": {"enabled": True, "issuerRef": {"name": "ours", "kind": "ClusterIssuer"}}}})
    assert of_kind(named, "Issuer") == []
    assert one(named, "Certificate")["spec"]["issuerRef"] == {"name": "ours", "kind": "ClusterIssuer"}


def test_the_version_that_is_stored_is_the_newest_unless_another_is_asked_for() -> None:
    for value, stored in (("auto", "v1beta1"), ("v1beta1", "v1beta1"), ("v1alpha1", "v1alpha1")):
        objects = rendered({"crds": {"storageVersion": value}})
        versions = one(objects, "CustomResourceDefinition")["spec"]["versions"]
        assert [(each["name"], each["served"]) for each in versions] == [("v1beta1", True), ("v1alpha1", True)]
        assert [each["name"] for each in versions if each["storage"]] == [stored]
        assert environment(objects)["STREAMJOIN_STORAGE_VERSION"] == stored


def definition_rights(objects: list[Object]) -> list[Object]:
    rules = [rule for role in of_kind(objects, "Role", "ClusterRole") for rule in role["rules"]]
    return [rule for rule in rules if "apiextensions.k8s.io" in rule["apiGroups"] and set(rule["verbs"]) - {"list", "watch"}]


def test_only_who_migrates_may_change_the_definition_and_that_one_alone() -> None:
    for rule in definition_rights(rendered({})):
        assert rule["resourceNames"] == ["streamjoins.streamjoin.dev"]
    assert len(definition_rights(rendered({}))) == 2
    for values in ({"watch": {"namespaces": ["team-a"]}}, {"crds": {"migrate": False}}, {"crds": {"install": False}}):
        objects = rendered(values)
        assert definition_rights(objects) == []
        assert "STREAMJOIN_STORAGE_VERSION" not in environment(objects)


@pytest.mark.parametrize(
    ("value", "said"),
    [("crds.storageVersion=v2", "storageVersion"), ("conversion.port=0", "port"), ("conversion.authority=x", "authority")],
)
def test_a_value_that_cannot_be_is_refused_by_name(value: str, said: str) -> None:
    done = helm("template", "sj", str(CHART), "--set", value, check=False)
    assert done.returncode != 0
    assert said in done.stderr
