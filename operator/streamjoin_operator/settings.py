"""What the operator is told when it starts: each setting an environment variable ``STREAMJOIN_<NAME>`` and a flag ``--<name>``.

The table of ``docs/operator.md`` is made from here: ``python -m streamjoin_operator.settings`` prints it.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from streamjoin.manifest.field_types import LABEL_NAME, LABEL_VALUE
from streamjoin.manifest.prometheus import PRINTABLE, header_problem, parameter_problem

PREFIX = "STREAMJOIN_"
LABEL = re.compile(f"({LABEL_NAME})=({LABEL_VALUE})")
_KEY = r"[A-Za-z0-9][A-Za-z0-9./_-]*"
_REQUIREMENT = rf"(!?{_KEY}|{_KEY}\s*(=|==|!=)\s*[A-Za-z0-9._-]*|{_KEY}\s+(in|notin)\s*\([A-Za-z0-9._,\s-]*\))"
"""One of a label selector."""


LINES: dict[str, Callable[[str], str | None]] = {
    "prometheus_headers": header_problem,
    "prometheus_query_parameters": parameter_problem,
}
"""Settings of names and their values, one a line, and what is wrong with a name."""
CHOICES = {
    "pod_monitor": ("auto", "off"),
    "ip_family_policy": ("SingleStack", "PreferDualStack", "RequireDualStack"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("json", "text"),
}
PAIRS = (("prometheus_username_file", "prometheus_password_file"), ("prometheus_cert_file", "prometheus_key_file"))
"""Neither is of use without the other."""


class SettingError(ValueError):
    """A setting that cannot be used; the text names it, its value and the remedy."""


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Settings:
    """See the module."""

    watch_namespaces: tuple[str, ...] = _setting((), "Namespaces to watch, separated by commas; none: all, cluster-wide.")
    watch_namespace_selector: str = _setting(
        "", "A label selector, such as team=a,tier in (gold, silver): the operator watches the namespaces it selects, not named ones."
    )
    engine_image: str = _setting("streamjoin-engine:0.1.0", "Image of drivers and executors, if spec.image gives none.")
    tables_image: str = _setting(
        "streamjoin-engine-tables:0.1.0", "The same for joins with a Delta or Iceberg table, which need packages that engine_image lacks."
    )
    spark_image: str = _setting(
        "streamjoin-engine-spark:0.1.0",
        "The same for joins with spark as source or sink, which need all of Spark: tables_image has but its core.",
    )
    image_pull_policy: str = _setting("IfNotPresent", "The pull policy of all pods' images.")
    image_pull_secrets: tuple[str, ...] = _setting((), "Names of Secrets in each StreamJoin's namespace, separated by commas.")
    assigned_users: bool = _setting(
        False,
        "Whether the cluster chooses the user of each pod, as OpenShift does: pods of joins then name none. false: they run as 10001.",
    )
    port: int = _setting(8080, "The port of /metrics, /healthz and /readyz.")
    page_port: int = _setting(
        0, "The port of the page of all StreamJoins, open to the pod alone: kubectl port-forward reaches it. 0: no page."
    )
    page_token_file: str = _setting(
        "", "A file with the token that lets users of that page suspend and resume StreamJoins. None: the page only shows them."
    )
    admission_port: int = _setting(
        0, "The port of the webhook that checks StreamJoins when they are applied, with the certificate in /etc/admission. 0: none."
    )
    admission_certificate: str = _setting(
        "",
        "The name of the webhook's Service, and of the Secret in which the operator keeps a certificate for it, in lease_namespace. With"
        " that namespace behind it, it is the ValidatingWebhookConfiguration's name. Without one somebody else makes the certificate.",
    )
    workers: int = _setting(8, "How many StreamJoins are reconciled at a time, not counting those that wait for a slow answer.")
    poll_seconds: float = _setting(15.0, "How often a running driver is asked for its state.")
    resync_seconds: float = _setting(300.0, "How often all children are compared with what they should be, even if nothing changes.")
    start_seconds: float = _setting(5.0, "How often a driver that is not ready yet is looked at.")
    status_seconds: float = _setting(15.0, "The least time between two writes of the status for changed measurements alone.")
    cleanup_seconds: float = _setting(600.0, "How long a deletion may wait for checkpoint.onDelete: Delete. After that, the state is left.")
    pod_monitor: str = _setting("auto", "auto: make PodMonitors, if the cluster knows that kind; off: make none.")
    pod_monitor_labels: tuple[str, ...] = _setting(
        (), "Labels of joins' PodMonitors, such as release=prometheus, separated by commas. Labels of spec.metrics.podMonitor win."
    )
    read_nodes: bool = _setting(
        False, "Whether to read executors' nodes, so that workers on cordoned ones end first. It takes the right to get nodes."
    )
    network_policy: bool = _setting(True, "Whether to make NetworkPolicies for each StreamJoin.")
    ip_family_policy: str = _setting(
        "", "SingleStack, PreferDualStack or RequireDualStack: the ipFamilyPolicy of joins' Services. None: the cluster's default."
    )
    ip_families: tuple[str, ...] = _setting(
        (), "The ipFamilies of joins' Services, the first one first, separated by commas: IPv4, IPv6. None: the cluster's default."
    )
    http_proxy: str = _setting("", "The proxy for http:// outside of the cluster: HTTP_PROXY in joins' pods. None: none.")
    https_proxy: str = _setting("", "The same for https://, such as that of a bucket.")
    no_proxy: tuple[str, ...] = _setting(
        (), "Hosts, .domains and addresses that they ask without a proxy, besides those inside of the cluster, separated by commas."
    )
    driver_url: str = _setting(
        "http://{service}.{namespace}.svc:8080", "The URL of a driver's API, with {service}, {namespace} and {name}."
    )
    prometheus_url: str = _setting(
        "", "The Prometheus by whose samples joins are scaled, if a resource names no other. None: drivers' own metrics are read."
    )
    prometheus_allowed_urls: tuple[str, ...] = _setting(
        (), "Other addresses that spec.scaling.prometheus.url may name, with everything below them, separated by commas."
    )
    prometheus_token_file: str = _setting("", "A file with the bearer token for Prometheus, read at every question, as are the others.")
    prometheus_username_file: str = _setting("", "A file with the user for Prometheus (basic authentication), if there is no token.")
    prometheus_password_file: str = _setting("", "A file with that user's password.")
    prometheus_cert_file: str = _setting("", "A file with the client certificate that Prometheus is shown (PEM).")
    prometheus_key_file: str = _setting("", "A file with its key.")
    prometheus_headers: tuple[str, ...] = _setting(
        (), "Headers that Prometheus is sent, such as X-Scope-OrgID=team-a, one a line; those of a question are not among them."
    )
    prometheus_headers_directory: str = _setting("", "A directory with more of them: each file has the name of a header, and its value.")
    prometheus_query_parameters: tuple[str, ...] = _setting(
        (), "Parameters that are added to each query of Prometheus, such as dedup=true, one a line."
    )
    prometheus_ca_file: str = _setting(
        "", "A file with the certificates (PEM) of authorities to trust for Prometheus. None: the image's own."
    )
    prometheus_insecure: bool = _setting(False, "Whether to trust any certificate of Prometheus.")
    prometheus_timeout_seconds: float = _setting(5.0, "How long an answer of Prometheus may take.")
    prometheus_namespace_label: str = _setting("namespace", "The label of Prometheus' series that names a driver's namespace.")
    prometheus_pod_label: str = _setting(
        "pod", "The label that names a driver's pod, by which series are chosen as well. none: they are not chosen by pods."
    )
    price_per_executor_hour: float = _setting(0.0, "The price of an executor for an hour, in any currency. 0: only hours are counted.")
    operator_class: str = _setting(
        "", "The operator looks after StreamJoins with this spec.operatorClass alone. None: after those without a class."
    )
    lease_name: str = _setting(
        "", "The Lease (coordination.k8s.io) that makes one of several operators active. None: this one is always active."
    )
    lease_namespace: str = _setting("default", "The namespace of that Lease.")
    log_level: str = _setting("info", "debug, info, warning or error.")
    log_format: str = _setting("json", "json or text: how each line of the log, on standard output, is written.")

    @property
    def monitor_labels(self) -> dict[str, str]:
        """``pod_monitor_labels`` by their names."""
        return dict(label.split("=", 1) for label in self.pod_monitor_labels)

    def url_of(self, namespace: str, name: str, service: str) -> str:
        return self.driver_url.format(namespace=namespace, name=name, service=service)


def read(environment: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None) -> Settings:
    """The settings of flags, environment and defaults, in that order. Raises SettingError."""
    environment = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    for setting in fields(Settings):
        text = (flags or {}).get(setting.name) or environment.get(PREFIX + setting.name.upper())
        if text:
            given[setting.name] = _parsed(setting, text)
    if given.get("watch_namespaces") and given.get("watch_namespace_selector"):
        raise SettingError(f"{PREFIX}WATCH_NAMESPACE_SELECTOR: {PREFIX}WATCH_NAMESPACES is given too; remove one of them")
    for pair in PAIRS:
        there, missing = ([PREFIX + name.upper() for name in pair if bool(given.get(name)) is is_there] for is_there in (True, False))
        if there and missing:
            raise SettingError(f"{there[0]}: {missing[0]} is not given; give both, or neither")
    return Settings(**given)


def _parsed(setting: dataclasses.Field[Any], text: str) -> Any:  # noqa: C901
    default, name = setting.default, PREFIX + setting.name.upper()
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise SettingError(f"{name}: {text!r} must be true or false")
        return text.lower() == "true"
    if isinstance(default, tuple):
        parts = tuple(part.strip() for part in text.split("\n" if setting.name in LINES else ",") if part.strip())
        for part in parts if setting.name in LINES else ():
            _check_pair(name, part, LINES[setting.name])
        if setting.name == "pod_monitor_labels" and not all(LABEL.fullmatch(part) for part in parts):
            raise SettingError(f"{name}: {text!r} must be labels and their values, as release=prometheus,team=a")
        if setting.name == "ip_families" and (not set(parts) <= {"IPv4", "IPv6"} or len(set(parts)) < len(parts)):
            raise SettingError(f"{name}: {text!r} must be IPv4, IPv6 or both, the first one first")
        for part in parts if setting.name == "prometheus_allowed_urls" else ():
            _check_address(name, part)
        return parts
    if isinstance(default, int | float):
        try:
            value = type(default)(text)
        except ValueError:
            raise SettingError(f"{name}: {text!r} must be a {'whole ' * isinstance(default, int)}number") from None
        least_is_zero = setting.name in ("price_per_executor_hour", "page_port", "admission_port")
        if not math.isfinite(value) or value < 0 or (value == 0 and not least_is_zero):
            raise SettingError(f"{name}: {text!r} must be {'at least' if least_is_zero else 'above'} 0")
        return value
    if setting.name == "prometheus_url":
        _check_address(name, text)
    if setting.name in ("prometheus_namespace_label", "prometheus_pod_label") and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise SettingError(f"{name}: {text!r} must be the name of a label")
    if setting.name == "watch_namespace_selector" and not re.fullmatch(rf"\s*{_REQUIREMENT}(\s*,\s*{_REQUIREMENT})*\s*", text):
        raise SettingError(f"{name}: {text!r} must be a label selector, as team=a,tier in (gold, silver)")
    choices = CHOICES.get(setting.name)
    if choices and text not in choices:
        raise SettingError(f"{name}: {text!r} must be one of {', '.join(choices)}")
    return text


def _check_pair(name: str, part: str, problem_of: Callable[[str], str | None]) -> None:
    pair, equals, value = part.partition("=")
    if not equals:
        raise SettingError(f"{name}: {pair[:20]!r} must be a name and its value, as name=value, one a line")
    if problem := problem_of(pair):
        raise SettingError(f"{name}: has {pair!r}, {problem}")
    if not PRINTABLE.fullmatch(value):
        raise SettingError(f"{name}: the value of {pair} must be printable ASCII")


def _check_address(name: str, text: str) -> None:
    try:
        is_address = re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", text) is not None and urlsplit(text).port != 0
    except ValueError:  # a port beyond 65535
        is_address = False
    if not is_address:
        raise SettingError(f"{name}: {text!r} must be an address as http://prometheus.monitoring:9090, without a user or a question")


def table() -> str:
    """As Markdown."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for setting in fields(Settings):
        shown = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        shown = str(shown).lower() if isinstance(shown, bool) else shown
        lines.append(f"| `{PREFIX}{setting.name.upper()}` | {f'`{shown}`' if shown != '' else ''} | {setting.metadata['help']} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(table(), end="")
