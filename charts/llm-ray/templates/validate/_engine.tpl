{{/* What the app refuses when it starts, and ports that are taken. Usage: $ */}}
{{- define "llm-ray.validate.engine" -}}
{{- $engine := .Values.engine -}}
{{- if lt (int64 $engine.maxNumBatchedTokens) (int64 $engine.maxNumSeqs) -}}
{{- include "llm-ray.refuse" (list "engine.maxNumBatchedTokens" $engine.maxNumBatchedTokens (printf "be at least engine.maxNumSeqs (%d), so that every running sequence fits one step" (int64 $engine.maxNumSeqs)) "raise it, or lower engine.maxNumSeqs") -}}
{{- end -}}
{{- include "llm-ray.validate.replicas" . -}}
{{- include "llm-ray.validate.ports" . -}}
{{- end -}}

{{/* Serve's replicas against what the workers hold. Usage: $ */}}
{{- define "llm-ray.validate.replicas" -}}
{{- $given := .Values.serve.deployment -}}
{{- $totals := include "llm-ray.totals" . | fromJson -}}
{{- $most := int $totals.maxEngines -}}
{{- $min := kindIs "invalid" $given.minReplicas | ternary $totals.minEngines $given.minReplicas | int -}}
{{- $max := kindIs "invalid" $given.maxReplicas | ternary (max 1 $most) $given.maxReplicas | int -}}
{{- $lasting := eq .Values.autoscaling.mode "hpa" | ternary (int $totals.minEngines) $most -}}
{{- if and (not (kindIs "invalid" $given.minReplicas)) (eq $min 0) (gt (int $totals.minEngines) 0) .Values.serve.excludeHead -}}
{{- include "llm-ray.refuse" (list "serve.deployment.minReplicas" $min "be at least 1 while serve.excludeHead is true: with no replica, no pod is left to take the request that brings one back" "raise it, or set serve.excludeHead to false") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $given.minReplicas)) (gt $min $lasting) -}}
{{- include "llm-ray.refuse" (list "serve.deployment.minReplicas" $min (printf "be at most %d, the replicas that the workers always hold (with autoscaling.mode serve: at most)" $lasting) "raise the replicas of workers, or leave it null") -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $given.maxReplicas)) (gt $max (max 1 $most)) -}}
{{- include "llm-ray.refuse" (list "serve.deployment.maxReplicas" $max (printf "be at most %d, the replicas that the workers hold at most" $most) "raise maxReplicas of workers (replicas with autoscaling.mode fixed), or leave it null") -}}
{{- end -}}
{{- if and (gt $min $max) (not (and (kindIs "invalid" $given.minReplicas) (kindIs "invalid" $given.maxReplicas))) -}}
{{- include "llm-ray.refuse" (list "serve.deployment.minReplicas" $min (printf "be at most serve.deployment.maxReplicas (%d)" $max) "raise maxReplicas, or lower minReplicas; null is what the workers hold") -}}
{{- end -}}
{{- end -}}

{{/* Ports of a Ray pod by the value that sets them, then Ray's own. Usage: $ */}}
{{- define "llm-ray.validate.ports" -}}
{{- $ray := dict "6379" "the GCS" "8080" "Ray's metrics" "8265" "the dashboard" "10001" "Ray clients" "44217" "the autoscaler's metrics"
  "44227" "the dashboard's metrics" "52365" "the dashboard's agent" -}}
{{- if eq .Values.expose.mesh.type "linkerd" -}}
{{- $proxy := "Linkerd's proxy" -}}
{{- $ray = merge $ray (dict "4140" $proxy "4143" $proxy "4190" $proxy "4191" $proxy) -}}
{{- end -}}
{{- $ours := dict "serve.httpPort" .Values.serve.httpPort "serve.grpcPort" .Values.serve.grpcPort "deployer.healthPort" .Values.deployer.healthPort -}}
{{- with .Values.monitoring.logs.collector -}}
{{- if .enabled -}}
{{- $_ := set $ours "monitoring.logs.collector.healthPort" .healthPort -}}
{{- end -}}
{{- end -}}
{{- $taken := dict -}}
{{- range $key := list "serve.httpPort" "serve.grpcPort" "deployer.healthPort" "monitoring.logs.collector.healthPort" -}}
{{- $port := index $ours $key | default 0 | int -}}
{{- $owner := index $ray (toString $port) | default (index $taken (toString $port)) -}}
{{- if $owner -}}
{{- include "llm-ray.refuse" (list $key $port (printf "be a port of its own; this one is taken by %s" $owner) "choose another, e.g. from 20000 to 22999") -}}
{{- else if or (and (ge $port 10002) (le $port 19999)) (and (ge $port 23000) (le $port 23999)) (ge $port 30000) -}}
{{- include "llm-ray.refuse" (list $key $port "stay out of 10002-19999, 23000-23999 and 30000-65535, where Ray's workers, clients and Serve's replicas listen" "choose another, e.g. from 20000 to 22999") -}}
{{- end -}}
{{- if $port -}}
{{- $_ := set $taken (toString $port) $key -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.expose.service.httpPort) (int .Values.expose.service.grpcPort) -}}
{{- include "llm-ray.refuse" (list "expose.service.grpcPort" .Values.expose.service.grpcPort "differ from expose.service.httpPort" "change one of them") -}}
{{- end -}}
{{- end -}}
