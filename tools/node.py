"""A Kubernetes node made of its real parts, on a bare Debian or Ubuntu machine: root, but no Docker, no registry, no systemd.

Daemons come from Debian's packages (containerd, runc, CNI plugins) and Go modules (tools/kubernetes_programs.py). The node is a network
namespace with a veth pair to the machine, and a mount namespace: addresses, packet filters, mounts and sysctls of the cluster never touch
the machine, and no packet of it leaves. Pods and services can be reached from the machine by their own addresses.

Always holds: all that runs is a child of processes in ``run/*.pid`` or a containerd shim of this node's socket, and ``down`` ends both; a
pid file names a process together with when it started, so that no other is ever ended for it. Every ``up`` starts from an empty cluster;
images alone outlive ``down``.

Known limits: one such node on a machine; NetworkPolicies are stored and not enforced (the CNI plugin is ptp).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import kubernetes_programs

NAME = "streamjoin"
MACHINE_IP, NODE_IP = "198.18.0.1", "198.18.0.2"
"""Of the range for benchmarks (RFC 2544), which nobody routes."""
PODS, SERVICES, API_IP = "198.18.1.0/24", "198.19.0.0/16", "198.19.0.1"
PAUSE = "localhost/pause:1"
VOLUMES, SMALL_VOLUMES = 48, 4
"""Local volumes that claims may bind: as many as claims are made while a cluster is up."""
LOCAL, SMALL = "local", "small"
"""Their classes; the first is the default."""
SMALL_MIB = 64
START_SECONDS = 300
STOP_SECONDS = 20

PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
"""By what is looked for, the package that it comes in."""
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns", "kubectl", "helm")
USERS = {
    "admin": "/O=system:masters/CN=admin",
    "kubelet": f"/O=system:nodes/CN=system:node:{NAME}",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
}

CONTAINERD = """\
version = 2
root = "{root}/containerd"
state = "{run}/containerd"
[grpc]
  address = "{run}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE, runc dies of a negative oom_score_adj.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{run}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""

# In the node's mount namespace, / is shared for kubelet's volumes; three sysctls that kubelet would set for the whole machine are files
# that say already what it wants; and directories that CNI and kubelet insist on are the node's own.
ENTER = """\
#!/bin/sh
set -e
mount --make-rshared /
for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
    file="{run}/$(echo "${{setting%=*}}" | tr / .)"
    echo "${{setting#*=}}" > "$file"
    mount --bind "$file" "/proc/sys/${{setting%=*}}"
done
for directory in /run/netns /var/log/containers; do
    mkdir -p "$directory" "{run}/$(basename "$directory")"
    mount --bind "{run}/$(basename "$directory")" "$directory"
done
for volume in {small}; do
    mount -t tmpfs -o size={small_mib}m,mode=0755 tmpfs "$volume"
done
exec containerd -c "{run}/containerd.toml"
"""

COREFILE = """\
.:53 {{
    bind {ip}
    errors
    cache 5
    kubernetes cluster.local {{
        kubeconfig {kubeconfig}
    }}
}}
"""


class NodeError(Exception):
    """Why there is no node, and what to do about it."""


class Node:
    """The node whose files are in ``root``."""

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, root / "run"
        self.kubeconfig = root / "kubeconfig"
        self._socket = self.run / "containerd.sock"

    def kubectl(self, *arguments: str) -> list[str]:
        """The command that asks this cluster. Raises kubernetes_programs.MissingError."""
        return kubectl(self.kubeconfig, *arguments)

    def is_up(self) -> bool:
        """Whether all daemons run and the API server says that it is ready."""
        daemons = ("containerd", "etcd", "apiserver", "controller-manager", "scheduler", "kubelet", "proxy", "coredns")
        return all(self._pid(name) for name in daemons) and is_answering(self.kubeconfig)

    def up(self, say: Callable[[str], None]) -> None:
        """Starts the node; returns at once when it runs. Raises NodeError."""
        if self.is_up():
            return
        self.down()
        programs = {name: str(kubernetes_programs.obtain(name)) for name in PROGRAMS}
        say("starting etcd, Kubernetes and containerd")
        self._write_configuration()
        self._make_certificates()
        self._make_network()
        net = ("nsenter", f"--net=/run/netns/{NAME}")
        self._start("containerd", *net, "unshare", "--mount", "--propagation", "private", "sh", str(self.run / "enter.sh"))
        self._await("containerd", lambda: succeeds(*self._ctr("version")))
        if PAUSE not in self.images():
            self.load(PAUSE, PAUSE)
        self._start("etcd", *net, programs["etcd"], *_flags(self._etcd()))
        self._start("apiserver", *net, programs["kube-apiserver"], *_flags(self._api_server()))
        self._await("apiserver", lambda: is_answering(self.kubeconfig))
        manager = {
            "kubeconfig": self.run / "controller-manager.conf",
            "service-account-private-key-file": self.run / "accounts.key",
            "root-ca-file": self.run / "ca.crt",
            "cluster-signing-cert-file": self.run / "ca.crt",
            "cluster-signing-key-file": self.run / "ca.key",
            "use-service-account-credentials": "true",
            "leader-elect": "false",
            "secure-port": 0,
        }
        self._start("controller-manager", *net, programs["kube-controller-manager"], *_flags(manager))
        scheduler = {"kubeconfig": self.run / "scheduler.conf", "leader-elect": "false", "secure-port": 0}
        self._start("scheduler", *net, programs["kube-scheduler"], *_flags(scheduler))
        kubelet = {
            "config": self.run / "kubelet.json",
            "kubeconfig": self.run / "kubelet.conf",
            "root-dir": self.root / "kubelet",
            "node-ip": NODE_IP,
            "hostname-override": NAME,
        }
        inside = ("nsenter", f"--target={self._pid('containerd')}", "--mount", "--net", f"--wd={self.run}")
        self._start("kubelet", *inside, programs["kubelet"], *_flags(kubelet))
        self._start("proxy", *net, programs["kube-proxy"], *_flags({"config": self.run / "proxy.json"}))
        self._start("coredns", *net, programs["coredns"], "-conf", str(self.run / "Corefile"))
        ready = ("wait", "--for=condition=Ready", f"node/{NAME}", "--timeout=1s")
        self._await("kubelet", lambda: kubectl_succeeds(self.kubeconfig, *ready))
        self._await("controller-manager", lambda: kubectl_succeeds(self.kubeconfig, "get", "serviceaccount", "default"))
        _run(*self.kubectl("apply", "-f", "-"), stdin=json.dumps(self._storage()).encode())

    def down(self) -> None:
        """Ends all that runs, and removes all but the images. Returns when nothing is left; nothing need be running."""
        for name in ("kubelet", "controller-manager", "scheduler", "proxy", "coredns"):
            self._stop(name)
        if self._pid("containerd") and succeeds(*self._ctr("version")):
            for task in _output(*self._ctr("task", "ls", "-q")).split():
                succeeds(*self._ctr("task", "delete", "--force", task))
            for container in _output(*self._ctr("container", "ls", "-q")).split():
                succeeds(*self._ctr("container", "delete", container))
        for name in ("containerd", "apiserver", "etcd"):
            self._stop(name)
        for pid in self._shims():
            _end(pid, signal.SIGKILL)
        if Path("/run/netns", NAME).exists():
            _run("ip", "netns", "delete", NAME)
        if Path("/sys/class/net", f"{NAME}-h").exists():
            succeeds("ip", "link", "delete", f"{NAME}-h")
        for hierarchy in Path("/sys/fs/cgroup").glob("**/kubepods"):
            for directory, _, _ in os.walk(hierarchy, topdown=False):
                with contextlib.suppress(OSError):  # one with processes is somebody else's
                    Path(directory).rmdir()
        for name in ("etcd", "kubelet", "volumes", "run"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path("/var/log/containers").rmdir()
        self.kubeconfig.unlink(missing_ok=True)

    def images(self) -> dict[str, str]:
        """By name, the images that the node has; the value is the identity that ``load`` was given, or nothing."""
        listed = _output(*self._ctr("image", "ls")).splitlines()[1:]
        found = {}
        for line in listed:
            name, *others = line.split()
            labels = dict(label.split("=", 1) for label in others[-1].split(",") if "=" in label)
            found[name] = labels.get("streamjoin.dev/id", "")
        return found

    def load(self, name: str, reference: str) -> None:
        """Gives the node an image that buildah has as ``name``, under the name ``reference``; nothing happens if it has that one."""
        identity = _output("buildah", "images", "--no-trunc", "--quiet", name).strip().removeprefix("sha256:")
        if self.images().get(reference) == identity:
            return
        push = ["buildah", "push", "--quiet", name, f"docker-archive:/dev/stdout:{reference}"]
        with subprocess.Popen(push, stdout=subprocess.PIPE) as pushing:
            imported = subprocess.run(self._ctr("image", "import", "-"), stdin=pushing.stdout, capture_output=True, text=True, check=False)
        if pushing.returncode or imported.returncode:
            raise NodeError(f"{name} cannot be loaded into the node: {imported.stderr.strip()[-500:]}")
        _run(*self._ctr("image", "label", reference, f"streamjoin.dev/id={identity}"))

    def _ctr(self, *arguments: str) -> list[str]:
        return ["ctr", f"--address={self._socket}", "--namespace=k8s.io", *arguments]

    def _start(self, name: str, *command: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        with Path(self.run, f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.run, env=environment, start_new_session=True
            )
        Path(self.run, f"{name}.command").write_text(json.dumps(list(command)))
        Path(self.run, f"{name}.pid").write_text(f"{process.pid} {_started(process.pid)}")

    def kill(self, daemon: str) -> None:
        """Ends a daemon at once; :meth:`start_again` starts it as it was."""
        pid = self._pid(daemon)
        if pid is not None:
            _end(pid, signal.SIGKILL)

    def start_again(self, daemon: str) -> None:
        """Starts a daemon that has ended, with the options that it had. Returns when the API server answers."""
        self._start(daemon, *json.loads(Path(self.run, f"{daemon}.command").read_text()))
        self._await("apiserver", lambda: is_answering(self.kubeconfig))

    def _pid(self, name: str) -> int | None:
        """Of a daemon that runs."""
        try:
            pid, started = Path(self.run, f"{name}.pid").read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _started(int(pid)) == started else None

    def _stop(self, name: str) -> None:
        pid = self._pid(name)
        if pid is not None:
            _end(pid, signal.SIGTERM)

    def _shims(self) -> list[int]:
        """Processes of containerd that watch over this node's containers."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                command = Path(directory, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"containerd-shim" in command[0] and str(self._socket).encode() in command:
                found.append(int(directory.name))
        return found

    def _await(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            log = self.run / f"{name}.log"
            if not self._pid(name):
                raise NodeError(f"{name} ended: {log.read_text()[-1000:].strip()}")
            if time.monotonic() > deadline:
                raise NodeError(f"{name} is not ready after {START_SECONDS} s; its log is {log}")
            time.sleep(0.3)

    def _make_network(self) -> None:
        inside = ("ip", "-n", NAME)
        for command in (
            ("ip", "netns", "add", NAME),
            ("ip", "link", "add", f"{NAME}-h", "type", "veth", "peer", "name", f"{NAME}-n", "netns", NAME),
            ("ip", "address", "add", f"{MACHINE_IP}/30", "dev", f"{NAME}-h"),
            ("ip", "link", "set", f"{NAME}-h", "up"),
            (*inside, "address", "add", f"{NODE_IP}/30", "dev", f"{NAME}-n"),
            (*inside, "link", "set", f"{NAME}-n", "up"),
            (*inside, "link", "set", "lo", "up"),
            # Services' addresses need some route before a packet filter rewrites them. The machine forwards nothing.
            (*inside, "route", "add", "default", "dev", f"{NAME}-n"),
            ("ip", "netns", "exec", NAME, "sysctl", "-qw", "net.ipv4.ip_forward=1"),
            ("ip", "route", "add", PODS, "via", NODE_IP, "dev", f"{NAME}-h"),
            ("ip", "route", "add", SERVICES, "via", NODE_IP, "dev", f"{NAME}-h"),
        ):
            _run(*command)

    def _make_certificates(self) -> None:
        def openssl(*arguments: str, stdin: bytes = b"") -> None:
            _run("openssl", *arguments, cwd=self.run, stdin=stdin)

        days = ("-days", "365")
        new_key = ("-newkey", "rsa:2048", "-nodes")
        openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.crt", *days, "-subj", "/CN=streamjoin-tests")
        openssl("genrsa", "-out", "accounts.key", "2048")
        openssl("rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"]
        addresses = ["127.0.0.1", NODE_IP, API_IP]
        served = {
            "apiserver": ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)]),
            "kubelet": f"DNS:{NAME},IP:{NODE_IP},IP:127.0.0.1",
        }
        for name, subject in {**USERS, "apiserver": "/CN=kube-apiserver"}.items():
            openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
            extensions = "extendedKeyUsage=clientAuth,serverAuth\n"
            if name in served:
                extensions += f"subjectAltName={served[name]}\n"
            Path(self.run, f"{name}.ext").write_text(extensions)
            signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", *days, "-extfile", f"{name}.ext")
            openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)
        for user in USERS:
            path = self.kubeconfig if user == "admin" else self.run / f"{user}.conf"
            _write_json(path, self._kubeconfig(user))
            path.chmod(0o600)

    def _kubeconfig(self, user: str) -> dict[str, Any]:
        credentials = {"client-certificate": f"{self.run}/{user}.crt", "client-key": f"{self.run}/{user}.key"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": NAME, "cluster": {"server": f"https://{NODE_IP}:6443", "certificate-authority": f"{self.run}/ca.crt"}},
            ],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": user}}],
            "current-context": NAME,
        }

    def _etcd(self) -> dict[str, object]:
        client = "http://127.0.0.1:2379"
        return {"data-dir": self.root / "etcd", "unsafe-no-fsync": "true", "listen-client-urls": client, "advertise-client-urls": client}

    def _api_server(self) -> dict[str, object]:
        return {
            "etcd-servers": "http://127.0.0.1:2379",
            "secure-port": 6443,
            "advertise-address": NODE_IP,
            "service-cluster-ip-range": SERVICES,
            "tls-cert-file": self.run / "apiserver.crt",
            "tls-private-key-file": self.run / "apiserver.key",
            "client-ca-file": self.run / "ca.crt",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "service-account-key-file": self.run / "accounts.pub",
            "service-account-signing-key-file": self.run / "accounts.key",
            "service-account-issuer": "https://kubernetes.default.svc",
            "kubelet-client-certificate": self.run / "admin.crt",
            "kubelet-client-key": self.run / "admin.key",
            "kubelet-certificate-authority": self.run / "ca.crt",
            "kubelet-preferred-address-types": "InternalIP",
        }

    def _write_configuration(self) -> None:
        small = self._volumes(SMALL, SMALL_VOLUMES)
        for directory in (self.run, self.run / "cni", self.root / "kubelet", self.root / "etcd", *small, *self._volumes(LOCAL, VOLUMES)):
            directory.mkdir(parents=True, exist_ok=True)
        Path(self.root, "etcd").chmod(0o700)
        (self.run / "containerd.toml").write_text(CONTAINERD.format(root=self.root, run=self.run, pause=PAUSE))
        (self.run / "enter.sh").write_text(ENTER.format(run=self.run, small=shlex.join(map(str, small)), small_mib=SMALL_MIB))
        (self.run / "Corefile").write_text(COREFILE.format(ip=NODE_IP, kubeconfig=self.kubeconfig))
        (self.run / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        addresses = {
            "type": "host-local",
            "dataDir": f"{self.run}/addresses",
            "ranges": [[{"subnet": PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        # ptp, not bridge: of a bridge, a pod that reaches another through a service loses the reply unless br_netfilter is on.
        plugins = [
            {"type": "ptp", "ipMasq": True, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        ]
        _write_json(self.run / "cni" / "pods.conflist", {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": f"{self.run}/ca.crt"},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{self.run}/kubelet.crt",
            "tlsPrivateKeyFile": f"{self.run}/kubelet.key",
            # Without CAP_SYS_RESOURCE, neither may be as it is by default.
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "clusterDNS": [NODE_IP],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{self.run}/resolv.conf",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "enforceNodeAllocatable": [],
            "podLogsDir": f"{self.run}/pods",
            "volumePluginDir": f"{self.run}/plugins",
            "syncFrequency": "10s",
        }
        _write_json(self.run / "kubelet.json", kubelet)
        proxy = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": PODS,
            "hostnameOverride": NAME,
            "clientConnection": {"kubeconfig": f"{self.run}/proxy.conf"},
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        _write_json(self.run / "proxy.json", proxy)

    def _volumes(self, kind: str, count: int) -> list[Path]:
        return [self.root / "volumes" / f"{kind}-{number:02}" for number in range(count)]

    def _storage(self) -> dict[str, Any]:
        """Volumes for claims, and the classes that bind them: nobody makes volumes here, so they are there already."""
        items: list[dict[str, Any]] = []
        on_node = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]}]
        for kind, count, size in ((LOCAL, VOLUMES, "10Gi"), (SMALL, SMALL_VOLUMES, f"{SMALL_MIB}Mi")):
            is_default = str(kind == LOCAL).lower()
            items.append(
                {
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "StorageClass",
                    "metadata": {"name": kind, "annotations": {"storageclass.kubernetes.io/is-default-class": is_default}},
                    "provisioner": "kubernetes.io/no-provisioner",
                    "volumeBindingMode": "WaitForFirstConsumer",
                }
            )
            for path in self._volumes(kind, count):
                spec = {
                    "capacity": {"storage": size},
                    "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": kind,
                    # Unlike hostPath, a local volume takes a pod's fsGroup.
                    "local": {"path": str(path)},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": on_node}},
                }
                items.append({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": path.name}, "spec": spec})
        return {"apiVersion": "v1", "kind": "List", "items": items}


def install_packages(say: Callable[[str], None]) -> None:
    """What the node needs of Debian, where it is missing. No daemon is started by it. Raises NodeError."""
    missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise NodeError(f"{', '.join(missing)}: not on this machine, which has no apt-get; install them, or set KUBECONFIG")
    say(f"installing {' '.join(missing)}")
    policy = Path("/usr/sbin/policy-rc.d")
    forbids = not policy.exists()
    if forbids:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        _run("apt-get", "update", "-q")
        _run("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing, environment={"DEBIAN_FRONTEND": "noninteractive"})
    finally:
        if forbids:
            policy.unlink()


def _flags(settings: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in settings.items()]


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the machine did: nobody else has pid and start. None where there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[19] if fields[0] != "Z" else None


def _end(pid: int, how: signal.Signals) -> None:
    """Ends a process and waits for it; the one that does not listen is killed."""
    started = _started(pid)
    for number in (how, signal.SIGKILL):
        deadline = time.monotonic() + STOP_SECONDS
        if _started(pid) != started or started is None:
            return
        os.kill(pid, number)
        while _started(pid) == started and time.monotonic() < deadline:
            time.sleep(0.1)


def kubectl(kubeconfig: Path, *arguments: str) -> list[str]:
    """The command that asks the cluster of ``kubeconfig``. Raises kubernetes_programs.MissingError."""
    return [str(kubernetes_programs.obtain("kubectl")), f"--kubeconfig={kubeconfig}", *arguments]


def is_answering(kubeconfig: Path) -> bool:
    """Whether the cluster's API server says that it is ready."""
    return kubectl_succeeds(kubeconfig, "get", "--raw", "/readyz")


def kubectl_succeeds(kubeconfig: Path, *arguments: str) -> bool:
    return kubeconfig.exists() and succeeds(*kubectl(kubeconfig, *arguments))


def succeeds(*command: str) -> bool:
    """Whether a command that says nothing ends with 0."""
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def _output(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _run(*command: str, cwd: Path | None = None, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> None:
    """Runs a command that says nothing unless it fails. Raises NodeError with its output."""
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=cwd, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=variables, check=False)
    if done.returncode:
        raise NodeError(f"{' '.join(command)}: {done.stdout.decode(errors='replace').strip()[-1000:]}")
