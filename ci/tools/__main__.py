"""Build development's Go programs, or print where one is (it is built when it is missing)."""

from __future__ import annotations

import argparse
import sys

from ci.tools import TOOLS, ToolError, binary


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.tools", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    names = f"of {', '.join(TOOLS)}"
    commands.add_parser("build", help="build tools that are missing").add_argument(
        "names", nargs="*", metavar="NAME", help=f"one or more {names}; all of them by default"
    )
    commands.add_parser("path", help="print a program's path").add_argument("name", metavar="NAME", help=f"one {names}")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "path":
            print(binary(chosen.name))
        else:
            for name in chosen.names or TOOLS:
                print(f"{name} {TOOLS[name].version if name in TOOLS else ''} {binary(name)}")
    except ToolError as error:
        print(f"tools: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
