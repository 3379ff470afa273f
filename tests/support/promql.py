"""What a PromQL expression names: series, labels, groupings. Reads our own expressions; no parser of all PromQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.metrics import METRICS, SCRAPE_LABELS, Metric

SERIES = re.compile(r"\b((?:ray|autoscaler|llm_ray|DCGM_FI|kuberay|container|kube)_\w+|up)\b(\{[^}]*\})?")
GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
KNOWN = {metric.series: metric for metric in METRICS}


@dataclass(frozen=True)
class Selector:
    """One use of a series."""

    series: str
    matchers: str

    @property
    def metric(self) -> Metric:
        """KeyError for a series that nothing is known to export."""
        return KNOWN[self.series]

    @property
    def labels(self) -> set[str]:
        return set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", STRING.sub('""', self.matchers)))


def selectors(expr: str) -> Iterator[Selector]:
    grouped = GROUPING.sub("", expr)
    for name, matchers in SERIES.findall(_blank_strings_outside_braces(grouped)):
        yield Selector(name, matchers)


def grouping_labels(expr: str) -> set[str]:
    return {label for names in GROUPING.findall(expr) for label in re.findall(r"\w+", names)}


def unknown(expr: str) -> list[str]:
    """Series, matchers and grouping labels that dashboards/metrics.py does not declare."""
    found = [f"series {s.series}" for s in selectors(expr) if s.series not in KNOWN]
    used = [s for s in selectors(expr) if s.series in KNOWN]
    for selector in used:
        found += [f"label {label} of {selector.series}" for label in sorted(selector.labels - selector.metric.labels)]
    carried = set(SCRAPE_LABELS).union(*(selector.metric.labels for selector in used))
    return found + [f"grouping label {label}" for label in sorted(grouping_labels(expr) - carried)]


def _blank_strings_outside_braces(expr: str) -> str:
    """label_replace takes label names as strings; they are no series."""
    out, depth, rest = "", 0, expr
    while rest:
        text = STRING.match(rest)
        if text and not depth:
            out, rest = out + '""', rest[text.end() :]
            continue
        depth += {"{": 1, "}": -1}.get(rest[0], 0)
        out, rest = out + rest[0], rest[1:]
    return out
