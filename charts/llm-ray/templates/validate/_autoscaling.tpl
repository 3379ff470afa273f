{{/* Scaling that nothing would carry out. Usage: $ */}}
{{- define "llm-ray.validate.autoscaling" -}}
{{- $mode := .Values.autoscaling.mode -}}
{{- $hpa := .Values.autoscaling.hpa -}}
{{- $totals := include "llm-ray.totals" . | fromJson -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $key := printf "workers.%s" .name -}}
{{- if eq $mode "fixed" -}}
{{- if or (not (kindIs "invalid" .spec.minReplicas)) (not (kindIs "invalid" .spec.maxReplicas)) -}}
{{- include "llm-ray.refuse" (list (printf "%s.maxReplicas" $key) .spec.maxReplicas "be null, as minReplicas, with autoscaling.mode fixed, where replicas alone count" "set autoscaling.mode to serve or hpa, or take both out") -}}
{{- end -}}
{{- else -}}
{{- if and (eq $mode "hpa") (eq $hpa.provider "hpa") (lt (int .minReplicas) 1) -}}
{{- include "llm-ray.refuse" (list (printf "%s.minReplicas" $key) .minReplicas "be at least 1 with autoscaling.hpa.provider hpa: a HorizontalPodAutoscaler below 1 needs a feature gate, and never leaves 0 by itself" "raise it, or set autoscaling.hpa.provider to keda") -}}
{{- end -}}
{{- if and (eq $mode "hpa") (eq $hpa.provider "keda") (lt (int .maxReplicas) 1) -}}
{{- include "llm-ray.refuse" (list (printf "%s.maxReplicas" $key) (int .maxReplicas) "be at least 1 with autoscaling.mode hpa, or nothing could ever be scaled up" "raise it") -}}
{{- end -}}
{{- if and (eq $mode "hpa") (not (kindIs "invalid" $hpa.keda.fallbackReplicas)) (gt (int $hpa.keda.fallbackReplicas) (int .maxReplicas)) -}}
{{- include "llm-ray.refuse" (list "autoscaling.hpa.keda.fallbackReplicas" $hpa.keda.fallbackReplicas (printf "be at most %s.maxReplicas (%d)" $key (int .maxReplicas)) "lower it") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (ne $mode "fixed") (eq (int $totals.minEngines) 0) .Values.serve.excludeHead -}}
{{- include "llm-ray.refuse" (list "serve.excludeHead" true "be false where all worker groups may go down to 0: no pod would be left to take the request that brings them back" "set it to false, or raise minReplicas of a worker group") -}}
{{- end -}}
{{- include "llm-ray.validate.hpa" . -}}
{{- end -}}

{{/* Usage: $ */}}
{{- define "llm-ray.validate.hpa" -}}
{{- $hpa := .Values.autoscaling.hpa -}}
{{- if and (eq .Values.autoscaling.mode "hpa") (eq $hpa.provider "keda") (not $hpa.keda.serverAddress) -}}
{{- include "llm-ray.refuse" (list "autoscaling.hpa.keda.serverAddress" "" "be the address of Prometheus with autoscaling.hpa.provider keda" "set it to one like http://prometheus-operated.monitoring.svc:9090") -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.mode "hpa") (eq $hpa.provider "hpa") (not $hpa.metricName) -}}
{{- include "llm-ray.refuse" (list "autoscaling.hpa.metricName" "" "name a metric of the external metrics API with autoscaling.hpa.provider hpa" "set it to what your adapter serves") -}}
{{- end -}}
{{- end -}}
