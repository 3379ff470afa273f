{{/* Labels that selectors use: fixed for the life of a release. Usage: $ */}}
{{- define "llm-ray-scaler.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: scaler
{{- end -}}

{{/* Labels of an object; pods take selectorLabels alone, so that a new chart version by itself restarts none. Usage: $ */}}
{{- define "llm-ray-scaler.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: llm-ray
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "llm-ray-scaler.selectorLabels" . }}
{{- end -}}

{{/*
The metadata of an object. namespace (default: the release's; "" is none, for cluster-wide kinds), labels and annotations are
optional. Usage: metadata: {{- include "llm-ray-scaler.metadata" (dict "root" $ "name" NAME) | nindent 2 }}
*/}}
{{- define "llm-ray-scaler.metadata" -}}
{{- $labels := merge (dict) (.labels | default dict) (include "llm-ray-scaler.labels" .root | fromYaml) (include "llm-ray-scaler.overlay" (list dict .root.Values.commonLabels) | fromYaml) -}}
{{- $annotations := merge (dict) (.annotations | default dict) (include "llm-ray-scaler.overlay" (list dict .root.Values.commonAnnotations) | fromYaml) -}}
name: {{ .name | quote }}
{{- if not (hasKey . "namespace") }}
namespace: {{ .root.Release.Namespace | quote }}
{{- else if .namespace }}
namespace: {{ .namespace | quote }}
{{- end }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
The map SRC laid over DST: maps merge, anything else replaces. null says nothing and is left out, because Helm 3 keeps and
Helm 4 drops it. Usage: (list DST SRC) → YAML
*/}}
{{- define "llm-ray-scaler.overlay" -}}
{{- $out := deepCopy (index . 0) -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- $below := index $out $key -}}
{{- $_ := set $out $key (include "llm-ray-scaler.overlay" (list (kindIs "map" $below | ternary $below dict) $value) | fromYaml) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
