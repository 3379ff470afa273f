{{/* The kind, who writes replica counts, and what an upgrade does. Usage: $ */}}
{{- define "llm-ray.validate.kind" -}}
{{- $kind := include "llm-ray.kind" . -}}
{{- $mode := .Values.autoscaling.mode -}}
{{- if and (eq $kind "RayCluster") (ne $mode "fixed") (not .Values.autoscaling.allowReplicaReset) -}}
{{- include "llm-ray.refuse" (list "kind" $kind (printf "be RayService with autoscaling.mode %s, because a RayCluster's replica counts belong to Helm: each upgrade would set them back to 0 (Helm 3) or fail with a conflict over spec.workerGroupSpecs (Helm 4)" $mode) "leave kind empty, or set autoscaling.allowReplicaReset to true to take that") -}}
{{- end -}}
{{- $strategy := .Values.rollout.strategy -}}
{{- if and (eq $kind "RayCluster") (has $strategy (list "blueGreen" "incremental")) -}}
{{- include "llm-ray.refuse" (list "rollout.strategy" $strategy "be recreate or none with kind RayCluster, which has no second cluster" "leave it empty, or set kind to RayService") -}}
{{- end -}}
{{- if and (eq $kind "RayService") (eq $strategy "recreate") -}}
{{- include "llm-ray.refuse" (list "rollout.strategy" $strategy "be blueGreen, incremental or none with kind RayService" "leave it empty, or set kind to RayCluster") -}}
{{- end -}}
{{- if and (eq $kind "RayCluster") (eq $strategy "recreate") (eq .Values.kuberay.version "1.5") -}}
{{- include "llm-ray.refuse" (list "rollout.strategy" $strategy "be none with kuberay.version 1.5, which cannot recreate pods" "leave it empty, or upgrade the operator to 1.6 and say so in kuberay.version") -}}
{{- end -}}
{{- if eq (include "llm-ray.rolloutStrategy" .) "incremental" -}}
{{- include "llm-ray.validate.incremental" . -}}
{{- end -}}
{{- if and .Values.auth.rayToken.enabled (eq $kind "RayService") (not .Values.auth.rayToken.existingSecret) -}}
{{- include "llm-ray.refuse" (list "auth.rayToken.existingSecret" "" "name a Secret with key auth_token with kind RayService, whose clusters have names that nobody knows before" "make the Secret and name it here") -}}
{{- end -}}
{{- if and .Values.auth.rayToken.enabled (eq .Values.kuberay.version "1.5") -}}
{{- if eq $kind "RayService" -}}
{{- include "llm-ray.refuse" (list "auth.rayToken.enabled" true "be false with kind RayService on KubeRay 1.5, which takes no Secret by name" "upgrade the operator to 1.6 and say so in kuberay.version") -}}
{{- else if not (has .Values.auth.rayToken.existingSecret (list "" (include "llm-ray.fullname" .))) -}}
{{- include "llm-ray.refuse" (list "auth.rayToken.existingSecret" .Values.auth.rayToken.existingSecret (printf "be %s on KubeRay 1.5, which takes only the Secret that has the cluster's name" (include "llm-ray.fullname" .)) "rename the Secret, or upgrade the operator to 1.6 and say so in kuberay.version") -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.auth.rayToken.enabled) .Values.auth.rayToken.existingSecret -}}
{{- include "llm-ray.refuse" (list "auth.rayToken.existingSecret" .Values.auth.rayToken.existingSecret "be empty while auth.rayToken.enabled is false, because no token is asked for" "set auth.rayToken.enabled to true") -}}
{{- end -}}
{{- end -}}

{{/* What KubeRay asks of an incremental upgrade. Usage: $ */}}
{{- define "llm-ray.validate.incremental" -}}
{{- $options := .Values.rollout.incremental -}}
{{- if ne .Values.autoscaling.mode "serve" -}}
{{- include "llm-ray.refuse" (list "rollout.strategy" "incremental" (printf "be blueGreen or none with autoscaling.mode %s" .Values.autoscaling.mode) "set autoscaling.mode to serve: Ray's autoscaler sizes both clusters while traffic moves") -}}
{{- end -}}
{{- if not $options.gatewayClassName -}}
{{- include "llm-ray.refuse" (list "rollout.incremental.gatewayClassName" "" "name a GatewayClass with rollout.strategy incremental" "set it to one that kubectl get gatewayclass shows") -}}
{{- end -}}
{{- if gt (int $options.stepSizePercent) (int $options.maxSurgePercent) -}}
{{- include "llm-ray.refuse" (list "rollout.incremental.stepSizePercent" $options.stepSizePercent (printf "be at most rollout.incremental.maxSurgePercent (%d)" (int $options.maxSurgePercent)) "lower it, or raise maxSurgePercent") -}}
{{- end -}}
{{- if and (ne .Values.kuberay.version "1.7") (not (has "RayServiceIncrementalUpgrade" .Values.kuberay.featureGates)) -}}
{{- include "llm-ray.refuse" (list "kuberay.featureGates" .Values.kuberay.featureGates (printf "have RayServiceIncrementalUpgrade with rollout.strategy incremental on KubeRay %s, where the gate is off by default" .Values.kuberay.version) "switch it on in the operator and add it here") -}}
{{- end -}}
{{- end -}}
