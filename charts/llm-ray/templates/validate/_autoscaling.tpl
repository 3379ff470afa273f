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
{{- include "llm-ray.validate.gangPlacement" . -}}
{{- end -}}

{{/* Usage: $ */}}
{{- define "llm-ray.validate.hpa" -}}
{{- $hpa := .Values.autoscaling.hpa -}}
{{- if and (eq .Values.autoscaling.mode "hpa") (eq $hpa.provider "keda") (not $hpa.keda.serverAddress) -}}
{{- include "llm-ray.refuse" (list "autoscaling.hpa.keda.serverAddress" "" "be the address of Prometheus with autoscaling.hpa.provider keda" "set it to one like http://prometheus-operated.monitoring.svc:9090") -}}
{{- end -}}
{{- range (include "llm-ray.scaledGroups" . | fromJson).groups -}}
{{- if and (gt (int .hosts) 1) (eq $hpa.metricType "Value") -}}
{{- include "llm-ray.refuse" (list "autoscaling.hpa.metricType" "Value" (printf "be AverageValue while workers.%s has %d pods per group: Kubernetes would multiply it by pods, not by groups" .name (int .hosts)) "set it to AverageValue, with a metric that adds up") -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.mode "hpa") (eq $hpa.provider "hpa") (not $hpa.metricName) -}}
{{- include "llm-ray.refuse" (list "autoscaling.hpa.metricName" "" "name a metric of the external metrics API with autoscaling.hpa.provider hpa" "set it to what your adapter serves") -}}
{{- end -}}
{{- end -}}

{{/* Serve's replicas on gangs that come and go. Usage: $ */}}
{{- define "llm-ray.validate.gangPlacement" -}}
{{- $mode := .Values.autoscaling.mode -}}
{{- $strategy := include "llm-ray.placementStrategy" . -}}
{{- $policy := include "llm-ray.autoscalingPolicy" . -}}
{{- if and (eq $strategy "GANG") (ne $mode "hpa") -}}
{{- include "llm-ray.refuse" (list "serve.deployment.placementStrategy" $strategy (printf "be PACK or STRICT_PACK with autoscaling.mode %s, whose pods carry no labels of their gang" $mode) "leave it null") -}}
{{- end -}}
{{- if and (eq $policy "capacity") (eq $mode "serve") -}}
{{- include "llm-ray.refuse" (list "serve.deployment.autoscalingPolicy" $policy "be requests with autoscaling.mode serve: Ray's autoscaler adds pods only for replicas that find none" "leave it null") -}}
{{- end -}}
{{- if and (eq $policy "capacity") (eq $strategy "PACK") -}}
{{- include "llm-ray.refuse" (list "serve.deployment.placementStrategy" $strategy (printf "be GANG or STRICT_PACK with serve.deployment.autoscalingPolicy capacity (autoscaling.mode %s): a replica that may spread over all pods has none of its own to be counted" $mode) "leave both null") -}}
{{- end -}}
{{- range (include "llm-ray.scaledGroups" . | fromJson).groups -}}
{{- if and (gt (int .hosts) 1) (eq $.Values.kuberay.version "1.5") -}}
{{- include "llm-ray.refuse" (list "kuberay.version" "1.5" (printf "be 1.6 or later with autoscaling.mode hpa and groups of %d pods (workers.%s), which KubeRay 1.5 does not tell apart" (int .hosts) .name) "upgrade the operator and say so here, or set autoscaling.mode to serve") -}}
{{- end -}}
{{- if and (eq $strategy "GANG") (gt (int .engines) 1) (lt (int .ranks) (include "llm-ray.worldSize" $ | int)) -}}
{{- include "llm-ray.refuse" (list (printf "workers.%s.numOfHosts" .name) (int .hosts) (printf "be %d with autoscaling.mode hpa, the pods of one engine: a gang that comes and goes holds one" (div (int .hosts) (int .engines))) "leave it null, and raise minReplicas and maxReplicas instead") -}}
{{- end -}}
{{- end -}}
{{- end -}}
