"""Which tools there are and how each is built. Versions live in the go.mod beside each tool, nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD_TIME = "1980-01-01T00:00:00Z"


@dataclass(frozen=True)
class Copied:
    """Something of a module's tree that is kept beside the programs, in their folder `manifests`."""

    module: str
    source: str
    """A folder, whose content is taken, or a file."""
    into: str = "."


@dataclass(frozen=True)
class Tool:
    """Main packages of a Go module that `<name>/go.mod` pins: one that gives the program `name`, or several."""

    name: str
    package: str
    module: str
    version_variable: str = ""
    """Where the linker writes the version; a plain module build would call itself by its minor, or not at all."""
    kubernetes_variables: tuple[str, ...] = ()
    """Prefixes of k8sVersionMajor/Minor: without them Helm 3 renders and lints for Kubernetes 1.20."""
    root: Path | None = None
    """The folder of the tool's folder, for a tool that is not in ci/tools."""
    packages: tuple[tuple[str, str], ...] = ()
    """(program, its main package) of a tool with other programs than one called `name`; `package` is empty then."""
    links: tuple[str, ...] = ()
    """Further names of the first program, which looks at the name it is called by."""
    version_packages: tuple[str, ...] = ()
    """Packages with Kubernetes' own set of version variables."""
    tags: str = ""
    c_libraries: tuple[str, ...] = ()
    """What cgo links, by the names of pkg-config; without any, there is no cgo."""
    additions: tuple[str, ...] = ()
    """Modules that are built with the files of `<name>/additions/<module>` added to them."""
    manifests: tuple[Copied, ...] = ()

    @property
    def home(self) -> Path:
        return (self.root or HERE) / self.name

    @property
    def mains(self) -> dict[str, str]:
        """Main package by program."""
        return dict(self.packages) or {self.name: self.package}

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be run."""
        return (*self.mains, *self.links)

    @property
    def version(self) -> str:
        return self._required(self.module)

    @property
    def go_version(self) -> str:
        """The oldest Go that the module accepts."""
        found = re.search(r"^go (\S+)$", self._go_mod(), re.MULTILINE)
        assert found, f"{self.home}/go.mod has no go line"
        return found[1]

    @property
    def sources(self) -> list[Path]:
        return sorted(path for path in self.home.rglob("*") if path.suffix in (".mod", ".sum", ".go"))

    @property
    def flags(self) -> list[str]:
        tags = ["-tags", self.tags] if self.tags else []
        return ["-trimpath", *tags, "-ldflags", " ".join(["-s -w", *self._stamps()])]

    @property
    def extras(self) -> list[object]:
        """What decides the result besides sources, package and flags; nothing for a plain tool."""
        parts = (self.packages, self.links, self.c_libraries, self.additions, self.manifests)
        return [repr(parts)] if any(parts) else []

    def _stamps(self) -> Iterator[str]:
        if self.version_variable:
            yield f"-X {self.version_variable}={self.version}"
        if self.kubernetes_variables:
            # client-go v0.N is the client of Kubernetes 1.N
            minor = self._required("k8s.io/client-go").split(".")[1]
            for prefix in self.kubernetes_variables:
                yield f"-X {prefix}.k8sVersionMajor=1"
                yield f"-X {prefix}.k8sVersionMinor={minor}"
        for prefix in self.version_packages:
            major, minor, _ = self.version.removeprefix("v").split(".")
            stamps = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
            for key, value in (stamps | {"gitCommit": "0" * 40, "buildDate": BUILD_TIME}).items():
                yield f"-X {prefix}.{key}={value}"

    def _required(self, module: str) -> str:
        found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", self._go_mod(), re.MULTILINE)
        assert found, f"{self.home}/go.mod does not require {module}"
        return found[1]

    def _go_mod(self) -> str:
        return (self.home / "go.mod").read_text()


TOOLS = {
    tool.name: tool
    for tool in (
        Tool("helm4", "helm.sh/helm/v4/cmd/helm", "helm.sh/helm/v4", "helm.sh/helm/v4/internal/version.version"),
        Tool(
            "helm3",
            "helm.sh/helm/v3/cmd/helm",
            "helm.sh/helm/v3",
            "helm.sh/helm/v3/internal/version.version",
            ("helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules"),
        ),
        Tool(
            "kubeconform",
            "github.com/yannh/kubeconform/cmd/kubeconform",
            "github.com/yannh/kubeconform",
            "main.version",
        ),
        Tool("kube-score", "github.com/zegl/kube-score/cmd/kube-score", "github.com/zegl/kube-score", "main.version"),
        Tool("podsecurity", ".", "k8s.io/pod-security-admission"),
        Tool("kuberay", ".", "github.com/ray-project/kuberay/ray-operator"),
        Tool("otelcol", ".", "go.opentelemetry.io/collector/otelcol"),
    )
}
