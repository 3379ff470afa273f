{{/* One refusal, on a line of its own. Usage: (list KEY VALUE LIMIT FIX) → KEY (VALUE) must LIMIT: FIX */}}
{{- define "llm-ray-scaler.refuse" -}}
{{- $value := index . 1 -}}
{{- $text := and (kindIs "string" $value) (ne (toString $value) "") | ternary $value (toRawJson $value) | toString -}}
{{- printf "\n%s (%s) must %s: %s" (index . 0) (replace "\n" " " $text) (index . 2) (index . 3) -}}
{{- end -}}

{{/* Values that cannot work together, one line each, or nothing. Usage: $ */}}
{{- define "llm-ray-scaler.validate" -}}
{{- if and (eq .Values.image.tag "latest") (not .Values.image.digest) -}}
{{- include "llm-ray-scaler.refuse" (list "image.tag" "latest" "name one version" "set it to a version, or set image.digest") -}}
{{- end -}}
{{- with .Values.security.serviceAccount -}}
{{- if and (not .create) (not .name) -}}
{{- include "llm-ray-scaler.refuse" (list "security.serviceAccount.name" "" "name an account while create is false, or every pod of the namespace could scale clusters" "set it, or create to true") -}}
{{- end -}}
{{- if and .create .name -}}
{{- include "llm-ray-scaler.refuse" (list "security.serviceAccount.name" .name "be empty while create is true, when the account is named after the release" "take it out, or set create to false") -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.scaler.env | default dict) "POD_NAMESPACE" -}}
{{- include "llm-ray-scaler.refuse" (list "scaler.env" "POD_NAMESPACE" "leave out what the chart sets itself" "take it out") -}}
{{- end -}}
{{- end -}}
