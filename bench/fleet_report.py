"""The rows of a fleet benchmark as tables, and as a section of docs/benchmarks.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from bench.fleet_times import STAGES
from bench.sections import machine, write_section

Row = dict[str, Any]
OURS = "podgroup"
TITLES = {OURS: "llm-ray's PodGroups", "kuberay": "KubeRay's PodGroups", "default": "no gangs"}
ARRIVALS = {"helm": "one by one", "at once": "at once"}
CONTROL_PLANE = ("kube-apiserver", "etcd")
PLACING = (
    "installer", "kuberay-operator", "volcano-scheduler", "volcano-controllers", "volcano-admission", "kube-scheduler",
    "kube-controller-manager",
)  # fmt: skip
NONE = "not measured"
KINDS = 16
OF_NODES = ("leases", "nodes")


def tables(result: dict[str, Any]) -> str:
    rows = _usable(result)
    parts = [_times(rows), _ratios(rows), _components(rows)]
    return "\n\n".join([*parts, _kinds(rows)] if any(row["kinds"] for row in rows) else parts)


def _usable(result: dict[str, Any]) -> list[Row]:
    """The whole rounds; of a run that was broken off in its first round, what there is."""
    rows: list[Row] = result["rows"]
    found = Counter(row["round"] for row in rows)
    whole = [row for row in rows if found[row["round"]] == len(TITLES) * len(ARRIVALS)]
    return whole or rows


def _missing(rows: list[Row]) -> list[str]:
    pairs = [(way, arrival) for arrival in ARRIVALS for way in TITLES]
    return [f"{TITLES[way]}, {ARRIVALS[arrival]}" for way, arrival in pairs if not _select(rows, way, arrival)]


def _times(rows: list[Row]) -> str:
    out = [
        "| releases come | placed by | pods made, s | bound, s | Running, s | RayClusters ready, s "
        "| a gang's wait, s | API requests | CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for arrival, shown in ARRIVALS.items():
        for way, title in TITLES.items():
            mine = _select(rows, way, arrival)
            if not mine:
                out.append(f"| {shown} | {title} |{f' {NONE} |' * (len(STAGES) + 3)}")
                continue
            ends = " | ".join(_spread(row[stage] for row in mine) for stage in STAGES)
            longest = max(row["gang_longest"] for row in mine)
            wait = f"{median(row['gang_median'] for row in mine):.1f}, at most {longest:.1f}"
            requests, cpu = median(map(_all_requests, mine)), median(map(_all_cpu, mine))
            out.append(f"| {shown} | {title} | {ends} | {wait} | {requests:,.0f} | {cpu:.1f} |")
    return "\n".join(out)


def _ratios(rows: list[Row]) -> str:
    """Of ours to the others, each within its round."""
    meters: dict[str, Callable[[Row], float]] = {
        "time until all are bound": lambda row: float(row["bound"]),
        "API requests": _all_requests,
        "CPU seconds": _all_cpu,
    }
    others = [way for way in TITLES if way != OURS]
    heads = [f"{ARRIVALS[arrival]}: against {TITLES[way]}" for arrival in ARRIVALS for way in others]
    out = [f"| llm-ray's PodGroups take | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for name, meter in meters.items():
        cells = []
        for arrival in ARRIVALS:
            ours = {row["round"]: meter(row) for row in _select(rows, OURS, arrival)}
            for way in others:
                theirs = [row for row in _select(rows, way, arrival) if row["round"] in ours]
                cells.append(_spread(ours[row["round"]] / meter(row) for row in theirs))
        out.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(out)


def _all_requests(row: Row) -> float:
    return float(sum(row["requests"].get(name, 0) for name in PLACING))


def _all_cpu(row: Row) -> float:
    return float(sum(row["cpu"].get(name, 0) for name in (*PLACING, *CONTROL_PLANE)))


def _components(rows: list[Row]) -> str:
    out = [_head("requests / CPU s, one by one"), "|---" * (1 + len(TITLES)) + "|"]
    for name in (*PLACING, *CONTROL_PLANE, "kwok"):
        cells = []
        for way in TITLES:
            mine = _select(rows, way, "helm")
            if not mine:
                cells.append(NONE)
                continue
            requests = f"{median(row['requests'].get(name, 0) for row in mine):,.0f}"
            cpu = median(row["cpu"][name] for row in mine)
            cells.append(f"{'-' if name in CONTROL_PLANE else requests} / {cpu:.1f}")
        out.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(out)


def _kinds(rows: list[Row]) -> str:
    """The kinds that come most often."""
    by_way = [_select(rows, way, "helm") for way in TITLES]
    kinds = {kind for row in rows for kind in row["kinds"] if kind.split()[1].split("/")[0] not in OF_NODES}
    counts = {kind: [_count(mine, kind) for mine in by_way] for kind in kinds}
    out = [_head("requests of all clients, one by one"), "|---" * (1 + len(TITLES)) + "|"]
    most = sorted(counts.items(), key=lambda item: (-max(count or 0 for count in item[1]), item[0]))
    for kind, found in most[:KINDS]:
        out.append(f"| {kind} | {' | '.join(NONE if count is None else f'{count:,.0f}' for count in found)} |")
    return "\n".join(out)


def _count(rows: list[Row], kind: str) -> float | None:
    return float(median(row["kinds"].get(kind, 0) for row in rows)) if rows else None


def _select(rows: list[Row], way: str, arrival: str) -> list[Row]:
    return [row for row in rows if (row["way"], row["arrival"]) == (way, arrival)]


def _head(first: str) -> str:
    return f"| {first} | {' | '.join(TITLES.values())} |"


def _spread(found: Iterable[float]) -> str:
    """Median, and the range where there is one."""
    values = sorted(found)
    if not values:
        return NONE
    middle = _figure(median(values))
    return middle if len(values) == 1 else f"{middle} ({_figure(values[0])} to {_figure(values[-1])})"


def _figure(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def write(result: dict[str, Any]) -> None:
    rows = _usable(result)
    rounds = len({row["round"] for row in rows})
    loads = sorted(row["load"] for row in rows)
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    releases, nodes, members = result["releases"], result["nodes"], result["members"]
    missing = _missing(rows)
    gaps = f"\n\n**Incomplete: the run was broken off. Not measured: {'; '.join(missing)}.**" if missing else ""
    gaps += f"\n\n{result['note']}" if "note" in result else ""
    figures = "of one round" if rounds == 1 else f"a median over {rounds} rounds with the range beside it"
    write_section(
        "fleet",
        f"""## Fleet

Generated by `python -m bench.fleet --write`. {releases} releases of the chart on {nodes} GPU nodes. Each release is a
gang of {members} pods: a head, and workers that take all GPUs of a node each. The nodes are KWOK's: a pod that is
bound is Running at once. API server, etcd, schedulers, operator and Helm are real. The three ways took turns within
each round; every figure is {figures}.{gaps}

- {TITLES[OURS]}: `gang.provider: podgroup`, the chart makes the PodGroup, Volcano places all pods of a gang or none
- {TITLES["kuberay"]}: `gang.provider: kuberay`, the operator makes it (`--batch-scheduler=volcano`), same scheduler
- {TITLES["default"]}: `gang.provider: none`, Kubernetes' scheduler binds each pod by itself

- machine: {machine()}; with other work beside this: load average {loads[0]:.0f} to {loads[-1]:.0f}, so requests and
  CPU seconds say more than seconds
- {versions}

"One by one" is a `helm install` for each release, two at a time: most of the time is that. "At once": all that a
release needs beside is there already, and then all PodGroups and RayClusters are created through the API. A gang's
wait is from its first pod in the API to the node of its last one: median of the gangs, and the longest one.
Requests are what the API server counted for Helm, operator, schedulers and controllers; CPU seconds are theirs and
those of the API server and etcd. Those of the nodes and of the measuring are not in them (`kwok` is shown below).

{tables(result)}

To repeat: `python -m ci.lab up --profile gang`, then `python -m bench.fleet --write`.
""",
    )
