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
