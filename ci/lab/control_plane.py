"""etcd, API server, controller manager and scheduler: plain processes in the network of the first node."""

from __future__ import annotations

from ci.lab.processes import Processes, Word
from ci.lab.programs import program
from ci.lab.settings import Settings

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"


def start_etcd(lab: Settings, daemons: Processes) -> None:
    words: list[Word] = [
        program("etcd"), "--name", "lab", "--data-dir", lab.run / "etcd", "--log-level", "warn",
        "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD,
        "--listen-peer-urls", ETCD_PEER, "--initial-advertise-peer-urls", ETCD_PEER,
        "--initial-cluster", f"lab={ETCD_PEER}",
        "--unsafe-no-fsync",  # the data dies with the lab
    ]  # fmt: skip
    daemons.start("etcd", words, netns=lab.control_namespace)


def start_apiserver(lab: Settings, daemons: Processes) -> None:
    pki = lab.pki
    flags: dict[str, Word] = {
        "advertise-address": lab.api_ip,
        "secure-port": "6443",
        "etcd-servers": ETCD,
        "service-cluster-ip-range": lab.service_cidr,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",  # Pod Security is on by itself
        "allow-privileged": "true",
        "kubelet-client-certificate": pki / "apiserver-kubelet.crt",
        "kubelet-client-key": pki / "apiserver-kubelet.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "requestheader-client-ca-file": pki / "front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": pki / "front-proxy.crt",
        "proxy-client-key-file": pki / "front-proxy.key",
    }
    daemons.start("kube-apiserver", _words("kube-apiserver", flags), netns=lab.control_namespace)


def start_controllers(lab: Settings, daemons: Processes) -> None:
    """The controller manager and the scheduler. They react in seconds; a big cluster would want minutes."""
    flags: dict[str, Word] = {
        **_identity(lab, "controllers"),
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "root-ca-file": lab.pki / "ca.crt",
        "service-account-private-key-file": lab.pki / "sa.key",
        "cluster-signing-cert-file": lab.pki / "ca.crt",
        "cluster-signing-key-file": lab.pki / "ca.key",
        "service-cluster-ip-range": lab.service_cidr,
        "cluster-cidr": lab.pod_cidr,
        "allocate-node-cidrs": "false",
        "enable-hostpath-provisioner": "true",
        "horizontal-pod-autoscaler-sync-period": "5s",
        "node-monitor-grace-period": "20s",
        "node-monitor-period": "2s",
    }
    daemons.start("kube-controller-manager", _words("kube-controller-manager", flags), netns=lab.control_namespace)
    own = {**_identity(lab, "scheduler"), "leader-elect": "false"}
    daemons.start("kube-scheduler", _words("kube-scheduler", own), netns=lab.control_namespace)


def _identity(lab: Settings, name: str) -> dict[str, Word]:
    config = lab.pki / f"{name}.kubeconfig"
    return {"kubeconfig": config, "authentication-kubeconfig": config, "authorization-kubeconfig": config}


def _words(name: str, flags: dict[str, Word]) -> list[Word]:
    return [program(name), *(f"--{key}={value}" for key, value in flags.items())]
