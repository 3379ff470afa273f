"""The lab's programs, built from the Go modules in ci/lab/go (one a part, pinned), and manifests out of those modules.

`python -m ci.lab.programs build` builds what is missing; the Go caches for that are the lab's own, and removed again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from ci.tools.build import built, is_built, locked, megabytes
from ci.tools.go import Caches, ToolError, check_c
from ci.tools.spec import Copied, Tool
from llm_ray.model_store import cache_dir

ROOT = Path(__file__).resolve().parent / "go"
CONTAINERD = "github.com/containerd/containerd/v2"
CRI_TOOLS = "sigs.k8s.io/cri-tools"
KUBERAY = "github.com/ray-project/kuberay/ray-operator"
KWOK = "sigs.k8s.io/kwok"
METRICS_SERVER = "sigs.k8s.io/metrics-server"
MULTUS = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"
NETWORKS = "github.com/k8snetworkplumbingwg/network-attachment-definition-client"
PLUGINS = "github.com/containernetworking/plugins"
PROMETHEUS_ADAPTER = "sigs.k8s.io/prometheus-adapter"
RUNC = "github.com/opencontainers/runc"
VOLCANO = "volcano.sh/volcano"
WHEREABOUTS = "github.com/k8snetworkplumbingwg/whereabouts"
CLIENT_VERSION = "k8s.io/client-go/pkg/version"  # what a client of the API calls itself
CNI_PLUGINS = ("main/bridge", "main/loopback", "main/macvlan", "main/host-device", "ipam/host-local", "ipam/static")
VOLCANO_PROGRAMS = ("scheduler", "controller-manager", "webhook-manager")
KUBE_LINKS = ("etcd", "kube-controller-manager", "kube-netpol", "kube-proxy", "kube-scheduler", "kubectl", "kubelet")
CHAINED_PLUGINS = ("meta/portmap", "meta/tuning")

PARTS = {
    tool.name: tool
    for tool in (
        Tool(
            "kube", "", "k8s.io/kubernetes", root=ROOT,
            packages=(("kube-apiserver", "."),),
            links=KUBE_LINKS,
            version_packages=("k8s.io/component-base/version", CLIENT_VERSION),
        ),
        Tool(
            "containerd", "", CONTAINERD, f"{CONTAINERD}/version.Version", root=ROOT,
            packages=tuple((n, f"{CONTAINERD}/cmd/{n}") for n in ("containerd", "ctr", "containerd-shim-runc-v2")),
            tags="no_btrfs,no_devmapper,no_zfs,osusergo,netgo",
        ),
        Tool("runc", RUNC, RUNC, root=ROOT, tags="seccomp", c_libraries=("libseccomp",)),
        Tool(
            "cni", "", PLUGINS, f"{PLUGINS}/pkg/utils/buildversion.BuildVersion", root=ROOT,
            packages=tuple((n.partition("/")[2], f"{PLUGINS}/plugins/{n}") for n in CNI_PLUGINS + CHAINED_PLUGINS),
        ),
        Tool("crictl", f"{CRI_TOOLS}/cmd/crictl", CRI_TOOLS, f"{CRI_TOOLS}/pkg/version.Version", root=ROOT),
        Tool("coredns", ".", "github.com/coredns/coredns", root=ROOT),
        Tool(
            "kuberay", "", KUBERAY, root=ROOT,
            packages=(("kuberay-operator", KUBERAY),),
            manifests=(Copied(KUBERAY, "config"),),
        ),
        Tool(
            "metrics-server", f"{METRICS_SERVER}/cmd/metrics-server", METRICS_SERVER, root=ROOT,
            version_packages=(f"{METRICS_SERVER}/pkg/version", CLIENT_VERSION),
            manifests=(Copied(METRICS_SERVER, "manifests"),),
        ),
        Tool(
            "volcano", "", VOLCANO, f"{VOLCANO}/pkg/version.Version", root=ROOT,
            packages=tuple((f"vc-{n}", f"{VOLCANO}/cmd/{n}") for n in VOLCANO_PROGRAMS),
            additions=("volcano.sh/apis",),
            manifests=(Copied(VOLCANO, "installer/helm/chart/volcano", "chart"),),
        ),
        Tool(
            "kwok", f"{KWOK}/cmd/kwok", KWOK, f"{KWOK}/pkg/consts.Version", root=ROOT,
            manifests=(Copied(KWOK, "kustomize"),),
        ),
        Tool(
            "multus", f"{MULTUS}/cmd/multus", MULTUS, f"{MULTUS}/pkg/multus.version", root=ROOT,
            manifests=(Copied(NETWORKS, "artifacts/networks-crd.yaml"),),
        ),
        Tool(
            "whereabouts", f"{WHEREABOUTS}/cmd", WHEREABOUTS, f"{WHEREABOUTS}/pkg/version.Version", root=ROOT,
            manifests=(Copied(WHEREABOUTS, "doc/crds"),),
        ),
        Tool(
            "prometheus-adapter", f"{PROMETHEUS_ADAPTER}/cmd/adapter", PROMETHEUS_ADAPTER, root=ROOT,
            manifests=(Copied(PROMETHEUS_ADAPTER, "deploy/manifests"),),
        ),
    )
}  # fmt: skip


def program(name: str) -> Path:
    """The program of that name; its part is built if it is missing. Raises ToolError."""
    for part, tool in PARTS.items():
        if name in tool.names:
            return folder(part) / name
    known = ", ".join(sorted(name for tool in PARTS.values() for name in tool.names))
    raise ToolError(f"the lab has no program {name!r}: choose one of {known}")


def folder(part: str) -> Path:
    """The folder with the programs of a part, built if it is missing. Raises ToolError."""
    return built(_part(part), home(), _caches())


def parts_with(names: Iterable[str]) -> list[str]:
    """The parts that have a program among the names."""
    wanted = set(names)
    return [part for part, tool in PARTS.items() if wanted & set(tool.names)]


def manifests(part: str) -> Path:
    """The folder with the manifests of a part, copied out of its Go modules. Raises ToolError."""
    if not _part(part).manifests:
        raise ToolError(f"part {part!r} has no manifests: {', '.join(n for n, t in PARTS.items() if t.manifests)} have")
    return folder(part) / "manifests"


def build(parts: Iterable[str] = (), keep_go_cache: bool = False) -> bool:
    """Build what is missing of the parts (all by default), then remove the Go caches; the programs stay. False when
    nothing was missing."""
    missing = [part for part in parts or PARTS if not is_built(_part(part), home())]
    for part in missing:
        check_c(PARTS[part])  # before minutes are spent on others
    for part in missing:
        folder(part)
    if missing and not keep_go_cache:
        with locked(home(), "another build"):
            print(f"tools: removing the lab's Go caches; its programs take {megabytes(home())} MB", file=sys.stderr)
            _caches().prune()
    return bool(missing)


def home() -> Path:
    """The folder of all parts' folders."""
    return cache_dir() / "lab" / "programs"


def _caches() -> Caches:
    return Caches(cache_dir() / "lab" / "go-cache", cache_dir() / "lab" / "go-modules")


def _part(name: str) -> Tool:
    if name not in PARTS:
        raise ToolError(f"the lab has no part {name!r}: choose one of {', '.join(PARTS)}")
    return PARTS[name]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.lab.programs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="build the parts that are missing")
    make.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them by default")
    make.add_argument("--keep-go-cache", action="store_true", help="leave 16 GB that make the next build fast")
    commands.add_parser("path", help="print a program's path").add_argument("name", metavar="PROGRAM")
    commands.add_parser("manifests", help="print the folder of a part's manifests").add_argument("name", metavar="PART")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "build":
            build(chosen.parts, chosen.keep_go_cache)
            for part in chosen.parts or PARTS:
                print(f"{part} {PARTS[part].version} {folder(part)}")
        else:
            print(program(chosen.name) if chosen.command == "path" else manifests(chosen.name))
    except ToolError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
