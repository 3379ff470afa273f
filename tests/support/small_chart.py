"""A small chart of its own for tests of the machinery, so that they do not depend on llm-ray's."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "Chart.yaml": "apiVersion: v2\nname: small\ndescription: for tests\ntype: application\nversion: 0.1.0\n",
    "values.yaml": "size: 1\nname: fine\n",
    "crds/things.yaml": (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.example.com}\n"
        "spec:\n  group: example.com\n  scope: Namespaced\n  names: {kind: Thing, plural: things}\n  versions: []\n"
    ),
    "templates/configmap.yaml": """\
{{- if ne .Values.name "fine" }}{{ fail (printf "name (%s) must be fine: leave it out" .Values.name) }}{{ end }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
data:
  size: {{ .Values.size | quote }}
  chart: {{ .Chart.Version }}
  kubernetes: {{ .Capabilities.KubeVersion.Version }}
""",
}


def small_chart(home: Path, files: dict[str, str] | None = None) -> Path:
    """Write it, with `files` over or beside its own; an empty text leaves that file out."""
    chart = home / "small"
    for name, text in (FILES | (files or {})).items():
        if text:
            (chart / name).parent.mkdir(parents=True, exist_ok=True)
            (chart / name).write_text(text)
    return chart
