"""The Debian package sources that this machine itself uses, for an image of another release or the same."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

SECTIONS = ("", "-updates", "-security")
OWN_KEYRING = "debian-archive"


@dataclass(frozen=True)
class Source:
    """One address and one suite of it, such as bookworm-security."""

    address: str
    suite: str


def sources(release: str, etc: Path = Path("/etc")) -> list[Source]:
    """Debian's own sources in etc, with the machine's release replaced by the given one; none where it is no Debian.

    The first one holds the release itself. Other vendors' sources, known by their keyring, are left out.
    """
    about = dict(line.split("=", 1) for line in (etc / "os-release").read_text().splitlines() if "=" in line)
    own = about.get("VERSION_CODENAME", "").strip('"')
    if about.get("ID") != "debian" or not own:
        return []
    wanted = {f"{own}{section}": f"{release}{section}" for section in SECTIONS}
    found = [
        Source(address, wanted[suite])
        for text in _texts(etc / "apt")
        for address, suite in itertools.chain(_stanzas(text), _lines(text))
        if suite in wanted
    ]
    return sorted(dict.fromkeys(found), key=lambda source: source.suite != release)


def _texts(apt: Path) -> list[str]:
    files = [
        apt / "sources.list",
        *sorted(apt.glob("sources.list.d/*.list")),
        *sorted(apt.glob("sources.list.d/*.sources")),
    ]
    return [file.read_text() for file in files if file.is_file()]


def _stanzas(text: str) -> list[tuple[str, str]]:
    """(address, suite) pairs of the newer format, whose entries are paragraphs of `Field: words`."""
    pairs: list[tuple[str, str]] = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", paragraph, re.MULTILINE))
        is_ours = OWN_KEYRING in fields.get("Signed-By", OWN_KEYRING)
        if "deb" in fields.get("Types", "").split() and is_ours and fields.get("Enabled", "yes") == "yes":
            pairs += itertools.product(fields.get("URIs", "").split(), fields.get("Suites", "").split())
    return pairs


def _lines(text: str) -> list[tuple[str, str]]:
    """(address, suite) pairs of the older format: deb [options] address suite components."""
    entries = re.findall(r"^deb[ \t]+(?:\[(.*)\][ \t]+)?(\S+)[ \t]+(\S+)[ \t]", text, re.MULTILINE)
    return [
        (address, suite) for options, address, suite in entries if "signed-by" not in options or OWN_KEYRING in options
    ]
