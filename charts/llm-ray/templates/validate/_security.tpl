{{/* Service accounts. Usage: $ */}}
{{- define "llm-ray.validate.security" -}}
{{- with .Values.security.serviceAccount -}}
{{- if and (not .create) (not .name) -}}
{{- include "llm-ray.refuse" (list "security.serviceAccount.name" "" "name an account while create is false; the namespace's default may not label pods" "set it, or create to true") -}}
{{- end -}}
{{- if and .create .name -}}
{{- include "llm-ray.refuse" (list "security.serviceAccount.name" .name "be empty while create is true, when accounts are named after the release" "take it out, or set create to false") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where Ray's control state is kept. Usage: $ */}}
{{- define "llm-ray.validate.faultTolerance" -}}
{{- $gcs := .Values.faultTolerance.gcs -}}
{{- if and (eq $gcs.type "redis") (not $gcs.redis.address) -}}
{{- include "llm-ray.refuse" (list "faultTolerance.gcs.redis.address" "" "name a Redis with faultTolerance.gcs.type redis" "set it to host:port") -}}
{{- end -}}
{{- if ne $gcs.type "redis" -}}
{{- with $gcs.redis -}}
{{- include "llm-ray.refuseAll" (list (dict "faultTolerance.gcs.redis.address" .address "faultTolerance.gcs.redis.existingSecret" .existingSecret)
  (printf "be empty with faultTolerance.gcs.type %s, where nothing would read it" $gcs.type) "set faultTolerance.gcs.type to redis") -}}
{{- end -}}
{{- end -}}
{{- if hasKey .Values.commonAnnotations "ray.io/ft-enabled" -}}
{{- include "llm-ray.refuse" (list "commonAnnotations" "ray.io/ft-enabled" "leave fault tolerance to faultTolerance.gcs: KubeRay refuses a cluster with both" "take the annotation out") -}}
{{- end -}}
{{- if hasKey .Values.commonAnnotations "ray.io/external-storage-namespace" -}}
{{- include "llm-ray.refuse" (list "commonAnnotations" "ray.io/external-storage-namespace" "leave the namespace in Redis to faultTolerance.gcs: KubeRay refuses a cluster with both" "set faultTolerance.gcs.redis.externalStorageNamespace instead") -}}
{{- end -}}
{{- $timeout := index .Values.commonAnnotations "ray.io/initializing-timeout" -}}
{{- if and (hasKey .Values.commonAnnotations "ray.io/initializing-timeout") (not (regexMatch "^([0-9]*[1-9][0-9]*|([0-9.]*[1-9][0-9.]*(ns|us|ms|s|m|h))+)$" (toString $timeout))) -}}
{{- include "llm-ray.refuse" (list "commonAnnotations.ray.io/initializing-timeout" (toString $timeout) "be a duration above 0, or KubeRay refuses the RayService" "write it like 30m, or as a whole number of seconds") -}}
{{- end -}}
{{- end -}}
