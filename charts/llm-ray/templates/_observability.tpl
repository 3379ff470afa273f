{{/* Traces and logs: what Ray is told, and the collector that ships Ray's log files. */}}

{{/* A value of the pod by the downward API. Usage: (include "llm-ray.podField" "metadata.name" | fromYaml) → {valueFrom: …} */}}
{{- define "llm-ray.podField" -}}
valueFrom:
  fieldRef:
    fieldPath: {{ . }}
{{- end -}}

{{/*
What tells one pod's telemetry from another's. The names sort before OTEL_*, because Kubernetes expands only variables that
stand earlier in the list; ray.io/group, which KubeRay sets, is there on the head too. Usage: $ → env map
*/}}
{{- define "llm-ray.podIdentityEnv" -}}
K8S_NAMESPACE_NAME:
  {{- include "llm-ray.podField" "metadata.namespace" | nindent 2 }}
K8S_NODE_NAME:
  {{- include "llm-ray.podField" "spec.nodeName" | nindent 2 }}
K8S_POD_NAME:
  {{- include "llm-ray.podField" "metadata.name" | nindent 2 }}
LLM_RAY_CLUSTER:
  {{- include "llm-ray.podField" "metadata.labels['ray.io/cluster']" | nindent 2 }}
LLM_RAY_GROUP:
  {{- include "llm-ray.podField" "metadata.labels['ray.io/group']" | nindent 2 }}
{{- end -}}

{{/*
Environment of the Ray containers. Serve reads its tracing settings here: its proxies start before they could read them
from the Serve config. With the collector, replicas write to their log file alone, which would else be shipped twice.
Usage: $ → env map
*/}}
{{- define "llm-ray.observabilityEnv" -}}
{{- $env := dict -}}
{{- $logs := .Values.monitoring.logs -}}
{{- $tracing := .Values.monitoring.tracing -}}
{{- if eq $logs.format "json" -}}
{{- $_ := set $env "RAY_BACKEND_LOG_JSON" "1" -}}
{{- end -}}
{{- if $logs.collector.enabled -}}
{{- $_ := set $env "RAY_SERVE_LOG_TO_STDERR" "0" -}}
{{- end -}}
{{- if $tracing.enabled -}}
{{- $serve := include "llm-ray.serveTracing" . | fromYaml -}}
{{- $attributes := list "k8s.namespace.name=$(K8S_NAMESPACE_NAME)" "k8s.node.name=$(K8S_NODE_NAME)" "k8s.pod.name=$(K8S_POD_NAME)"
  "llm_ray.group=$(LLM_RAY_GROUP)" "ray.cluster=$(LLM_RAY_CLUSTER)" -}}
{{- $env = merge $env (include "llm-ray.podIdentityEnv" . | fromYaml) (dict
  "OTEL_EXPORTER_OTLP_ENDPOINT" $tracing.endpoint
  "OTEL_EXPORTER_OTLP_PROTOCOL" "http/protobuf"
  "OTEL_RESOURCE_ATTRIBUTES" (join "," $attributes)
  "OTEL_SERVICE_NAME" (include "llm-ray.fullname" .)
  "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH" $serve.exporter_import_path
  "RAY_SERVE_TRACING_SAMPLING_RATIO" (toString $serve.sampling_ratio)) -}}
{{- with $tracing.existingSecret -}}
{{- $_ := set $env "OTEL_EXPORTER_OTLP_HEADERS" (dict "valueFrom" (dict "secretKeyRef" (dict "name" . "key" "OTEL_EXPORTER_OTLP_HEADERS"))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $env -}}
{{- end -}}

{{/* Serve's logging_config. Usage: $ → map */}}
{{- define "llm-ray.serveLogging" -}}
encoding: {{ upper .Values.monitoring.logs.format }}
log_level: {{ .Values.monitoring.logs.level }}
enable_access_log: true
{{- end -}}

{{/* Serve's tracing_config, or {}. Usage: $ → map */}}
{{- define "llm-ray.serveTracing" -}}
{{- if .Values.monitoring.tracing.enabled -}}
enabled: true
exporter_import_path: llm_ray.tracing:exporter
sampling_ratio: {{ .Values.monitoring.tracing.samplingRatio }}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* Name of the collector's ConfigMap. Usage: $ */}}
{{- define "llm-ray.collectorConfigName" -}}
{{- include "llm-ray.componentName" (list . "collector") -}}
{{- end -}}

{{/* Volumes of the collector beside the pod's own `tmp`, which holds Ray's logs. Usage: $ → list */}}
{{- define "llm-ray.collectorVolumes" -}}
{{- if .Values.monitoring.logs.collector.enabled -}}
- name: collector-config
  configMap: {name: {{ include "llm-ray.collectorConfigName" . }}}
- name: collector-state
  emptyDir: {sizeLimit: 64Mi}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{/*
The collector's container, or {}: a sidecar, so it starts before Ray and stops after it. It has no readiness probe, because
shipping no logs is no reason to take a pod out of service.
Usage: (list $ "head"|"worker") → map
*/}}
{{- define "llm-ray.collectorContainer" -}}
{{- $root := index . 0 -}}
{{- $collector := $root.Values.monitoring.logs.collector -}}
{{- if $collector.enabled -}}
{{- $env := include "llm-ray.podIdentityEnv" $root | fromYaml -}}
{{- with $collector.existingSecret -}}
{{- range $key := list "ELASTICSEARCH_PASSWORD" "ELASTICSEARCH_USER" "LOKI_TENANT" -}}
{{- $_ := set $env $key (dict "valueFrom" (dict "secretKeyRef" (dict "name" $collector.existingSecret "key" $key "optional" true))) -}}
{{- end -}}
{{- end -}}
name: collector
image: {{ include "llm-ray.image" (list $root $collector.image) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
args: [--config=/etc/otelcol/config.yaml]
ports:
  - {name: collector, containerPort: {{ int $collector.healthPort }}, protocol: TCP}
env:
  {{- include "llm-ray.env" $env | nindent 2 }}
resources:
  {{- toYaml $collector.resources | nindent 2 }}
startupProbe:
  {{- include "llm-ray.httpProbe" (list "/" "collector" 2 5 30) | nindent 2 }}
livenessProbe:
  {{- include "llm-ray.httpProbe" (list "/" "collector" 10 5 6) | nindent 2 }}
securityContext:
  {{- include "llm-ray.securityContext" (list $root list) | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp, readOnly: true}
  - {name: collector-config, mountPath: /etc/otelcol, readOnly: true}
  - {name: collector-state, mountPath: /var/lib/otelcol}
{{- else -}}
{}
{{- end -}}
{{- end -}}
