"""What NetworkPolicies let through: pods as network namespaces, packet filters made of the objects, and real connections.

Each pod has an address on one bridge, listens on every port that is asked about, and has rules of iptables in its own namespace, as a
network plugin would make them. All of that is in namespaces of a program of its own, which this module is too (``python
policy_network.py``): nothing of the machine is touched, nothing is to be cleaned up, and it needs no root where users may make namespaces.

Always holds: a connection passes or is refused at once, since what is forbidden is rejected; one that does neither is an error. What of a
policy is not understood is an error too.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from skips import lacks
from waiting import PATIENCE_SECONDS

Object = dict[str, Any]
Connection = tuple[str, str, str]
"""From a pod to a pod, at a port: ``tcp/8080``."""
NEW_NETWORK = 0x40000000
LIMITED = Path("/proc/sys/net/ipv4/icmp_ratemask")
"""Which messages the kernel sends only so often, a namespace's own: by these a caller hears that its datagram was rejected."""
PROGRAMS = ("unshare", "ip", "iptables-restore")
REMEDY = "apt-get install iptables iproute2 util-linux"


@dataclass(frozen=True)
class Pod:
    """Something with an address."""

    name: str
    namespace: str
    """Empty: outside of the cluster."""
    address: str
    labels: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    """By name."""


@cache
def unusable() -> str | None:
    """Why there is no such network here, as the reason of a skip; None: there is."""
    for name in PROGRAMS:
        if shutil.which(name, path=_PATH) is None:
            return lacks(name, REMEDY)
    probe = f"mount -t tmpfs none /run && ip link add probe type bridge && iptables-restore < /dev/null && echo 0 > {LIMITED}"
    done = subprocess.run([*_alone(), "sh", "-c", probe], env=_environment(), capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    return None if done.returncode == 0 else "this machine makes no network namespaces"


def passing(
    pods: Sequence[Pod], namespaces: dict[str, dict[str, str]], ports: Sequence[str], policies: Sequence[Sequence[Object]]
) -> list[set[Connection]]:
    """For each set of policies the connections that pass, of each pod to each other one at each port. ``namespaces``: their labels."""
    asked = {"pods": [asdict(pod) for pod in pods], "namespaces": namespaces, "ports": list(ports), "policies": policies}
    command = [*_alone(), sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(
        command, input=json.dumps(asked), env=_environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return [{(source, target, port) for source, target, port in found} for found in json.loads(done.stdout)]


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _alone() -> list[str]:
    return ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _PATH}


def rules(pod: Pod, pods: Sequence[Pod], namespaces: dict[str, dict[str, str]], policies: Sequence[Object]) -> str:
    """The packet filter of a pod, as iptables-restore reads it."""
    # What a pod's own filter rejects is told it by the loopback interface.
    lines = ["*filter", ":INPUT ACCEPT", ":OUTPUT ACCEPT", "-A INPUT -i lo -j ACCEPT"]
    for direction, chain, way, peers in (("Ingress", "INPUT", "-s", "from"), ("Egress", "OUTPUT", "-d", "to")):
        selecting = [policy for policy in policies if _selects(policy, pod) and direction in _types(policy["spec"])]
        if not selecting:
            continue
        lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
        for policy in selecting:
            for rule in policy["spec"].get(direction.lower()) or []:
                known = set(rule) - {peers, "ports"}
                assert not known, f"not understood: {known}"
                addresses = _addresses(rule.get(peers), policy["metadata"]["namespace"], pods, namespaces)
                matches = [_port(port, pod) for port in rule["ports"]] if rule.get("ports") else [""]
                lines += [f"-A {chain} {way} {address} {match} -j ACCEPT" for address in addresses for match in matches]
        lines += [f"-A {chain} -p tcp -j REJECT --reject-with tcp-reset", f"-A {chain} -p udp -j REJECT"]
    return "\n".join([*lines, "COMMIT", ""])


def _types(spec: Object) -> list[str]:
    return list(spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])])


def _selects(policy: Object, pod: Pod) -> bool:
    return policy["metadata"]["namespace"] == pod.namespace and _matches(policy["spec"]["podSelector"], pod.labels)


def _matches(selector: Object, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}, selector
    for one in selector.get("matchExpressions") or []:
        assert one["operator"] == "In", f"not understood: {one}"
        if labels.get(one["key"]) not in one["values"]:
            return False
    return (selector.get("matchLabels") or {}).items() <= labels.items()


def _addresses(peers: list[Object] | None, own: str, pods: Sequence[Pod], namespaces: dict[str, dict[str, str]]) -> list[str]:
    if not peers:
        return ["0.0.0.0/0"]
    found = []
    for peer in peers:
        assert set(peer) <= {"podSelector", "namespaceSelector"} or set(peer) == {"ipBlock"}, peer
        if "ipBlock" in peer:
            assert set(peer["ipBlock"]) == {"cidr"}, peer
            found.append(peer["ipBlock"]["cidr"])
            continue
        for pod in pods:
            selector = peer.get("namespaceSelector")
            is_there = pod.namespace == own if selector is None else pod.namespace and _matches(selector, namespaces[pod.namespace])
            if is_there and _matches(peer.get("podSelector") or {}, pod.labels):
                found.append(pod.address)
    return found


def _port(port: Object, pod: Pod) -> str:
    """A named one is the pod's own: those of peers are not understood."""
    assert set(port) <= {"protocol", "port", "endPort"}, port
    number = pod.ports[port["port"]] if isinstance(port["port"], str) else port["port"]
    return f"-p {port.get('protocol', 'TCP').lower()} --dport {number}:{port.get('endPort', number)}"


class _Network:
    """The pods of this process' namespaces, and their listening sockets."""

    def __init__(self, pods: Sequence[Pod], ports: Sequence[str]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._places: dict[str, int] = {}
        _run("mount", "-t", "tmpfs", "none", "/run")
        Path("/run/netns").mkdir()
        _run("ip", "link", "add", "cable", "type", "bridge")
        _run("ip", "link", "set", "cable", "up")
        for number, pod in enumerate(pods):
            name = f"pod{number}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", f"to{number}", "master", "cable", "up")
            _run("ip", "-n", name, "address", "add", f"{pod.address}/16", "dev", "eth0")
            for link in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", link, "up")
            self._places[pod.name] = os.open(f"/run/netns/{name}", os.O_RDONLY)
            with self.inside(pod):
                LIMITED.write_text("0")
        self._listening = {(pod.name, port): self._listen(pod, port) for pod in pods for port in ports}

    @contextmanager
    def inside(self, pod: Pod) -> Iterator[None]:
        """This thread is in the pod's namespace, and what it starts."""
        self._enter(self._places[pod.name])
        try:
            yield
        finally:
            self._enter(self._home)

    def _enter(self, place: int) -> None:
        if self._libc.setns(place, NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    def _listen(self, pod: Pod, port: str) -> socket.socket:
        protocol, number = port.split("/")
        with self.inside(pod):
            made = socket.socket(type=socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM)
        made.bind((pod.address, int(number)))
        if protocol == "tcp":
            made.listen()
        return made

    def reaches(self, source: Pod, target: Pod, port: str) -> bool:
        protocol, number = port.split("/")
        listening = self._listening[target.name, port]
        with self.inside(source):
            caller = socket.socket(type=socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM)
        with caller:
            caller.settimeout(PATIENCE_SECONDS)
            try:
                caller.connect((target.address, int(number)))
                if protocol == "udp":
                    caller.send(b"question")
            except (ConnectionRefusedError, PermissionError):
                return False
            ready, _, _ = select.select([listening, caller], [], [], PATIENCE_SECONDS)
            assert ready, f"{source.name} to {target.name} at {port}: neither passes nor is refused"
            if listening not in ready:
                with suppress(ConnectionRefusedError):
                    caller.recv(1)
                return False
            if protocol == "udp":
                assert listening.recv(64) == b"question"
            else:
                listening.accept()[0].close()
            return True


def _run(*command: str, stdin: str | None = None) -> None:
    subprocess.run(command, input=stdin, check=True, text=True)


def main() -> None:
    asked = json.load(sys.stdin)
    pods, namespaces, ports = [Pod(**pod) for pod in asked["pods"]], asked["namespaces"], asked["ports"]
    network = _Network(pods, ports)
    found = []
    for policies in asked["policies"]:
        for pod in pods:
            with network.inside(pod):
                _run("iptables-restore", stdin=rules(pod, pods, namespaces, policies))
        pairs = [(source, target) for source in pods for target in pods if source is not target]
        found.append([(one.name, other.name, port) for one, other in pairs for port in ports if network.reaches(one, other, port)])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
