"""Bring a lab up. A lab that runs is left alone but for add-ons that it lacks; what is left of a broken one is cleared
away first, so that `up` works after a kill at any moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ci.lab import cgroups, control_plane, down, host, keys, network, node, programs
from ci.lab.addons import of_profile
from ci.lab.addons.addon import Addon
from ci.lab.archives import archive
from ci.lab.cluster import Cluster, condition
from ci.lab.errors import LabError
from ci.lab.log import Say
from ci.lab.processes import Processes, wait_for
from ci.lab.settings import Settings

BASE_PARTS = ("kube", "containerd", "runc", "cni", "crictl")
REMEDIES = {
    "inotify": "too few inotify instances are left: sysctl -w fs.inotify.max_user_instances=512, or end what uses them",
    "address already in use": "another program has the port: end it, or choose other addresses by LAB_NET",
}
LAB_SHARES = 8192  # v1: a process in the root group weighs as much as a whole group of 1024
SYSTEM_SHARES = 2048
NODE_SHARES = 4096


def up(lab: Settings, profile: str, say: Say) -> None:
    """Bring up the control plane, the nodes and the add-ons of the profile. Raises LabError, with the last words of
    daemons that have ended."""
    host.check()
    try:
        _up(lab, profile, say)
    except LabError as error:
        raise LabError(f"{error}{_last_words(lab)}") from error


def _up(lab: Settings, profile: str, say: Say) -> None:
    addons = of_profile(profile)
    images = ["pause", *(image for addon in addons for image in addon.images)]
    plugins = [part for addon in addons for part in addon.cni_parts]
    programs.build([*BASE_PARTS, *plugins, *programs.parts_with(images)])
    cluster, daemons = Cluster(lab), Processes(lab)
    archives = [archive(name) for name in images]
    if is_up(lab):
        _load(lab, daemons, archives)
    else:
        down.down(lab)
        _start(lab, daemons, cluster, archives, say)
    missing = [addon for addon in addons if addon.name not in installed(lab)]
    if not missing:
        say("already up")
        return
    _install(cluster, missing, say)
    wait_for_nodes(cluster, lab)
    say("nodes are Ready")
    _finish(cluster, missing)
    _record(lab, missing)
    say(f"up: {', '.join(addon.name for addon in addons)}")


def is_up(lab: Settings) -> bool:
    """Every daemon runs, and the API server is ready."""
    return not ended(lab) and Cluster(lab).ready()


def ended(lab: Settings) -> list[str]:
    """Names of the daemons that should run and do not."""
    daemons = Processes(lab)
    wanted = [*control_plane.NAMES, *(f"{name}-{lab.node(n)}" for n in lab.numbers for name in node.DAEMONS)]
    return [name for name in wanted if not daemons.pid(name)]


def installed(lab: Settings) -> list[str]:
    """Names of the add-ons that are there and were available."""
    path = lab.run / "addons"
    return path.read_text().split() if path.exists() else []


def _last_words(lab: Settings) -> str:
    """A paragraph for each daemon that was started and has ended, with the remedy where it is known."""
    told = ""
    for name in ended(lab):
        log = lab.logs / f"{name}.log"
        words = log.read_text(errors="replace").splitlines()[-1:] if log.exists() else []
        for line in words:
            told += f"\n{name} has ended: {line}"
            told += "".join(f"\n  {fix}" for cause, fix in REMEDIES.items() if cause in line)
    return told


def load(lab: Settings, path: Path, say: Say) -> None:
    """Load an image archive into every node. Raises LabError, or ValueError for a file that is no archive."""
    daemons = Processes(lab)
    for n in lab.numbers:
        daemons.running(f"containerd-{lab.node(n)}")
    fresh = _load(lab, daemons, [path])
    say(f"{path.name} is in {lab.nodes} nodes" if fresh else f"{path.name} was in every node")


def _start(lab: Settings, daemons: Processes, cluster: Cluster, archives: list[Path], say: Say) -> None:
    for folder in (lab.run, lab.logs):
        folder.mkdir(parents=True, exist_ok=True)
    cgroups.make(lab.cgroup, LAB_SHARES)
    cgroups.make(lab.system_cgroup, SYSTEM_SHARES)
    for n in lab.numbers:
        cgroups.make(lab.node_cgroup(n), NODE_SHARES)
    network.make(lab)
    control_plane.start_etcd(lab, daemons)
    node.link_plugins(lab, "cni")
    for n in lab.numbers:
        node.start_containerd(lab, daemons, n)
    keys.make(lab)
    control_plane.start_apiserver(lab, daemons)
    for n in lab.numbers:
        node.wait_for_containerd(lab, daemons, n)
    _load(lab, daemons, archives)
    say("images are in the nodes")
    wait_for("kube-apiserver", cluster.ready, 120, lab.logs)
    say("kube-apiserver is ready")
    control_plane.start_controllers(lab, daemons)
    for n in lab.numbers:
        node.start_kubelet(lab, daemons, n)
        node.start_proxy(lab, daemons, n)
        node.start_netpol(lab, daemons, n)


def _load(lab: Settings, daemons: Processes, archives: list[Path]) -> bool:
    """Into all nodes at once; true when any of them lacked any of it."""
    if not lab.nodes:
        return False

    def into(n: int) -> bool:
        return any([node.import_image(lab, daemons, n, path) for path in archives])

    with ThreadPoolExecutor(lab.nodes) as pool:
        return any(list(pool.map(into, lab.numbers)))


def _install(cluster: Cluster, addons: list[Addon], say: Say) -> None:
    """Those that need nothing first, side by side; then those that need them."""
    left, done = list(addons), set(installed(cluster.lab))
    while left:
        ready = [addon for addon in left if set(addon.needs) <= done]
        if not ready:
            raise LabError(
                f"the add-ons {_names(left)} need {[addon.needs for addon in left]}, which the profile lacks"
            )
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda addon: _install_one(cluster, addon), ready))
        done |= _names(ready)
        left = [addon for addon in left if addon not in ready]
    say("objects are applied")


def _names(addons: list[Addon]) -> set[str]:
    return {addon.name for addon in addons}


def _install_one(cluster: Cluster, addon: Addon) -> None:
    for part in addon.cni_parts:
        node.link_plugins(cluster.lab, part)
    addon.install(cluster)


def _finish(cluster: Cluster, addons: list[Addon]) -> None:
    for addon in addons:
        for namespace, name in addon.deployments:
            cluster.wait_for_deployment(namespace, name)
        addon.settle(cluster)


def _record(lab: Settings, addons: list[Addon]) -> None:
    names = [*installed(lab), *(addon.name for addon in addons)]
    partial = lab.run / "addons.partial"
    partial.write_text("\n".join(names))
    partial.rename(lab.run / "addons")


def wait_for_nodes(cluster: Cluster, lab: Settings) -> None:
    for n in lab.numbers:
        path = f"/api/v1/nodes/{lab.node(n)}"
        cluster.wait(f"node {lab.node(n)}", path, lambda found: condition(found, "Ready") == "True")
