"""One node: containerd, kubelet, kube-proxy and the policy controller in network, mount and UTS namespaces of its own.

The folders that these programs share with nobody are mounted at their usual paths, so that several nodes live side by
side and hostPath volumes and device plugins find what they expect.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from ci.lab.processes import Processes, Word, command, wait_for
from ci.lab.programs import folder, program
from ci.lab.settings import Settings
from ci.oci import identify

DAEMONS = ("containerd", "kubelet", "kube-proxy", "kube-netpol")
STORE = "var/lib/containerd"
OWN = (STORE, "var/lib/kubelet", "var/lib/cni", "var/log/pods", "var/log/containers", "etc/cni/net.d")
CNI_CONFIG = "etc/cni/net.d"
POD_NETWORK = "10-lab.conflist"
PAUSE = "localhost/lab/pause:1"

# The kubelet would set these for the whole machine. It alone is shown them as set, in a mount namespace of its own:
# where /proc is partly covered, the kernel lets no user namespace mount a proc, and pods with hostUsers: false fail.
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}

NODE_MOUNTS = f"""
mount --make-rshared /
for folder in {" ".join(OWN)}; do mount --bind "$1/$folder" "/$folder"; done
mount -t tmpfs -o mode=755 tmpfs /run
hostname "$2"; shift 2; exec "$@"
"""
KUBELET_MOUNTS = f"""
mount --make-private /proc
for file in {" ".join(SYSCTLS)}; do mount --bind "$1/sysctl/$file" "/proc/sys/$file"; done
shift; exec "$@"
"""

CONTAINERD = """
version = 3
oom_score = 0
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{pause}'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  # root may lack CAP_SYS_RESOURCE; runc would die of a negative oom_score_adj with a message about something else
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['{cni}']
  conf_dir = '/{cni_config}'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '{runc}'
  SystemdCgroup = false
"""


def link_plugins(lab: Settings, part: str) -> None:
    """Show the programs of a part of ci/lab/go to the container runtimes, as CNI plugins."""
    lab.plugins.mkdir(parents=True, exist_ok=True)
    for path in folder(part).iterdir():
        if path.is_file() and os.access(path, os.X_OK):
            (lab.plugins / path.name).unlink(missing_ok=True)
            (lab.plugins / path.name).symlink_to(path)


def start_containerd(lab: Settings, daemons: Processes, n: int) -> None:
    data = lab.node_home(n)
    for name in OWN:
        if name != STORE:
            shutil.rmtree(data / name, ignore_errors=True)
        (data / name).mkdir(parents=True, exist_ok=True)
        Path("/", name).mkdir(parents=True, exist_ok=True)
    for name, value in SYSCTLS.items():
        (data / "sysctl" / name).parent.mkdir(parents=True, exist_ok=True)
        (data / "sysctl" / name).write_text(f"{value}\n")
    (data / CNI_CONFIG / POD_NETWORK).write_text(json.dumps(_pod_network(lab, n)))
    config = lab.run / f"containerd-{lab.node(n)}.toml"
    config.write_text(CONTAINERD.format(pause=PAUSE, cni=lab.plugins, cni_config=CNI_CONFIG, runc=program("runc")))
    containerd = program("containerd")
    words: list[Word] = [
        "unshare", "--mount", "--uts", "--propagation", "private",
        "sh", "-euc", NODE_MOUNTS, "sh", data, lab.node(n),
        "env", f"PATH={containerd.parent}:/usr/sbin:/usr/bin:/sbin:/bin", containerd, "-c", config,
    ]  # fmt: skip
    daemons.start(f"containerd-{lab.node(n)}", words, netns=lab.node(n))


def _pod_network(lab: Settings, n: int) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,  # kube-proxy does what is needed
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": lab.pod_net(n)}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}, "backend": "nftables"}
    return {"cniVersion": "1.0.0", "name": "lab", "plugins": [bridge, ports]}


def start_kubelet(lab: Settings, daemons: Processes, n: int) -> None:
    name = lab.node(n)
    config = lab.run / f"kubelet-{name}.json"
    config.write_text(json.dumps(_kubelet(lab, n)))
    words: list[Word] = [
        # mounts that the kubelet makes for volumes are seen by containerd, and the other way round
        "unshare", "--mount", "--propagation", "unchanged", "sh", "-euc", KUBELET_MOUNTS, "sh", lab.node_home(n),
        program("kubelet"), f"--config={config}", f"--kubeconfig={lab.pki}/{name}.kubeconfig",
        f"--hostname-override={name}", f"--node-ip={lab.node_ip(n)}",
    ]  # fmt: skip
    daemons.start(f"kubelet-{name}", words, like=f"containerd-{name}")


def _kubelet(lab: Settings, n: int) -> dict[str, object]:
    resolv = lab.run / "pod-resolv.conf"  # of pods with dnsPolicy Default: there is no DNS outside
    resolv.write_text(f"nameserver {lab.dns_ip}\n")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(lab.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(lab.pki / f"{lab.node(n)}.crt"),
        "tlsPrivateKeyFile": str(lab.pki / f"{lab.node(n)}.key"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDomain": "cluster.local",
        "clusterDNS": [lab.dns_ip],
        "resolvConf": str(resolv),
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{lab.node_cgroup(n)}",
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # the disk is shared with whatever else the machine does
        "evictionHard": {
            "memory.available": "200Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 99,
        "imageGCLowThresholdPercent": 98,
        "nodeStatusUpdateFrequency": "4s",
        "syncFrequency": "10s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "20s"},
    }


def start_proxy(lab: Settings, daemons: Processes, n: int) -> None:
    name = lab.node(n)
    config = lab.run / f"kube-proxy-{name}.json"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "nftables",
                "hostnameOverride": name,
                "clusterCIDR": lab.pod_cidr,
                "clientConnection": {"kubeconfig": str(lab.pki / "proxy.kubeconfig")},
                # the size of the connection table can only be set in the machine's own network namespace
                "conntrack": {"maxPerCore": 0, "min": 0},
                "oomScoreAdj": 0,
            }
        )
    )
    daemons.start(f"kube-proxy-{name}", [program("kube-proxy"), f"--config={config}"], like=f"containerd-{name}")


def start_netpol(lab: Settings, daemons: Processes, n: int) -> None:
    """Enforces NetworkPolicies, which the bridge plugin does not."""
    name = lab.node(n)
    words: list[Word] = [
        program("kube-netpol"), f"--kubeconfig={lab.pki}/netpol.kubeconfig", f"--hostname-override={name}",
        f"--service-cluster-ip-range={lab.service_cidr}",
    ]  # fmt: skip
    daemons.start(f"kube-netpol-{name}", words, like=f"containerd-{name}")


# --- images ---------------------------------------------------------------------------------------


def ctr(lab: Settings, daemons: Processes, n: int, *words: Word, check: bool = True) -> str:
    """Output of containerd's own client, in Kubernetes' namespace of images."""
    pid = daemons.running(f"containerd-{lab.node(n)}")
    enter: list[Word] = ["nsenter", "-t", str(pid), "-m", "-n", "--", program("ctr"), "-n", "k8s.io"]
    return command(*enter, *words, check=check).stdout


def wait_for_containerd(lab: Settings, daemons: Processes, n: int) -> None:
    name = f"containerd-{lab.node(n)}"
    sock = f"/proc/{daemons.running(name)}/root/run/containerd/containerd.sock"
    wait_for(f"the socket of {name}", lambda: Path(sock).is_socket(), 30, lab.logs)
    wait_for(name, lambda: "Server" in ctr(lab, daemons, n, "version", check=False), 30, lab.logs)


def import_image(lab: Settings, daemons: Processes, n: int, archive: Path) -> bool:
    """Load an OCI archive into the node's store; false when its image is what the node has under that name."""
    ref, digest = identify(archive)
    marks = lab.node_home(n) / "imported"
    marks.mkdir(exist_ok=True)
    mark = marks / ref.replace("/", "_")
    if mark.exists() and mark.read_text() == digest:
        return False
    mark.unlink(missing_ok=True)
    ctr(lab, daemons, n, "images", "import", "--local", "--discard-unpacked-layers", archive)
    mark.write_text(digest)
    return True
