"""Which tools there are and how each is built. Versions live in the go.mod beside each tool, nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Tool:
    """A main package of a Go module that `ci/tools/<name>/go.mod` pins."""

    name: str
    package: str
    module: str
    version_variable: str = ""
    """Where the linker writes the version; a plain module build would call itself by its minor, or not at all."""
    kubernetes_variables: tuple[str, ...] = ()
    """Prefixes of k8sVersionMajor/Minor: without them Helm 3 renders and lints for Kubernetes 1.20."""

    @property
    def home(self) -> Path:
        return HERE / self.name

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
        return sorted(path for path in self.home.iterdir() if path.suffix in (".mod", ".sum", ".go"))

    @property
    def flags(self) -> list[str]:
        stamps = [f"-X {self.version_variable}={self.version}"] if self.version_variable else []
        if self.kubernetes_variables:
            # client-go v0.N is the client of Kubernetes 1.N
            minor = self._required("k8s.io/client-go").split(".")[1]
            for prefix in self.kubernetes_variables:
                stamps += [f"-X {prefix}.k8sVersionMajor=1", f"-X {prefix}.k8sVersionMinor={minor}"]
        return ["-trimpath", "-ldflags", " ".join(["-s -w", *stamps])]

    def _required(self, module: str) -> str:
        found = re.search(rf"^\s*(?:require )?{re.escape(module)} (\S+)", self._go_mod(), re.MULTILINE)
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
