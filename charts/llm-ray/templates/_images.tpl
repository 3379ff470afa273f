{{/* Reference of an image: the digest wins over the tag. Usage: (list $ $.Values.image) */}}
{{- define "llm-ray.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $registry := $image.registry | default ($root.Values.global | default dict).imageRegistry -}}
{{- $name := empty $registry | ternary $image.repository (printf "%s/%s" $registry $image.repository) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* imagePullSecrets of a pod, or nothing. Usage: $ */}}
{{- define "llm-ray.imagePullSecrets" -}}
{{- with concat ((.Values.global | default dict).imagePullSecrets | default list) .Values.image.pullSecrets | uniq -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end -}}
