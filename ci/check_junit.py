"""Fail unless pytest's JUnit files show every suite run and nothing skipped. Usage: check_junit.py FILE…"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

MINIMUM = {
    "chart": 2000,
    "engine": 100,
    "worker": 300,
    "app": 150,
    "serve": 20,
    "scaler": 200,
    "simulate": 150,
    "other": 50,
}
"""Fewest tests per folder of tests/; "other" are the files directly in it."""


def suite_of(classname: str) -> str:
    """tests.engine.test_scheduler → engine; tests.test_repo → other."""
    parts = classname.split(".")
    return parts[1] if len(parts) > 2 else "other"


def problems(reports: list[Path]) -> list[str]:
    """What is wrong with the run, in words; empty when nothing is."""
    cases = [case for report in reports for case in ET.parse(report).getroot().iter("testcase")]
    counts = Counter(suite_of(case.get("classname", "")) for case in cases)
    print(f"tests per suite: {', '.join(f'{suite} {count}' for suite, count in sorted(counts.items()))}")
    found = [
        f"suite {suite} ran {counts[suite]} tests, at least {least} expected"
        for suite, least in MINIMUM.items()
        if counts[suite] < least
    ]
    for kind in ("skipped", "failure", "error"):
        found += [f"{kind}: {c.get('classname')}.{c.get('name')}" for c in cases if c.find(kind) is not None]
    return found


if __name__ == "__main__":
    wrong = problems([Path(name) for name in sys.argv[1:]])
    print("\n".join(wrong) or "no test was skipped")
    sys.exit(bool(wrong))
