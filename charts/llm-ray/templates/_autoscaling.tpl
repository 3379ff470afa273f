{{/* The scalers of autoscaling.mode hpa: one WorkerGroupScale per group, and what writes its replicas. */}}

{{/* The groups that are scaled, as JSON {"groups": [...]}. Usage: $ */}}
{{- define "llm-ray.scaledGroups" -}}
{{- $groups := list -}}
{{- if eq .Values.autoscaling.mode "hpa" -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- if not .spec.suspend -}}
{{- $groups = append $groups . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toJson -}}
{{- end -}}

{{/* What an HPA or ScaledObject points at. Usage: (list $ GROUP) → YAML map */}}
{{- define "llm-ray.scaleTargetRef" -}}
apiVersion: llm-ray.io/v1alpha1
kind: WorkerGroupScale
name: {{ include "llm-ray.componentName" (list (index . 0) (index . 1).name) | quote }}
{{- end -}}

{{/*
Labels of the series that count for a group, which the PodMonitor puts on them: all of the release, or the group's own
where there are several, each sized by its own load. Usage: (list $ GROUP) → YAML map
*/}}
{{- define "llm-ray.metricLabels" -}}
llm_ray_name: {{ include "llm-ray.fullname" (index . 0) | quote }}
{{- if gt (len (include "llm-ray.groups" (index . 0) | fromJson).groups) 1 }}
llm_ray_group: {{ (index . 1).name | quote }}
{{- end }}
{{- end -}}

{{/* Requests that run or wait: in the engines' replicas, and at callers that found no replica. Usage: (list $ GROUP) → PromQL */}}
{{- define "llm-ray.requestsQuery" -}}
{{- $matchers := list "__name__=~\"ray_serve_replica_processing_queries|ray_serve_deployment_queued_queries\""
  "application=\"llm\"" (printf "namespace=%q" (index . 0).Release.Namespace) -}}
{{- range $label, $value := include "llm-ray.metricLabels" . | fromYaml -}}
{{- $matchers = append $matchers (printf "%s=%q" $label $value) -}}
{{- end -}}
sum({{ printf "{%s}" (join "," $matchers) }})
{{- end -}}

{{/* The series that prometheus-adapter looks for, and how it sums a release's, or a group's, own. */}}
{{- define "llm-ray.adapterRules" -}}
rules:
  external:
    - seriesQuery: 'ray_serve_replica_processing_queries{namespace!="",pod!="",llm_ray_name!=""}'
      resources: {overrides: {namespace: {resource: namespace}}}
      name: {as: {{ .Values.autoscaling.hpa.metricName | quote }}}
      metricsQuery: 'sum({__name__=~"ray_serve_replica_processing_queries|ray_serve_deployment_queued_queries",application="llm",<<.LabelMatchers>>})'
{{- end -}}

{{/*
Labels of a worker's Ray node that keep an engine within one gang: its name, and the host's index in it. KubeRay numbers the
pods of a group with several hosts; any other pod is a gang by itself. Usage: (list $ GROUP) → env map
*/}}
{{- define "llm-ray.gangEnv" -}}
{{- if eq (include "llm-ray.placementStrategy" (index . 0)) "GANG" }}
{{- if gt (int (index . 1).hosts) 1 }}
LLM_RAY_GANG: {valueFrom: {fieldRef: {fieldPath: "metadata.labels['ray.io/worker-group-replica-name']"}}}
LLM_RAY_HOST: {valueFrom: {fieldRef: {fieldPath: "metadata.labels['ray.io/replica-host-index']"}}}
{{- else }}
LLM_RAY_GANG: {valueFrom: {fieldRef: {fieldPath: metadata.name}}}
LLM_RAY_HOST: "0"
{{- end }}
# Kubernetes puts the values in: both are before it in the list, which is sorted.
RAY_OVERRIDE_LABELS: '{"llm-ray.io/gang":"$(LLM_RAY_GANG)","llm-ray.io/host":"$(LLM_RAY_HOST)"}'
{{- else -}}
{}
{{- end }}
{{- end -}}

{{/* behavior of a HorizontalPodAutoscaler. Usage: $ → YAML map */}}
{{- define "llm-ray.hpaBehavior" -}}
{{- $hpa := .Values.autoscaling.hpa -}}
{{- $behavior := include "llm-ray.overlay" (list dict $hpa.behavior) | fromYaml -}}
{{- if not (kindIs "invalid" $hpa.tolerance) -}}
{{- $tolerance := dict "tolerance" (include "llm-ray.decimal" $hpa.tolerance) -}}
{{- $behavior = include "llm-ray.overlay" (list (dict "scaleUp" $tolerance "scaleDown" $tolerance) $behavior) | fromYaml -}}
{{- end -}}
{{- toYaml $behavior -}}
{{- end -}}

{{/* A number as the API server writes it, so that no tool sees a difference. Usage: 0.5 → "500m" */}}
{{- define "llm-ray.decimal" -}}
{{- include "llm-ray.quantity" (list "" (include "llm-ray.milli" .)) -}}
{{- end -}}
