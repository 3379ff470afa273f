{{/* Labels a selector may use: fixed for the life of a release. Usage: (dict "root" $ "component" "worker") */}}
{{- define "llm-ray.selectorLabels" -}}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
llm-ray.io/name: {{ include "llm-ray.fullname" .root | quote }}
{{- end -}}

{{/* Labels of an object. Pods take selectorLabels alone: a version among a pod's labels would restart it on every chart bump. */}}
{{- define "llm-ray.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/name: {{ .root.Values.nameOverride | default .root.Chart.Name | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: llm-ray
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{ include "llm-ray.selectorLabels" . }}
{{- end -}}

{{/*
The metadata of an object. labels, annotations (maps), namespace and wave (a sync wave of Argo CD; 0 is the cluster) are optional.
Usage: metadata: {{- include "llm-ray.metadata" (dict "root" $ "name" NAME "component" "serve" "wave" -1) | nindent 2 }}
*/}}
{{- define "llm-ray.metadata" -}}
{{- $labels := merge (dict) (.labels | default dict) (include "llm-ray.labels" . | fromYaml) .root.Values.commonLabels -}}
{{- $annotations := merge (dict) (.annotations | default dict) .root.Values.commonAnnotations -}}
{{- if and .root.Values.argocd.syncWaves .wave -}}
{{- $_ := set $annotations "argocd.argoproj.io/sync-wave" (.wave | toString) -}}
{{- end -}}
name: {{ .name | quote }}
namespace: {{ .namespace | default .root.Release.Namespace | quote }}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
