{{/* A name of at most LIMIT characters without dots; what does not fit is cut and marked by a hash. Usage: (list NAME LIMIT) */}}
{{- define "llm-ray.shorten" -}}
{{- $name := index . 0 -}}
{{- $limit := index . 1 | int -}}
{{- $plain := $name | replace "." "-" -}}
{{- if and (eq $plain $name) (le (len $name) $limit) -}}
{{- $name -}}
{{- else -}}
{{- printf "%s-%s" ($plain | trunc (sub $limit 9 | int) | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/* Base of every name: the release's, and the chart's unless it is in it. KubeRay takes 47 characters for a RayService. */}}
{{- define "llm-ray.fullname" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- .Values.fullnameOverride | default (include "llm-ray.shorten" (list $full 47)) -}}
{{- end -}}

{{/* Name of one more object of the release, at most 63 characters. Usage: (list $ "serve") */}}
{{- define "llm-ray.componentName" -}}
{{- include "llm-ray.shorten" (list (printf "%s-%s" (include "llm-ray.fullname" (index . 0)) (index . 1)) 63) -}}
{{- end -}}

{{/* Service that clients use. Usage: $ */}}
{{- define "llm-ray.serveServiceName" -}}
{{- include "llm-ray.componentName" (list . "serve") -}}
{{- end -}}

{{/* Service of the head, made by KubeRay under this name for both kinds. Usage: $ */}}
{{- define "llm-ray.headServiceName" -}}
{{- include "llm-ray.fullname" . }}-head-svc
{{- end -}}

{{/* Service account of the head or the workers: KubeRay cuts names over 50 characters from the front. Usage: (list $ "head") */}}
{{- define "llm-ray.serviceAccountName" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.security.serviceAccount.create -}}
{{- include "llm-ray.shorten" (list (printf "%s-%s" (include "llm-ray.fullname" $root) (index . 1)) 50) -}}
{{- else -}}
{{- $root.Values.security.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}
