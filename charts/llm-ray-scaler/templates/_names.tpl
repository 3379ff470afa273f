{{/* Base of every name: the release's, and the chart's unless it is in it; what is over 52 characters is cut and marked by a hash. */}}
{{- define "llm-ray-scaler.fullname" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name -}}
{{- $full := contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- $plain := $full | replace "." "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if and (eq $plain $full) (le (len $full) 52) -}}
{{- $full -}}
{{- else -}}
{{- printf "%s-%s" ($plain | trunc 43 | trimSuffix "-") (sha256sum $full | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/* Service account of the pods. Usage: $ */}}
{{- define "llm-ray-scaler.serviceAccountName" -}}
{{- .Values.security.serviceAccount.create | ternary (include "llm-ray-scaler.fullname" .) .Values.security.serviceAccount.name -}}
{{- end -}}

{{/* Reference of the image: the digest wins over the tag. Usage: $ */}}
{{- define "llm-ray-scaler.image" -}}
{{- $image := .Values.image -}}
{{- $registry := $image.registry | default (.Values.global | default dict).imageRegistry -}}
{{- $name := empty $registry | ternary $image.repository (printf "%s/%s" $registry $image.repository) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* imagePullSecrets of the pod, or nothing. Usage: $ */}}
{{- define "llm-ray-scaler.imagePullSecrets" -}}
{{- with concat ((.Values.global | default dict).imagePullSecrets | default list) .Values.image.pullSecrets | uniq -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end -}}
