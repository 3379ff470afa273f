"""The Go programs that development uses: one pinned module each (go.mod, go.sum), built here, kept outside the tree."""

from ci.tools.build import binary
from ci.tools.go import ToolError
from ci.tools.spec import TOOLS, Tool

__all__ = ["TOOLS", "Tool", "ToolError", "binary"]
