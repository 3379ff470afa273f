{{/* Images that change under a running service. Usage: $ */}}
{{- define "llm-ray.validate.images" -}}
{{- if and (eq .Values.image.tag "latest") (not .Values.image.digest) -}}
{{- include "llm-ray.refuse" (list "image.tag" "latest" "name one version" "set it to a version, or set image.digest") -}}
{{- end -}}
{{- with .Values.monitoring.logs.collector -}}
{{- if and .enabled (not .image.digest) (has .image.tag (list "" "latest")) -}}
{{- include "llm-ray.refuse" (list "monitoring.logs.collector.image.tag" .image.tag "name one version of the collector" "set it to a version, or set digest") -}}
{{- end -}}
{{- end -}}
{{- if and (eq (include "llm-ray.modelKind" .) "oci") (not (regexMatch "@sha256:[a-f0-9]{64}$" .Values.model.source)) -}}
{{- include "llm-ray.refuse" (list "model.source" .Values.model.source "pin the image by its digest" "end it with @sha256: and 64 hexadecimal digits") -}}
{{- end -}}
{{- include "llm-ray.validate.extraImages" (list "head" .Values.head) -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- include "llm-ray.validate.extraImages" (list (printf "workers.%s" .name) .spec) -}}
{{- end -}}
{{- end -}}

{{/* Images of a pod's further containers. Usage: (list KEY SPEC) */}}
{{- define "llm-ray.validate.extraImages" -}}
{{- $owner := index . 0 -}}
{{- $spec := index . 1 -}}
{{- range $section := list "extraContainers" "extraInitContainers" -}}
{{- range $name, $container := index $spec $section -}}
{{- $image := ($container | default dict).image | default "" -}}
{{- if and $container (not (regexMatch "@sha256:[a-f0-9]{64}$" $image)) (not (regexMatch ":[^/:]+$" $image) | or (hasSuffix ":latest" $image)) -}}
{{- include "llm-ray.refuse" (list (printf "%s.%s.%s.image" $owner $section $name) $image "name one version of its image" "end it with a tag that is not latest, or with a digest") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
