"""The operator's pure parts: what a change takes, what a worker needs, what should exist, what the status says."""

from __future__ import annotations

import asyncio
import base64
import copy
import dataclasses
import json
import random
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from operator_parts import Object, pods_of, streamjoin, three_streams
from restricted_v2 import refusals
from streamjoin import logs
from streamjoin.cli import pods
from streamjoin.compilation import compile_job
from streamjoin.elastic.sample import Sample
from streamjoin.manifest import check
from streamjoin.runner.exchange import AHEAD_BYTES
from streamjoin_operator import children, claims, names, plugin, pod_templates, settings, status, uses
from streamjoin_operator.api import ApiError
from streamjoin_operator.budget import SHORTAGE_SECONDS, least_available
from streamjoin_operator.changes import Class, classify, compared, engine_manifest, revision, worst
from streamjoin_operator.derived import Derived, derive
from streamjoin_operator.drift import is_current, ours, stamped
from streamjoin_operator.driver import Measured, Report, distrust, measure
from streamjoin_operator.driver_steps import wish_of
from streamjoin_operator.facts import Facts
from streamjoin_operator.health import AGE_SECONDS, BEAT_SECONDS, Health
from streamjoin_operator.instants import duration
from streamjoin_operator.memory import worker_memory
from streamjoin_operator.pod_trouble import Trouble, trouble_of
from streamjoin_operator.queue import Key, Queue
from streamjoin_operator.reasons import Reason
from streamjoin_operator.reporting import transitions
from streamjoin_operator.resource import Resource
from streamjoin_operator.settings import Settings
from streamjoin_operator.template import merge
from waiting import PATIENCE_SECONDS, wait_in_loop

ROOT = Path(__file__).resolve().parent.parent
TLS = {"tls": {"secretName": "one-tls"}}


def manifest_of(body: Object) -> Any:
    document = check(body)
    assert document.manifest is not None, document.problems
    return document.manifest


def changed(path: str, value: Any) -> Object:
    """The manifest of the tests with one field set."""
    body = copy.deepcopy(streamjoin())
    part: Any = body["spec"]
    *outer, last = path.split(".")
    for name in outer:
        part = part[int(name)] if name.isdigit() else part.setdefault(name, {})
    part[last] = value
    return body


class TestNames:
    def test_they_fit_a_label_with_what_a_deployment_appends(self) -> None:
        for length in (1, 20, 42, 43, 63):
            assert len(names.base_name("a" * length)) + 17 <= 63

    def test_long_names_that_begin_alike_stay_apart(self) -> None:
        assert names.base_name("a" * 62 + "b") != names.base_name("a" * 62 + "c")

    def test_a_name_may_begin_with_a_digit(self) -> None:
        assert names.base_name("1st") == "sj-1st"


class TestChanges:
    @pytest.mark.parametrize(
        ("path", "value", "kind"),
        [
            ("streams.0.expectedRate", 500.0, Class.IGNORED),
            ("scaling.mode", "Off", Class.IGNORED),
            ("scaling.policy", "predictive", Class.IGNORED),
            ("scaling.scaleUpAfter", "1m", Class.IGNORED),
            ("scaling.stabilization", "1m", Class.RESTART),
            ("scaling.quiet", [{"start": "08:00", "end": "18:00"}], Class.IGNORED),
            ("scaling.maxPerHour", 4, Class.IGNORED),
            ("workers.maxMemory", "8Gi", Class.IGNORED),
            ("operatorClass", "blue", Class.IGNORED),
            ("metrics.podMonitor", {"labels": {"release": "prometheus"}}, Class.IGNORED),
            ("queries", {"replicas": 2, "flight": True}, Class.IGNORED),
            ("backup", {"schedule": "0 3 * * *", "keep": 2}, Class.IGNORED),
            ("workers.max", 16, Class.LIVE),
            ("workers.floor", 3, Class.LIVE),
            ("scheme.model", "square", Class.LIVE),
            ("scheme", {"model": "readj", "sigma": 0.2}, Class.RESTART),
            ("scheme.model", "handshake", Class.REFUSED),
            ("workers.capacityTuples", 50_000, Class.RESTART),
            ("workers.resources.memory", "4Gi", Class.RESTART),
            ("workers.perExecutor", 2, Class.RESTART),
            ("scaling.tau2", 0.7, Class.RESTART),
            ("shedding.model", "linear", Class.RESTART),
            ("streams.0.where", "amount > 0", Class.RESTART),
            ("joins.0.output.where", "orders.id <> payments.id", Class.RESTART),
            ("image", "engine:2", Class.RESTART),
            ("security.tls", {"secretName": "one-tls"}, Class.RESTART),
            ("driver.podTemplate", {"spec": {"priorityClassName": "high"}}, Class.RESTART),
            ("checkpoint.location", "s3://bucket/state/two", Class.RESTART),
            ("checkpoint.cloneOf", {"location": "s3://bucket/state/two", "savepoint": "a"}, Class.RESTART),
            ("streams.0.schema", "id BIGINT, amount DOUBLE, at TIMESTAMP, more INT", Class.REFUSED),
            ("streams.0.source.kafka.topic", "others", Class.REFUSED),
            ("joins.0.window.within", "60s", Class.REFUSED),
            ("joins.0.condition", "orders.id = payments.id", Class.REFUSED),
        ],
    )
    def test_each_field_has_its_class(self, path: str, value: Any, kind: Class) -> None:
        before, after = compared(manifest_of(streamjoin())), compared(manifest_of(changed(path, value)))
        assert worst(classify(before, after)) is kind
        is_same = revision(before, "") == revision(after, "")
        assert is_same == (kind in (Class.IGNORED, Class.LIVE)), "the driver restarts exactly when the revision differs"

    def test_another_savepoint_to_begin_with_is_no_other_checkpoint(self) -> None:
        after = changed("joins.0.window.within", "60s")
        after["spec"]["checkpoint"]["cloneOf"] = {"location": "s3://bucket/state/two", "savepoint": "a"}
        assert worst(classify(compared(manifest_of(streamjoin())), compared(manifest_of(after)))) is Class.REFUSED

    @pytest.mark.parametrize(
        ("before", "after", "kind"),
        [
            ({"topic": "orders"}, {"topicPattern": "orders(-.*)?"}, Class.RESTART),
            ({"topic": "orders"}, {"topicPattern": "orders-.*"}, Class.REFUSED),
            ({"topicPattern": "orders-.*"}, {"topicPattern": "other-.*"}, Class.RESTART),
            ({"topicPattern": "orders-.*"}, {"topicPattern": "orders-.*", "discoveryInterval": "1s"}, Class.RESTART),
            ({"topicPattern": "orders"}, {"topic": "orders"}, Class.REFUSED),
        ],
    )
    def test_a_pattern_may_follow_a_topic_that_it_matches(self, before: Object, after: Object, kind: Class) -> None:
        def of(topics: Object) -> Object:
            return compared(manifest_of(changed("streams.0.source", {"kafka": {"bootstrapServers": "kafka:9092"} | topics})))

        changes = classify(of(before), of(after))
        assert worst(changes) is kind
        assert all(change.field.startswith("spec.streams[0].source.kafka.") for change in changes)
        assert revision(of(before), "") != revision(of(after), "")

    def test_a_budget_is_the_drivers_which_says_for_how_long_it_lasts(self) -> None:
        before = changed("shedding", {"model": "linear"})
        after = copy.deepcopy(before)
        after["spec"].setdefault("scaling", {})["budget"] = {"completeness": "99.9 %"}
        (change,) = classify(compared(manifest_of(before)), compared(manifest_of(after)))
        assert (change.field, change.kind) == ("spec.scaling.budget.completeness", Class.RESTART)
        assert change.why == "the driver says for how long it lasts"

    def test_a_join_may_leave_a_chain_and_none_may_come(self) -> None:
        one = changed("scheme.model", "handshake")
        (join,) = one["spec"]["joins"]
        two = copy.deepcopy(one)
        two["spec"]["joins"].append(join | {"name": "another", "output": {"sink": {"console": {}}}})
        (added,), (removed,) = (classify(compared(manifest_of(a)), compared(manifest_of(b))) for a, b in ((one, two), (two, one)))
        assert (added.kind, added.why) == (Class.REFUSED, "another is added; some tuples in the chain have met without it")
        assert removed.kind is Class.RESTART

    def test_a_join_that_comes_or_goes_restarts_the_driver_and_one_that_stays_may_not_change(self) -> None:
        one = streamjoin()
        (join,) = one["spec"]["joins"]
        another = join | {"name": "another", "output": {"sink": {"console": {}}}}
        two, turned = changed("joins", [join, another]), changed("joins", [another, join])
        for before, after, field, why in (
            (one, two, "spec.joins[1]", "another is added"),
            (one, turned, "spec.joins[0]", "another is added"),
            (two, one, "spec.joins", "another is removed"),
            (two, turned, "spec.joins", "they are in another order"),
        ):
            (change,) = classify(compared(manifest_of(before)), compared(manifest_of(after)))
            assert (change.field, change.kind, change.why) == (field, Class.RESTART, why)
        other = changed("joins", [another, join | {"window": {"within": "59s"}}])
        changes = classify(compared(manifest_of(one)), compared(manifest_of(other)))
        assert worst(changes) is Class.REFUSED
        assert [change.field for change in changes if change.kind is Class.REFUSED] == ["spec.joins[1].window.within"]

    def test_an_outer_join_of_three_streams_comes_and_goes_with_its_checkpoint(self) -> None:
        one = streamjoin(**three_streams())
        (join,) = one["spec"]["joins"]
        two = copy.deepcopy(one)
        two["spec"]["joins"] = [join, join | {"name": "enriched", "type": "left", "output": {"sink": {"console": {}}}}]
        for before, after in ((one, two), (two, one)):
            (change,) = classify(compared(manifest_of(before)), compared(manifest_of(after)))
            assert change.kind is Class.REFUSED
            assert "enriched" in change.why
        two["spec"]["checkpoint"]["location"] = "s3://bucket/elsewhere"
        assert worst(classify(compared(manifest_of(one)), compared(manifest_of(two)))) is Class.RESTART

    def test_a_stream_that_comes_or_goes_is_refused_by_name(self) -> None:
        two, three = streamjoin(), streamjoin(**three_streams())
        for before, after in ((two, three), (three, two)):
            changes = classify(compared(manifest_of(before)), compared(manifest_of(after)))
            assert worst(changes) is Class.REFUSED
            assert "spec.streams[2].name" in {change.field for change in changes if change.kind is Class.REFUSED}

    def test_of_three_streams_a_window_is_refused_by_the_stream_that_it_is_of(self) -> None:
        before, after = streamjoin(**three_streams()), streamjoin(**three_streams())
        after["spec"]["joins"][0]["window"]["each"]["payments"] = "61s"
        (change,) = classify(compared(manifest_of(before)), compared(manifest_of(after)))
        assert (change.field, change.kind) == ("spec.joins[0].window.each.payments", Class.REFUSED)

    def test_a_default_that_is_written_out_is_no_change(self) -> None:
        body = changed("scaling", {"tau0": 0.2, "tau2": 0.8, "mode": "Enforce"})
        assert classify(compared(manifest_of(streamjoin())), compared(manifest_of(body))) == ()

    def test_a_condition_that_changes_is_named_as_manifests_name_it(self) -> None:
        before, after = manifest_of(streamjoin()), manifest_of(changed("joins.0.condition", "orders.id = payments.id"))
        (change,) = classify(compared(before), compared(after))
        assert change.field == "spec.joins[0].condition"

    def test_with_another_checkpoint_the_join_itself_may_change(self) -> None:
        body = changed("checkpoint.location", "s3://bucket/state/two")
        body["spec"]["joins"][0]["condition"] = "orders.id = payments.id"
        assert worst(classify(compared(manifest_of(streamjoin())), compared(manifest_of(body)))) is Class.RESTART

    def test_the_restart_annotation_is_part_of_the_revision(self) -> None:
        value = compared(manifest_of(streamjoin()))
        assert revision(value, "") != revision(value, "2026-01-01")

    def test_the_driver_gets_a_manifest_that_is_valid_and_free_of_what_the_operator_reads(self) -> None:
        claim = {"persistentVolumeClaim": "data", "size": "1Gi"}
        body = streamjoin(checkpoint=claim, suspend=True, image="x", driver={"podTemplate": {"a": 1}}, security=TLS)
        written = engine_manifest(manifest_of(body))
        assert written["spec"]["checkpoint"] == {"location": "/var/lib/streamjoin/one"}
        assert not {"suspend", "image", "driver", "executor", "security"} & set(written["spec"])
        assert check(json.loads(json.dumps(written))).problems == ()


class TestMemory:
    def test_what_does_not_fit_is_refused_with_the_arithmetic_and_both_remedies(self) -> None:
        found = derive(changed("workers.capacityTuples", 40_000_000))
        assert found.problem is not None
        reason, message = found.problem
        assert reason is Reason.InsufficientMemory
        assert message.startswith("spec.workers.resources.memory: 2,048Mi must be at least ")
        assert "40,000,000 tuples x " in message
        assert "or lower spec.workers.capacityTuples to " in message

    def test_the_remedies_work(self) -> None:
        refused = derive(changed("workers.capacityTuples", 40_000_000)).memory
        assert refused is not None
        fewer = int(refused.refusal().rsplit(" ", 1)[1].replace(",", ""))
        assert derive(changed("workers.capacityTuples", fewer)).problem is None
        body = changed("workers.capacityTuples", 40_000_000)
        body["spec"]["workers"]["resources"] = {"memory": f"{-(-refused.needed // (1 << 20))}Mi"}
        assert derive(body).problem is None

    def test_a_capacity_in_bytes_is_what_is_held(self) -> None:
        def of(capacity: str, **changes: object) -> Derived:
            body = streamjoin()
            del body["spec"]["workers"]["capacityTuples"]
            body["spec"]["workers"] |= {"capacity": capacity} | changes
            return derive(body)

        fitting = of("256Mi").memory
        assert fitting is not None
        assert fitting.held == 256 << 20
        assert fitting.arithmetic().startswith("256Mi held + 64Mi merging + ")
        refused = of("2Gi")
        assert refused.problem is not None
        reason, message = refused.problem
        assert reason is Reason.InsufficientMemory
        sentence = r"spec\.workers\.resources\.memory: 2,048Mi must be at least ([0-9,]+)Mi: .*; raise it, or lower (.*)"
        found = re.fullmatch(sentence, message)
        assert found is not None, message
        field, fewer = found[2].split(" to ")
        assert field == "spec.workers.capacity"
        assert of(fewer.replace(",", "")).problem is None
        assert of("2Gi", resources={"memory": f"{found[1].replace(',', '')}Mi"}).problem is None

    def test_heap_and_overhead_make_up_the_limit(self) -> None:
        seed = random.Random(1)
        for _ in range(20):
            body = changed("workers.capacityTuples", seed.randrange(1, 3_000_000))
            memory = derive(body).memory
            assert memory is not None
            assert memory.heap_mib + memory.overhead_mib == 2048
            assert memory.fits == (memory.needed <= memory.limit)

    def test_what_a_worker_takes_of_the_next_epoch_is_bounded(self) -> None:
        body = changed("workers.capacityTuples", 20_000_000)
        body["spec"]["epoch"] = {"maxTuples": 20_000_000}
        memory = derive(body).memory
        assert memory is not None
        assert memory.ahead == AHEAD_BYTES < memory.arriving == memory.held
        small = derive(streamjoin()).memory
        assert small is not None
        assert small.ahead == small.arriving

    def test_workers_that_share_an_executor_pay_for_one_jvm(self) -> None:
        tight = changed("workers.resources.memory", "640Mi")
        alone = derive(tight)
        assert alone.problem is not None
        tight["spec"]["workers"]["perExecutor"] = 4
        shared = derive(tight)
        assert shared.problem is None
        assert alone.memory is not None
        assert shared.memory is not None
        assert shared.memory.limit == 4 * alone.memory.limit
        assert 4 * alone.memory.needed - shared.memory.needed == 3 * (256 + 192) << 20
        assert shared.memory.arithmetic().startswith("4 workers x (100,000 tuples x ")

    def test_what_does_not_fit_an_executor_is_refused_with_what_each_worker_lacks(self) -> None:
        body = changed("workers.capacityTuples", 40_000_000)
        body["spec"]["workers"]["perExecutor"] = 3
        refused = derive(body)
        assert refused.problem is not None
        _, message = refused.problem
        sentence = r"spec\.workers\.resources\.memory: 2,048Mi must be at least ([0-9,]+)Mi: 3 workers x \(40,000,000 tuples x "
        found = re.match(sentence, message)
        assert found is not None, message
        fewer = int(message.rsplit(" ", 1)[1].replace(",", ""))
        for changes, fits in (
            ({"resources": {"memory": f"{found[1].replace(',', '')}Mi"}}, True),
            ({"resources": {"memory": f"{int(found[1].replace(',', '')) - 2}Mi"}}, False),
            ({"capacityTuples": fewer}, True),
        ):
            body["spec"]["workers"] |= {"capacityTuples": 40_000_000, "resources": {"memory": "2Gi"}} | changes
            assert (derive(body).problem is None) == fits, changes

    def test_a_measured_size_is_preferred(self) -> None:
        job = derive(streamjoin()).job
        assert job is not None
        memory = worker_memory(job, 1000.0)
        assert memory.held == 100_000_000
        assert "1000 bytes (measured)" in memory.arithmetic()


class TestChildren:
    def of(self, body: Object, observed: Object | None = None, image: str = "engine:1") -> Object:
        derived = derive(body)
        assert derived.memory is not None
        assert derived.manifest is not None
        return children.deployment(Resource.of(body), derived.manifest, derived.memory, Settings(engine_image=image), observed)

    def test_pods_meet_the_restricted_standard(self) -> None:
        body = streamjoin()
        driver = self.of(body)["spec"]["template"]["spec"]
        executor = pod_templates.executor_template(Resource.of(body), manifest_of(body), Settings())["spec"]
        cleanup = pod_templates.cleanup_template(Resource.of(body), manifest_of(body), "{}", Settings())["spec"]
        queries = pod_templates.queries_template(Resource.of(body), manifest_of(body), Settings(), "engine:1")["spec"]
        for spec in (driver, executor, cleanup, queries):
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in spec["containers"]:
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert executor["automountServiceAccountToken"] is False
        assert queries["automountServiceAccountToken"] is False

    @pytest.mark.parametrize("kind", ["driver", "executor", "cleanup", "queries", "watcher", "trial"])
    def test_where_the_cluster_chooses_users_pods_name_none(self, kind: str) -> None:
        body = streamjoin(queries={"replicas": 1}, checkpoint={"persistentVolumeClaim": "data"}, security={"tls": {"secretName": "tls"}})
        chosen = pods_of(body, Settings(assigned_users=True))[kind]
        assert refusals(chosen) == []
        assert chosen["securityContext"]["runAsNonRoot"] is True
        ours = pods_of(body, Settings())[kind]
        assert refusals(ours) == ["pod: runAsUser 10001", "pod: runAsGroup 10001", "fsGroup 10001"]

    @pytest.mark.parametrize("kind", ["driver", "executor", "cleanup", "queries", "watcher", "trial"])
    def test_what_pods_write_on_their_node_is_bounded_and_asked_for(self, kind: str) -> None:
        spec = pods_of(streamjoin(queries={"replicas": 1, "processes": 3}), Settings())[kind]
        scratch = {volume["name"]: volume["emptyDir"] for volume in spec["volumes"] if "emptyDir" in volume}
        limits = {"driver": "8Gi", "trial": "8Gi", "executor": "32Gi", "queries": "13Gi"}
        assert scratch.pop("tmp") == {"sizeLimit": limits.get(kind, "1Gi")}
        assert scratch == ({pod_templates.SPARK_VOLUME: {"sizeLimit": "1Gi"}} if kind == "executor" else {})
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert "ephemeral-storage" in container["resources"]["requests"]
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert {"tmp", *scratch} <= mounted

    def test_the_users_template_sets_and_removes_what_bounds_the_disk(self) -> None:
        def made(size: str | None) -> tuple[Object, Object]:
            container = {"name": "executor", "resources": {"requests": {"ephemeral-storage": size}}}
            template = {"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": size}}], "containers": [container]}}
            spec = pods_of(streamjoin(executor={"podTemplate": template}), Settings())["executor"]
            (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "tmp")
            return volume["emptyDir"], spec["containers"][0]["resources"]

        assert made("200Gi") == ({"sizeLimit": "200Gi"}, {"requests": {"ephemeral-storage": "200Gi"}})
        assert made(None) == ({}, {"requests": {}})

    @pytest.mark.parametrize("kind", ["driver", "executor", "cleanup", "queries", "watcher", "trial"])
    def test_pods_leave_the_cluster_by_the_proxies_and_ask_the_api_server_without(self, kind: str) -> None:
        def told(**given: Any) -> dict[str, str]:
            spec = pods_of(streamjoin(queries={"replicas": 1}), Settings(**given))[kind]
            variables = [each for container in spec["containers"] for each in container["env"] if "proxy" in each["name"].lower()]
            return {each["name"]: each["value"] for each in variables}

        assert told() == {}
        found = told(https_proxy="http://proxy.example.com:3128", no_proxy=("registry.example.com",))
        assert set(found) == {"HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"}
        assert found["HTTPS_PROXY"] == found["https_proxy"] == "http://proxy.example.com:3128"
        without = found["NO_PROXY"].split(",")
        assert without[0] == "$(KUBERNETES_SERVICE_HOST)"
        assert {".svc", "registry.example.com"} <= set(without)

    def test_a_query_server_is_where_the_driver_is_and_can_only_read(self) -> None:
        variables = {"name": "driver", "env": [{"name": "AWS_REGION", "value": "eu"}], "resources": {"limits": {"memory": "9Gi"}}}
        body = streamjoin(
            checkpoint={"persistentVolumeClaim": "data"},
            driver={"podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}, "containers": [variables]}}},
            queries={"replicas": 2, "processes": 3, "memory": "1Gi", "podTemplate": {"spec": {"priorityClassName": "low"}}},
        )
        template = pod_templates.queries_template(Resource.of(body), manifest_of(body), Settings(), "engine:7")
        spec, (container,) = template["spec"], template["spec"]["containers"]
        assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"disk": "ssd"}, "low")
        assert (container["image"], container["env"][-1:]) == ("engine:7", variables["env"])
        assert {each["name"] for each in container["env"][:-1]} == {logs.LEVEL, logs.FORMAT, logs.ABOUT}
        assert container["resources"]["limits"] == {"memory": "4Gi"}, "3 x (1Gi + 256Mi) + 256Mi"
        assert {"name": "state", "mountPath": "/var/lib/streamjoin", "readOnly": True} in container["volumeMounts"]
        secrets = [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume]
        assert secrets == ["sj-one-queries"], "neither the token of plans, nor what driver and workers show each other"
        document = json.loads(template["metadata"]["annotations"][names.MANIFEST])
        assert compile_job(manifest_of(document)).checkpoint == "/var/lib/streamjoin/one"

    def test_query_servers_answer_over_flight_where_that_is_asked_for(self) -> None:
        def made(**queries: Any) -> tuple[list[str], list[Object], Object | None]:
            body = streamjoin(queries={"replicas": 1, **queries})
            resource, settings = Resource.of(body), Settings(network_policy=True)
            deployment, service, policy = children.query_servers(resource, manifest_of(body), settings, "engine:1")
            (container,) = deployment["spec"]["template"]["spec"]["containers"]
            (ingress,) = policy["spec"]["ingress"]
            ports = service["spec"]["ports"]
            numbers = [each["port"] for each in ports]
            assert numbers == [each["port"] for each in ingress["ports"]] == [each["containerPort"] for each in container["ports"]]
            return container["args"], ports, children.queries_of(resource, deployment)

        arguments, ports, status = made(flight=True)
        assert "--flight=8081" in arguments
        assert [(each["name"], each["port"], each["targetPort"]) for each in ports] == [("http", 8080, "http"), ("flight", 8081, "flight")]
        assert status is not None
        assert status["flight"] == "grpc://sj-one-queries.default.svc:8081"
        arguments, ports, status = made()
        assert [each["port"] for each in ports] == [8080]
        assert not any("flight" in word for word in arguments)
        assert "flight" not in (status or {})

    def test_services_have_the_families_that_are_asked_for(self) -> None:
        def families(**asked: Any) -> list[Object]:
            body = streamjoin(queries={"replicas": 1})
            resource, chosen = Resource.of(body), Settings(**asked)
            made = [children.service(resource, chosen), *children.query_servers(resource, manifest_of(body), chosen, "engine:1")]
            specs = [each["spec"] for each in made if each["kind"] == "Service"]
            return [{name: spec[name] for name in ("ipFamilyPolicy", "ipFamilies") if name in spec} for spec in specs]

        assert families() == [{}, {}]
        both = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
        assert families(ip_family_policy="PreferDualStack", ip_families=("IPv6", "IPv4")) == [both, both]

    def test_to_scale_or_to_tune_a_join_starts_no_query_server_anew(self) -> None:
        def template(**spec: Any) -> Object:
            body = streamjoin(**spec)
            return pod_templates.queries_template(Resource.of(body), manifest_of(body), Settings(), "engine:1")

        assert template(workers={"max": 16, "floor": 3, "perExecutor": 12}) == template()
        assert template(scaling={"mode": "Off"}, epoch={"interval": "7s"}, shedding={"model": "linear"}) == template()
        assert template(checkpoint={"location": "s3://bucket/state/two"}) != template()

    def test_a_new_release_of_the_operator_restarts_no_join(self) -> None:
        body = streamjoin()
        before = self.of(body, image="engine:1")
        after = self.of(body, before, image="engine:2")
        assert after == before

    def test_a_restart_takes_the_new_release_up(self) -> None:
        body = streamjoin()
        before = self.of(body, image="engine:1")
        body["metadata"]["annotations"] = {names.RESTART: "now"}
        after = self.of(body, before, image="engine:2")
        assert after["spec"]["template"]["spec"]["containers"][0]["image"] == "engine:2"

    def test_suspended_is_no_pod_and_no_restart(self) -> None:
        before, after = self.of(streamjoin()), self.of(streamjoin(suspend=True))
        assert (before["spec"]["replicas"], after["spec"]["replicas"]) == (1, 0)
        assert before["spec"]["template"] == after["spec"]["template"]

    def test_an_executor_gets_what_its_workers_ask_for_together(self) -> None:
        body = changed("workers.resources", {"cpu": "500m", "memory": "1Gi"})
        for workers, cpu, mib in ((1, "500m", 1024), (3, "1500m", 3072), (4, "2", 4096)):
            body["spec"]["workers"]["perExecutor"] = workers
            arguments = self.of(body)["spec"]["template"]["spec"]["containers"][0]["args"]
            given = dict(argument.split("=") for argument in arguments if argument.startswith("--executor-"))
            assert given["--executor-cpu"] == cpu
            assert int(given["--executor-heap-mib"]) + int(given["--executor-overhead-mib"]) == mib

    def test_a_claim_outlives_the_streamjoin_unless_it_says_otherwise(self) -> None:
        for kept in ("Retain", "Delete"):
            body = streamjoin(checkpoint={"persistentVolumeClaim": "data", "size": "1Gi", "onDelete": kept})
            claim = claims.claim(Resource.of(body), manifest_of(body))
            assert claim is not None
            assert ("ownerReferences" in claim["metadata"]) == (kept == "Delete")

    def test_a_claim_is_mounted_where_the_manifest_says_the_state_is(self) -> None:
        body = streamjoin(checkpoint={"persistentVolumeClaim": "data"})
        spec = self.of(body)["spec"]["template"]["spec"]
        assert {"name": "state", "persistentVolumeClaim": {"claimName": "data"}} in spec["volumes"]
        assert {"name": "state", "mountPath": "/var/lib/streamjoin"} in spec["containers"][0]["volumeMounts"]

    def test_the_users_template_is_merged_over_ours(self) -> None:
        container = {"name": "driver", "env": [{"name": "X", "value": "1"}]}
        template = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container]}}
        pod = self.of(streamjoin(driver={"podTemplate": template}))["spec"]["template"]
        assert pod["metadata"]["labels"]["team"] == "a"
        assert pod["metadata"]["labels"][names.NAME] == "one"
        assert {"name": "X", "value": "1"} in pod["spec"]["containers"][0]["env"]
        assert any(variable["name"] == "POD_IP" for variable in pod["spec"]["containers"][0]["env"])

    def test_pods_say_whether_a_node_may_be_given_up_with_them_unless_the_users_template_does(self) -> None:
        evict, disrupt = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
        theirs = {"podTemplate": {"metadata": {"annotations": {evict: "true", disrupt: None}}}}
        for body, of_driver in ((streamjoin(), ("false", "true")), (streamjoin(driver=theirs), ("true", None))):
            executor = pod_templates.executor_template(Resource.of(body), manifest_of(body), Settings())
            queries = pod_templates.queries_template(Resource.of(body), manifest_of(body), Settings(), "engine:1")
            of_pods = [of["metadata"]["annotations"] for of in (self.of(body)["spec"]["template"], executor, queries)]
            assert [(each.get(evict), each.get(disrupt)) for each in of_pods] == [of_driver, ("true", None), ("true", None)]

    @pytest.mark.parametrize(("given", "seconds"), [({}, 60), ({"terminationGracePeriodSeconds": 15}, 15)])
    def test_an_executor_has_the_time_that_its_template_gives_it_to_hand_its_part_over(self, given: Object, seconds: int) -> None:
        body = streamjoin(executor={"podTemplate": {"spec": given}})
        executor = pod_templates.executor_template(Resource.of(body), manifest_of(body), Settings())["spec"]
        assert executor["terminationGracePeriodSeconds"] == seconds
        assert f"$(date +%s) + {seconds})" in executor["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert f"--executor-grace-seconds={seconds}" in self.of(body)["spec"]["template"]["spec"]["containers"][0]["args"]

    def test_the_ports_are_those_that_the_engine_serves(self) -> None:
        ours = (pod_templates.EXCHANGE_PORT, pod_templates.RPC_PORT, pod_templates.BLOCKS_PORT)
        assert ours == (pods.EXCHANGE_PORT, pods.RPC_PORT, pods.BLOCKS_PORT)
        for count in (1, 2, 8):
            manifest = manifest_of(changed("workers.perExecutor", count))
            assert tuple(pod_templates.worker_ports(manifest)) == pods.worker_ports(count)
            assert len(pods.worker_ports(count)) == 15 + count
        driver = self.of(streamjoin())["spec"]["template"]["spec"]["containers"][0]
        template = pod_templates.executor_template(Resource.of(streamjoin()), manifest_of(streamjoin()), Settings())
        (executor,) = template["spec"]["containers"]
        assert [port["containerPort"] for port in driver["ports"]] == [8080, 7077, 7078, 7079]
        assert [port["containerPort"] for port in executor["ports"]] == list(range(7080, 7096)), "Spark declares the port of blocks"

    @pytest.mark.parametrize(("per_executor", "last"), [(1, 7095), (4, 7098)])
    def test_each_pod_is_open_on_its_own_ports_to_those_who_call_it(self, per_executor: int, last: int) -> None:
        driver, executors = ({names.NAME: "one", names.COMPONENT: part} for part in ("driver", "executor"))
        opened = {}
        for policy in children.network_policies(Resource.of(streamjoin()), manifest_of(changed("workers.perExecutor", per_executor))):
            spec = policy["spec"]
            assert spec["policyTypes"] == ["Ingress"]
            into = opened[spec["podSelector"]["matchLabels"][names.COMPONENT]] = set()
            assert spec["podSelector"]["matchLabels"][names.NAME] == "one"
            for rule in spec["ingress"]:
                for caller in rule["from"]:
                    labels = caller.get("podSelector", {}).get("matchLabels")
                    who = "cluster" if labels is None else {str(driver): "driver", str(executors): "executor"}[str(labels)]
                    into |= {(who, port["port"], port.get("endPort", port["port"])) for port in rule["ports"]}
        assert opened == {
            "driver": {("cluster", 8080, 8080), *(("executor", port, port) for port in (7077, 7078, 7079))},
            "executor": {("driver", 7079, 7079), ("executor", 7079, 7079), ("executor", 7080, last)},
        }

    def test_driver_and_executors_mount_the_same_secrets_in_the_same_places(self) -> None:
        for security, mounts in (
            ({}, {"/etc/streamjoin-exchange": "sj-one-exchange"}),
            (TLS, {"/etc/streamjoin-exchange": "sj-one-exchange", "/etc/streamjoin-tls": "one-tls"}),
        ):
            body = streamjoin(security=security)
            driver = self.of(body)["spec"]["template"]["spec"]
            executor = pod_templates.executor_template(Resource.of(body), manifest_of(body), Settings())["spec"]
            for spec in (driver, executor):
                secrets = {volume["name"]: volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
                assert secrets.pop("token", None) == ("sj-one-token" if spec is driver else None)
                found = spec["containers"][0]["volumeMounts"]
                assert {mount["mountPath"]: secrets[mount["name"]] for mount in found if mount["name"] in secrets} == mounts
            arguments = driver["containers"][0]["args"]
            assert "--exchange-secret-file=/etc/streamjoin-exchange/secret" in arguments
            assert ("--tls-name=sj-one.default.svc" in arguments) == bool(security)
            assert ("--tls-directory=/etc/streamjoin-tls" in arguments) == bool(security)

    def test_a_secret_is_made_once_and_then_kept(self) -> None:
        resource = Resource.of(streamjoin())
        first = children.secret(resource, "s", "secret", None)
        assert len(base64.b64decode(first["data"]["secret"])) >= 32
        assert children.secret(resource, "s", "secret", first) == first
        assert children.secret(resource, "s", "secret", None) != first
        assert children.secret(resource, "s", "secret", {**first, "data": {}})["data"]["secret"], "an empty one is filled"

    @pytest.mark.parametrize(
        ("observed", "wrong"),
        [
            (None, "there is no such Secret in namespace default"),
            ({"data": {"tls.crt": "eA==", "tls.key": "eA=="}}, "the Secret lacks ca.crt"),
            ({"data": {"ca.crt": "eA==", "tls.crt": ""}}, "the Secret lacks tls.crt and tls.key"),
        ],
    )
    def test_a_secret_without_certificates_is_said_with_its_remedy(self, observed: Object | None, wrong: str) -> None:
        body = streamjoin(security=TLS)
        problem = children.tls_problem(Resource.of(body), manifest_of(body), observed)
        assert problem is not None
        assert problem.startswith(f"spec.security.tls.secretName: one-tls: {wrong}; make one with tls.crt, tls.key, ca.crt")
        assert "DNS name sj-one.default.svc" in problem
        assert children.tls_problem(Resource.of(body), manifest_of(body), {"data": dict.fromkeys(children.TLS_FILES, "eA==")}) is None
        assert children.tls_problem(Resource.of(body), manifest_of(streamjoin()), observed) is None

    def test_the_example_of_certificates_is_for_the_example_of_a_join(self) -> None:
        examples = ROOT / "examples" / "kubernetes"
        join = yaml.safe_load((examples / "generator.yaml").read_text())
        resource = Resource.of({"metadata": {"namespace": "default", "uid": "", **join["metadata"]}})
        (certificate,) = [
            body["spec"]
            for body in yaml.safe_load_all((examples / "certificate.yaml").read_text())
            if body["kind"] == "Certificate" and not body["spec"].get("isCA")
        ]
        assert certificate["dnsNames"] == [resource.tls_name]
        assert certificate["secretName"] == f"{resource.name}-tls"

    def test_a_driver_may_touch_pods_alone_and_use_what_its_executors_template_names(self) -> None:
        volumes = [{"name": "keys", "secret": {"secretName": "keys"}}, {"name": "again", "secret": {"secretName": "keys"}}]
        body = streamjoin(executor={"podTemplate": {"spec": {"volumes": volumes}}}, checkpoint={"persistentVolumeClaim": "state"})
        manifest = derive(body).manifest
        assert manifest is not None
        touches, *used = children.role(Resource.of(body), manifest, Settings())["rules"]
        assert touches["resources"] == ["pods"]
        assert "patch" not in touches["verbs"]
        assert [rule["verbs"] for rule in used] == [["use"]] * 5, "a verb that the API server knows nothing of"
        assert {rule["resources"][0]: rule["resourceNames"] for rule in used} == {
            "streamjoins": ["one"],
            "drivers": ["sj-one"],
            "secrets": ["keys", "sj-one-exchange"],
            "persistentvolumeclaims": ["state"],
            "serviceaccounts": ["sj-one-executors"],
        }

    @pytest.mark.parametrize("spec", [{"volumes": "a"}, {"containers": 3}, {"volumes": [None, {"secret": "a"}]}, "no mapping"], ids=str)
    def test_a_template_that_is_no_pod_uses_nothing(self, spec: Any) -> None:
        assert [rule["resources"] for rule in uses.rules("one", "sj-one", {"spec": spec})] == [["streamjoins"], ["drivers"]]

    @pytest.mark.parametrize(("given", "wanted"), [({}, "15s"), ({"interval": "5s"}, "5s")])
    def test_a_join_is_scraped_as_often_as_its_manifest_says(self, given: Object, wanted: str) -> None:
        body = streamjoin(metrics={"podMonitor": given})
        (endpoint,) = children.pod_monitor(Resource.of(body), manifest_of(body), Settings())["spec"]["podMetricsEndpoints"]
        assert endpoint["interval"] == wanted

    def test_prometheus_knows_drivers_by_the_job_that_alerts_ask_for(self) -> None:
        label = children.pod_monitor(Resource.of(streamjoin()), manifest_of(streamjoin()), Settings())["spec"]["jobLabel"]
        assert self.of(streamjoin())["spec"]["template"]["metadata"]["labels"][label] == "streamjoin"

    @pytest.mark.parametrize(
        ("planned", "there", "seconds", "least"),
        [
            (1, 1, 0.0, 0),
            (5, None, 0.0, 4),
            (5, 5, 0.0, 4),
            (5, 6, 0.0, 4),
            (5, 3, SHORTAGE_SECONDS - 1, 4),
            (5, 3, SHORTAGE_SECONDS, 2),
            (2, 1, SHORTAGE_SECONDS, 0),
            (2, 0, SHORTAGE_SECONDS, 0),
        ],
    )
    def test_a_budget_lets_one_executor_go_and_no_shortage_that_lasts_blocks_a_drain(
        self, planned: int, there: int | None, seconds: float, least: int
    ) -> None:
        assert least_available(planned, there, seconds) == least
        budget = children.disruption_budget(Resource.of(streamjoin()), least)
        assert (budget is None) == (least == 0), "a single executor needs none"
        assert budget is None or budget["spec"]["minAvailable"] == least


class TestMerge:
    def test_lists_merge_by_their_key_and_null_removes(self) -> None:
        ours = {"volumes": [{"name": "a", "emptyDir": {}}], "nodeName": "x", "args": ["1"]}
        theirs = {"volumes": [{"name": "b"}, {"name": "a", "emptyDir": {"medium": "Memory"}}], "nodeName": None, "args": ["2"]}
        merged = merge(ours, theirs)
        assert merged == {"volumes": [{"name": "a", "emptyDir": {"medium": "Memory"}}, {"name": "b"}], "args": ["2"]}
        assert ours["nodeName"] == "x"

    def test_directives_remove_what_null_does_and_replace_the_whole(self) -> None:
        ours = {
            "securityContext": {"runAsUser": 1, "fsGroup": 1},
            "affinity": {"podAffinity": {"a": 1}},
            "tolerations": [{"key": "a"}],
            "containers": [{"name": "a", "livenessProbe": {"b": 1}}, {"name": "b"}],
            "volumes": [{"name": "a"}],
        }
        theirs = {
            "securityContext": {"$patch": "replace", "runAsNonRoot": True},
            "affinity": {"$patch": "delete"},
            "tolerations": [{"$patch": "replace"}, {"key": "b"}],
            "containers": [{"name": "a", "livenessProbe": {"$patch": "delete"}}, {"name": "b", "$patch": "delete"}],
            "volumes": [{"$patch": "replace"}, {"name": "c", "emptyDir": {"medium": None}}],
            "dnsConfig": {"options": None, "searches": ["x"]},
        }
        assert merge(ours, theirs) == {
            "securityContext": {"runAsNonRoot": True},
            "tolerations": [{"key": "b"}],
            "containers": [{"name": "a"}],
            "volumes": [{"name": "c", "emptyDir": {}}],
            "dnsConfig": {"searches": ["x"]},
        }
        assert merge({"a": 1}, {"$patch": "other"}) == {"a": 1, "$patch": "other"}, "the API server refuses what nobody knows"

    def test_a_null_of_a_pod_template_is_in_the_manifest_and_a_change(self) -> None:
        template = {"spec": {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}}
        body = streamjoin(driver={"podTemplate": template}, suspend=None)
        manifest = manifest_of(body)
        assert manifest.spec.driver.pod_template == template
        (change, *_) = classify(compared(manifest_of(streamjoin())), compared(manifest))
        assert (change.field, change.kind) == ("spec.driver.spec.securityContext.fsGroup", Class.RESTART)


PORT = {".": {}, "f:name": {}, "f:port": {}}
DESIRED: Object = {
    "metadata": {"name": "x", "labels": {}},
    "data": {"a": "", "b": ""},
    "ports": [{"port": 1, "name": "p"}],
    "finalizers": ["z", 1],
    "atomic": [{"c": "1000m"}],
}
FIELDS: Object = {
    "f:metadata": {"f:annotations": {f"f:{names.DESIRED}": {}}},
    "f:data": {"f:a": {}, "f:b": {}},
    "f:ports": {'k:{"port":1,"protocol":"TCP"}': PORT},
    "f:finalizers": {'v:"z"': {}, "v:1": {}},
    "f:atomic": {},
}
"""What an API server notes of DESIRED when it was applied."""


def managed(fields: Object) -> Object:
    """DESIRED as it is stored, with these of its fields still ours."""
    entry = {"manager": names.MANAGER, "operation": "Apply", "fieldsV1": fields}
    others = [{**entry, "fieldsV1": {}, **other} for other in ({"manager": "x"}, {"operation": "Update"}, {"subresource": "status"})]
    metadata = {**stamped(DESIRED)["metadata"], "managedFields": [*others, entry]}
    return {"data": {"a": "1", "c": "theirs"}, "metadata": metadata}


class TestDrift:
    """What a real API server does is asked of one, in test_operator_drift.py."""

    def test_what_was_applied_and_is_still_ours_is_current_whatever_is_stored(self) -> None:
        assert is_current(managed(FIELDS), stamped(DESIRED))

    @pytest.mark.parametrize("field", ["f:data", "f:ports", "f:finalizers", "f:atomic"])
    def test_a_field_that_somebody_took_over_is_not(self, field: str) -> None:
        left = dict(list(FIELDS[field].items())[1:])
        rest = {name: fields for name, fields in FIELDS.items() if name != field}
        assert not is_current(managed({**rest, field: {**left, ".": {}}} if left else rest), stamped(DESIRED))

    def test_nor_what_was_applied_of_another_version(self) -> None:
        assert not is_current(managed(FIELDS), stamped({**DESIRED, "data": {"a": ""}}))
        assert not is_current(None, stamped(DESIRED))

    def test_of_what_is_stored_the_part_that_we_applied(self) -> None:
        ports = [{"port": 1, "name": "p", "protocol": "TCP"}, {"port": 2}]
        stored = {"data": {"a": "", "c": "x"}, "ports": ports, "finalizers": ["z", "y"], "atomic": [{"c": "1"}], "status": {}}
        applied = {"data": {"a": ""}, "ports": [{"port": 1, "name": "p"}], "finalizers": ["z"], "atomic": [{"c": "1"}]}
        assert ours(stored, FIELDS) == applied


def facts(**changes: Any) -> Facts:
    health = {"state": "running", "lastError": None}
    plan = {"generation": 2, "workers": 2, "phase": "Running", "readyWorkers": 2, "scheme": {"model": "adsp", "areas": []}, "wanted": None}
    measured = Measured(2, {0: 0.4, 1: 0.6}, {0: 0.0, 1: 0.0}, {})
    report = Report(health, plan, measured)
    base = Facts(3, has_acted=True, driver_wanted=True, driver_pods=1, driver_ready=True, report=report, shed_ratio={"orders": 0.0})
    return Facts(**{**{name: getattr(base, name) for name in base.__slots__}, **changes})


def conditions_of(written: Object) -> dict[str, tuple[str, str]]:
    return {condition["type"]: (condition["status"], condition["reason"]) for condition in written["conditions"]}


def still(stalled: Object | None, committed_after: float = 0.0) -> Report:
    """A driver whose last commit was so many seconds after the beginning of 2026."""
    report = facts().report
    assert report is not None
    at = datetime(2026, 1, 1, tzinfo=UTC).timestamp() + committed_after
    return dataclasses.replace(report, health={**report.health, "stalled": stalled, "committedAt": at})


TOO_FULL = derive(
    streamjoin(
        workers={"min": 1, "max": 1, "capacityTuples": 1000},
        streams=[{**stream, "expectedRate": 100.0} for stream in streamjoin()["spec"]["streams"]],
    )
).first


class TestStatus:
    def test_a_running_join(self) -> None:
        written = status.status(facts(), {}, "2026-01-01T00:00:00Z")
        assert written["phase"] == "Running"
        assert (written["workers"], written["desiredWorkers"]) == (2, 2)
        assert written["utilization"] == {"max": "0.60", "mean": "0.50", "source": "driver", "at": "1970-01-01T00:00:00Z"}
        assert conditions_of(written) == {
            "Ready": ("True", "JoinRunning"),
            "Reconciling": ("False", "Settled"),
            "Stalled": ("False", "NothingRefused"),
            "Available": ("True", "JoinRunning"),
            "Rescaling": ("False", "Settled"),
            "EpochStalled": ("False", "EpochsMove"),
            "WatermarkHeld": ("False", "WatermarksMove"),
            "MetricsAvailable": ("True", "MetricsRead"),
            "Shedding": ("False", "NothingShed"),
            "Degraded": ("False", "Healthy"),
        }

    def test_how_complete_results_are_is_said_by_join_and_never_rounded_up(self) -> None:
        report = facts().report
        assert report is not None
        assert report.measured is not None
        measured = dataclasses.replace(report.measured, completeness={"j": {"estimate": 0.99999, "low": 0.98765, "high": 1.0, "more": 2}})
        written = status.status(facts(report=dataclasses.replace(report, measured=measured)), {}, "2026-01-01T00:00:00Z")
        assert written["completeness"] == {"j": {"estimate": "0.9999", "low": "0.9876", "high": "1"}}
        text = plugin.described({**streamjoin(), "status": written}, datetime(2026, 1, 1, tzinfo=UTC))
        assert "j 99.99% (98.76% to 100.00%) of the last hour's results" in text
        assert status.only_measurements({"completeness": {}})

    def test_records_that_could_not_be_used_are_counted_without_those_that_were_read_again(self) -> None:
        line = 'streamjoin_{}_records_total{{name="one",stream="{}"}} {}\n'
        lines = [("dead_letter", "l", 2000), ("replayed", "l", 1990), ("dead_letter", "r", 7), ("replayed", "r", 7)]
        measured = measure('streamjoin_plan_generation{name="one"} 1.0\n' + "".join(line.format(*values) for values in lines))
        assert measured is not None
        assert measured.dead_letters == {"l": 10}
        report = facts().report
        assert report is not None
        written = status.status(facts(report=dataclasses.replace(report, measured=measured)), {}, "2026-01-01T00:00:00Z")
        assert written["deadLetters"] == {"l": 10}
        assert "l 10" in plugin.described({**streamjoin(), "status": written}, datetime(2026, 1, 1, tzinfo=UTC))

    def test_the_driver_is_asked_about_the_last_hour(self) -> None:
        line = 'streamjoin_completeness_ratio{{name="one",join="j",over="{}",bound="{}"}} {}\n'
        lines = [("1h", "estimate", 0.9), ("1h", "low", 0.8), ("run", "low", 0.1), ("1h", "high", "NaN")]
        text = 'streamjoin_plan_generation{name="one"} 1.0\n' + "".join(line.format(*values) for values in lines)
        measured = measure(text)
        assert measured is not None
        assert measured.completeness == {"j": {"estimate": 0.9, "low": 0.8}}

    def test_lag_and_rate_are_written_when_they_are_off_by_a_quarter(self) -> None:
        text = 'streamjoin_plan_generation{name="one"} 2.0\nstreamjoin_watermark_lag_seconds{name="one",stream="l"} '
        measured, later = measure(f"{text}12.4\n"), measure(f"{text}14.9\n")
        report = facts().report
        assert report is not None
        first = status.status(facts(report=dataclasses.replace(report, measured=measured), rate=1234.0), {}, "2026-01-01T00:00:00Z")
        assert (first["lag"], first["rate"]) == ("12s", "1200")
        much_the_same = facts(report=dataclasses.replace(report, measured=later), rate=1400.0)
        assert status.patch_of(first, status.status(much_the_same, first, "2026-01-01T00:00:00Z")) == {}
        slower = facts(report=dataclasses.replace(report, measured=later), rate=40.0)
        patch = status.patch_of(first, status.status(slower, first, "2026-01-01T00:00:00Z"))
        assert patch == {"rate": "40"}
        assert status.only_measurements(patch)
        assert [duration(seconds) for seconds in (0.2, 119, 121, 7300, 500_000)] == ["0s", "119s", "2m", "2h", "6d"]

    def test_shedding_that_is_only_recommended_is_said_and_is_no_shedding(self) -> None:
        report = facts().report
        assert report is not None
        measured = Measured(2, {0: 0.85, 1: 0.6}, {0: 0.0, 1: 0.0}, {}, {0: 0.25, 1: 0.0})
        written = status.status(facts(report=dataclasses.replace(report, measured=measured)), {}, "2026-01-01T00:00:00Z")
        assert conditions_of(written)["Shedding"] == ("False", "SheddingRecommended")
        message = next(one["message"] for one in written["conditions"] if one["type"] == "Shedding")
        assert message == "1 of 2 workers would be sent less than their tuples, down to 75% of them; spec.shedding.mode only recommends it"

    def test_a_join_that_stands_still_says_where_and_for_whom_without_an_age(self) -> None:
        stalled = {"epoch": 7, "step": "tasks", "seconds": 130.5, "waitsFor": ["worker at place 2"], "stalls": 0, "last": None}
        before = status.status(facts(), {}, "2026-01-01T00:00:00Z")
        written = status.status(facts(report=still(stalled)), before, "2026-01-01T00:05:00Z")
        assert conditions_of(written)["Ready"] == ("False", "EpochStalled")
        assert conditions_of(written)["EpochStalled"] == ("True", "EpochStalled")
        message = next(one["message"] for one in written["conditions"] if one["type"] == "EpochStalled")
        assert message == "epoch 7 stands still in step tasks and waits for worker at place 2; the last commit is of 2026-01-01T00:00:00Z"
        events = transitions(before, written)
        assert ("Warning", Reason.EpochStalled, message) in events
        later = status.status(facts(report=still(stalled | {"seconds": 145.5})), written, "2026-01-01T00:06:00Z")
        assert status.patch_of(written, later) == {}

    def test_a_stream_that_holds_the_watermarks_back_is_named(self) -> None:
        report = facts().report
        assert report is not None
        held = {"by": "partition 3 of payments", "since": 1.8e9}
        silent = facts(report=dataclasses.replace(report, health={**report.health, "watermarkHeld": held}))
        written = status.status(silent, {}, "2026-01-01T00:00:00Z")
        assert conditions_of(written)["WatermarkHeld"] == ("True", "StreamSilent")
        message = next(one["message"] for one in written["conditions"] if one["type"] == "WatermarkHeld")
        assert message.startswith("partition 3 of payments: no record since 2027-01-15T08:00:00Z; what other streams hold for it is kept")
        assert conditions_of(written)["Ready"] == ("True", "JoinRunning"), "the join goes on"

    def test_a_join_that_was_given_up_stays_stalled_until_it_commits(self) -> None:
        said = "epoch 7: stalled in step tasks: nothing of it has moved for 600 s; it waits for worker at place 2"
        given_up = {"epoch": None, "step": None, "seconds": None, "waitsFor": [], "stalls": 1, "last": said}
        written = status.status(facts(report=still(given_up)), {}, "2026-01-01T00:00:00Z")
        message = next(one["message"] for one in written["conditions"] if one["type"] == "EpochStalled")
        assert message == f"it is tried again; the last commit is of 2026-01-01T00:00:00Z; {said}"

    def test_the_last_commit_is_not_written_for_every_epoch(self) -> None:
        before = status.status(facts(report=still(None)), {}, "2026-01-01T00:00:00Z")
        assert before["lastCommit"] == "2026-01-01T00:00:00Z"
        soon = status.status(facts(report=still(None, committed_after=299.0)), before, "2026-01-01T00:05:00Z")
        assert status.patch_of(before, soon) == {}
        later = status.status(facts(report=still(None, committed_after=300.0)), before, "2026-01-01T00:05:00Z")
        patch = status.patch_of(before, later)
        assert patch == {"lastCommit": "2026-01-01T00:05:00Z"}
        assert status.only_measurements(patch)

    @pytest.mark.parametrize(
        ("changes", "phase", "ready", "degraded"),
        [
            ({"suspended": True, "driver_pods": 0, "report": None}, "Suspended", "Suspended", "Suspended"),
            ({"driver_ready": False, "driver_pods": 0, "report": None}, "Pending", "DriverStarting", "Healthy"),
            ({"driver_ready": False, "report": None}, "Starting", "DriverStarting", "Healthy"),
            (
                {"driver_ready": False, "report": None, "trouble": Trouble(Reason.ImageUnavailable, "no such image")},
                *("Failed", "ImageUnavailable", "ImageUnavailable"),
            ),
            ({"report": Report(problem="refused")}, "Starting", "DriverUnreachable", "DriverUnreachable"),
            ({"refused": (Reason.InvalidSpec, "x"), "driver_wanted": False, "driver_ready": False}, "Failed", "InvalidSpec", "InvalidSpec"),
            ({"refused": (Reason.InvalidSpec, "x")}, "Running", "InvalidSpec", "InvalidSpec"),
            ({"plan_refused": "no"}, "Running", "PlanRefused", "PlanRefused"),
            ({"executors_trouble": Trouble(Reason.ExecutorsPending, "no node")}, "Running", "JoinRunning", "ExecutorsPending"),
            (
                {"driver_ready": False, "driver_pods": 0, "report": None, "first": TOO_FULL},
                *("Pending", "DriverStarting", "FirstPlanTooFull"),
            ),
            ({"queries_trouble": Trouble(Reason.QueriesUnready, "no node")}, "Running", "JoinRunning", "QueriesUnready"),
            (
                {"suspended": True, "driver_pods": 0, "report": None, "queries_trouble": Trouble(Reason.QueriesUnready, "no node")},
                *("Suspended", "Suspended", "QueriesUnready"),
            ),
            ({"first": TOO_FULL}, "Running", "JoinRunning", "Healthy"),  # the manifest expects too much, and the plan that runs holds it
            (
                {"report": Report({"state": "running"}, {"generation": 1, "workers": 2, "readyWorkers": 2, "warning": "too full"})},
                *("Running", "JoinRunning", "PlanOverCapacity"),
            ),
            (
                {"report": Report({"state": "running"}, {"generation": 1, "workers": 2, "readyWorkers": 0})},
                *("Starting", "ExecutorsStarting", "Healthy"),
            ),
        ],
    )
    def test_what_is_wrong_is_said(self, changes: Object, phase: str, ready: str, degraded: str) -> None:
        written = status.status(facts(**changes), {}, "2026-01-01T00:00:00Z")
        assert written["phase"] == phase
        assert conditions_of(written)["Ready"][1] == ready
        assert conditions_of(written)["Degraded"][1] == degraded

    def test_what_keeps_workers_from_coming_is_said(self) -> None:
        plan = {"generation": 1, "workers": 2, "phase": "WaitingForWorkers", "readyWorkers": 2, "wanted": {"generation": 2, "workers": 3}}
        for absence, end in ((None, ""), ("killed by SIGSEGV", ": killed by SIGSEGV")):
            written = status.status(facts(report=Report({"state": "running"}, plan | {"absence": absence})), {}, "2026-01-01T00:00:00Z")
            told = next(condition["message"] for condition in written["conditions"] if condition["type"] == "Rescaling")
            assert told == f"plan 2: 2 to 3 workers, WaitingForWorkers{end}"

    def test_workers_are_not_forgotten_because_the_driver_does_not_answer_once(self) -> None:
        before = status.status(facts(), {}, "2026-01-01T00:00:00Z")
        mute = status.status(facts(report=Report(problem="TimeoutError")), before, "2026-01-01T00:00:05Z")
        assert (mute["workers"], mute["desiredWorkers"]) == (2, 2), "kubectl scale and others read them"
        assert conditions_of(mute)["Ready"] == ("False", "DriverUnreachable")
        gone = status.status(facts(driver_ready=False, driver_pods=0, report=None), mute, "2026-01-01T00:00:10Z")
        assert gone["workers"] == 0

    def test_the_same_facts_give_nothing_to_write(self) -> None:
        first = status.status(facts(), {}, "2026-01-01T00:00:00Z")
        second = status.status(facts(), json.loads(json.dumps(first)), "2026-01-02T00:00:00Z")
        assert status.patch_of(first, second) == {}

    def test_that_time_passes_is_nothing_to_write_but_who_measures_tau_is(self) -> None:
        first = status.status(facts(at=10.0), {}, "2026-01-01T00:00:00Z")
        assert status.patch_of(first, status.status(facts(at=5000.0), first, "2026-01-01T00:00:00Z")) == {}
        sample = Sample(taken_at=4990.0, generation=2, tau={0: 0.4, 1: 0.6}, workers=2)
        patch = status.patch_of(first, status.status(facts(at=5000.0, by_prometheus=sample), first, "2026-01-01T00:00:00Z"))
        assert patch == {"utilization": {"max": "0.60", "mean": "0.50", "source": "Prometheus", "at": "1970-01-01T01:23:10Z"}}
        assert status.only_measurements(patch)
        of_before = dataclasses.replace(sample, generation=1)
        assert status.patch_of(first, status.status(facts(at=5000.0, by_prometheus=of_before), first, "2026-01-01T00:00:00Z")) == {}

    def test_a_condition_keeps_the_time_of_its_transition(self) -> None:
        first = status.status(facts(), {}, "2026-01-01T00:00:00Z")
        second = status.status(facts(driver_ready=False, report=None), first, "2026-01-02T00:00:00Z")
        times = {condition["type"]: condition["lastTransitionTime"][:10] for condition in second["conditions"]}
        assert times["Ready"] == "2026-01-02"
        assert times["Degraded"] == "2026-01-01"

    def test_a_patch_removes_what_is_no_longer_said(self) -> None:
        patch = status.patch_of({"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"x": 2}})
        assert patch == {"a": None, "b": {"x": 2, "y": None}}

    def test_measurements_alone_can_wait(self) -> None:
        assert status.only_measurements({"utilization": {}, "shedRatio": {}})
        assert not status.only_measurements({"utilization": {}, "phase": "Running"})
        assert not status.only_measurements({})

    def test_exit_codes_are_explained(self) -> None:
        waiting = {"reason": "CrashLoopBackOff"}
        container = {"state": {"waiting": waiting}, "lastState": {"terminated": {"exitCode": 5}}}
        pod = {"metadata": {"name": "p"}, "status": {"containerStatuses": [container]}}
        trouble = trouble_of([pod], 0.0)
        assert trouble == Trouble(Reason.DriverCrashing, "pod p: exit code 5: the checkpoint was made for another join")

    def test_a_driver_that_fails_is_quoted(self) -> None:
        log = '{"event": "summary"}\nstreamjoin: /state/log/7.json: No space left on device; make room\n'
        terminated = {"exitCode": 6, "message": log}
        container = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": terminated}}
        trouble = trouble_of([{"metadata": {"name": "p"}, "status": {"containerStatuses": [container]}}], 0.0)
        assert trouble is not None
        assert trouble.message.endswith("cannot be used: /state/log/7.json: No space left on device; make room")

    def test_every_transition_that_matters_gives_one_event(self) -> None:
        first = status.status(facts(), {}, "t")
        second = status.status(facts(plan_refused="too many"), first, "t")
        assert transitions(first, second) == [("Warning", Reason.PlanRefused, "too many")]
        assert transitions(second, second) == []


class TestWish:
    plan = {"generation": 4, "workers": 3, "scheme": {"model": "adsp"}, "wanted": None}  # noqa: RUF012 - never changed

    @pytest.mark.parametrize(
        ("workers", "wish"),
        [
            ({"min": 1, "max": 8}, None),
            ({"min": 4, "max": 8}, {"workers": 4, "model": "adsp"}),
            ({"min": 1, "max": 2}, {"workers": 2, "model": "adsp"}),
            ({"min": 1, "max": 8, "floor": 5}, {"workers": 5, "model": "adsp"}),
        ],
    )
    def test_limits_are_kept(self, workers: Object, wish: Object | None) -> None:
        assert wish_of(manifest_of(streamjoin(workers={**workers, "capacityTuples": 1000})), self.plan) == (wish, 4)

    def test_a_plan_on_its_way_counts_as_the_newest(self) -> None:
        plan = {**self.plan, "wanted": {"generation": 5, "workers": 9, "scheme": {"model": "adsp"}}}
        assert wish_of(manifest_of(streamjoin()), plan) == ({"workers": 8, "model": "adsp"}, 5)


class TestMeasured:
    TEXT = (
        'streamjoin_plan_generation{name="a"} 3.0\n'
        'streamjoin_worker_utilization_ratio{name="a",task="0"} 0.25\n'
        'streamjoin_worker_utilization_ratio{name="a",task="1"} NaN\n'
    )

    def test_metrics_are_read(self) -> None:
        measured = measure(self.TEXT)
        assert measured is not None
        assert (measured.generation, measured.utilization[0]) == (3, 0.25)

    def test_what_is_not_finite_not_complete_or_of_another_plan_is_not_trusted(self) -> None:
        measured = measure(self.TEXT)
        assert "not a number" in (distrust(measured, {"generation": 3, "workers": 2}) or "")
        assert "2 of 3" in (distrust(measured, {"generation": 3, "workers": 3}) or "")
        assert "of plan 3" in (distrust(measured, {"generation": 4, "workers": 2}) or "")
        assert distrust(measure(""), {"generation": 4, "workers": 2}) is not None
        assert distrust(measure(self.TEXT.replace("NaN", "0.5")), {"generation": 3, "workers": 2}) is None


class TestSettings:
    def test_flags_go_before_the_environment(self) -> None:
        found = settings.read({"STREAMJOIN_PORT": "1", "STREAMJOIN_WATCH_NAMESPACES": "a, b"}, {"port": "2"})
        assert (found.port, found.watch_namespaces) == (2, ("a", "b"))
        found = settings.read({"STREAMJOIN_POD_MONITOR_LABELS": "release=prometheus,example.com/team=a"})
        assert found.monitor_labels == {"release": "prometheus", "example.com/team": "a"}

    @pytest.mark.parametrize(
        "pair",
        [
            *(("PORT", "x"), ("PORT", "0"), ("NETWORK_POLICY", "yes"), ("POD_MONITOR", "on"), ("LOG_LEVEL", "all")),
            ("POD_MONITOR_LABELS", "release: prometheus"),
        ],
    )
    def test_a_bad_value_is_refused_by_name(self, pair: tuple[str, str]) -> None:
        with pytest.raises(settings.SettingError, match=f"STREAMJOIN_{pair[0]}: '{pair[1]}' must be"):
            settings.read({f"STREAMJOIN_{pair[0]}": pair[1]})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestQueue:
    def run(self, story: Any) -> None:
        asyncio.run(story())

    def test_what_is_put_while_it_is_worked_on_is_done_again(self) -> None:
        async def story() -> None:
            gate, calls = asyncio.Event(), 0

            async def reconcile(key: Key) -> None:
                nonlocal calls
                calls += 1
                if calls == 1:
                    await gate.wait()

            queue = Queue(reconcile)
            task = asyncio.create_task(queue.run(4))
            for _ in range(5):
                queue.put(("n", "a"))
            await wait_in_loop("it is begun", lambda: calls == 1)
            queue.put(("n", "a"))
            queue.put(("n", "a"))
            assert calls == 1, "one worker at a time"
            gate.set()
            await wait_in_loop("it is done again", lambda: calls == 2 and queue.is_idle)
            task.cancel()

        self.run(story)

    def test_failures_are_tried_again_with_growing_pauses_and_others_go_on(self) -> None:
        async def story() -> None:
            clock, calls, done = Clock(), [], []

            async def reconcile(key: Key) -> None:
                calls.append(key[1])
                if key[1] == "bad":
                    raise ApiError(500, "Internal", "no")
                done.append(key)

            queue = Queue(reconcile, clock=clock)
            task = asyncio.create_task(queue.run(1))
            queue.put(("n", "bad"))
            queue.put(("n", "good"))
            await wait_in_loop("the other one is done", lambda: done)
            pauses = [queue._pause(("n", "bad"), ApiError(500, "", "")) for _ in range(9)]
            assert pauses == sorted(pauses)
            assert pauses[-1] == 60.0
            task.cancel()

        self.run(story)

    def test_it_ends_when_it_is_cancelled_while_something_arrives(self) -> None:
        async def story() -> None:
            async def reconcile(key: Key) -> None: ...

            for ticks in range(8):
                queue = Queue(reconcile)
                task = asyncio.create_task(queue.run(5))
                await wait_in_loop("all wait", lambda queue=queue: queue.heartbeat)
                queue.put(("n", "a"))
                for _ in range(ticks):
                    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
                task.cancel()
                done, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
                assert done, ticks

        self.run(story)

    def test_the_api_servers_pause_is_kept(self) -> None:
        async def story() -> None:
            async def reconcile(key: Key) -> None: ...

            queue = Queue(reconcile)
            assert queue._pause(("n", "a"), ApiError(429, "TooMany", "", retry_after=7.0)) == 7.0
            assert queue._pause(("n", "b"), ApiError(409, "Conflict", "")) == 0.1

        self.run(story)

    def test_liveness_fails_when_the_loop_or_the_queue_is_stuck(self) -> None:
        async def story() -> None:
            clock = Clock()

            async def reconcile(key: Key) -> None: ...

            queue = Queue(reconcile, clock=clock)
            queue.heartbeat = clock.now
            health = Health(queue)
            assert health.stuck() is None
            clock.now += BEAT_SECONDS + 1
            assert "loop" in (health.stuck() or "")
            queue.heartbeat = clock.now
            queue.put(("n", "a"))
            clock.now += AGE_SECONDS + 1
            queue.heartbeat = clock.now
            assert "due" in (health.stuck() or "")

        self.run(story)


class TestPlugin:
    def test_the_tables(self) -> None:
        body = streamjoin()
        body["status"] = status.status(
            facts(change={"generation": 3, "class": "Live", "message": "spec.workers.max: a plan"}), {}, "2026-01-01T00:00:00Z"
        )
        body["status"]["shedRatio"] = {"orders": "0.05"}
        line = plugin.overview([body]).splitlines()[1].split()
        assert line == ["one", "Running", "True", "2", "2", "0.60", "driver", "orders", "5.0%", "adsp"]
        event = {"lastTimestamp": "2026-01-01T00:00:00Z", "type": "Normal", "reason": "JoinRunning", "message": "hello"}
        text = plugin.explained(body, [event], datetime(2026, 1, 1, 2, tzinfo=UTC))
        assert "last change (generation 3): Live: spec.workers.max: a plan" in text
        assert text.splitlines()[-1].split() == ["2h", "Normal", "JoinRunning", "hello"]
        assert plugin.planned(body).splitlines()[0].split() == ["generation", "2"]
        assert "no plan yet" in plugin.planned(streamjoin())
        begins = {**streamjoin(), "status": {"phase": "Starting", "firstPlan": {"message": "first plan: 3 workers"}}}
        assert plugin.planned(begins) == "one: no plan yet (Starting); first plan: 3 workers"
        ready = {"queries": {"replicas": 2, "ready": 1, "url": "http://sj-one-queries.default.svc:8080/v1/query"}}
        served = plugin.described({**body, "status": body["status"] | ready}, datetime(2026, 1, 1, 2, tzinfo=UTC))
        assert "1 of 2 servers are ready: http://sj-one-queries.default.svc:8080/v1/query" in served
        assert "observed" not in plugin.described(body, datetime(2026, 1, 1, 2, tzinfo=UTC))
