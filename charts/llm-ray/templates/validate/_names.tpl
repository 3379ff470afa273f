{{/* Names that Kubernetes or KubeRay would refuse. Usage: $ */}}
{{- define "llm-ray.validate.names" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "llm-ray.fullname" .)) -}}
{{- include "llm-ray.refuse" (list "the release's name" .Release.Name "start with a letter, as names of KubeRay's objects do" "set fullnameOverride") -}}
{{- end -}}
{{- range $name := keys (.Values.workers | default dict) | sortAlpha -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$" $name) -}}
{{- include "llm-ray.refuse" (list "workers" $name "name a group by at most 30 of a-z, 0-9 and -, a letter first" "rename the group") -}}
{{- else if has $name (list "head" "headgroup") -}}
{{- include "llm-ray.refuse" (list "workers" $name "name no group head or headgroup, which KubeRay and Kueue keep for the head" "rename the group") -}}
{{- end -}}
{{- end -}}
{{- range $name := keys (.Values.fabric.networks | default dict) | sortAlpha -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?$" $name) -}}
{{- include "llm-ray.refuse" (list "fabric.networks" $name "name a network by at most 30 of a-z, 0-9 and -" "rename the network") -}}
{{- end -}}
{{- end -}}
{{- end -}}
