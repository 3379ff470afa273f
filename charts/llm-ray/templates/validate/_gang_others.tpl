{{/* Marks of a second gang scheduler on what the chart makes: the cluster would wait for both. Usage: $ */}}
{{- define "llm-ray.validate.otherGangs" -}}
{{- $provider := .Values.gang.provider -}}
{{- if ne $provider "none" -}}
{{- $owners := dict "kueue.x-k8s.io/queue-name" "kueue" "volcano.sh/queue-name" "kuberay" "ray.io/gang-scheduling-enabled" "kuberay"
  "yunikorn.apache.org/queue" "kuberay" "kai.scheduler/queue" "kuberay" -}}
{{- range $label, $value := .Values.commonLabels -}}
{{- if ne $provider (index $owners $label | default $provider) -}}
{{- include "llm-ray.refuse" (list "commonLabels" $label (printf "not call a second gang scheduler beside gang.provider %s: the cluster would wait for both" $provider) "take the label out, or change gang.provider") -}}
{{- end -}}
{{- end -}}
{{- include "llm-ray.validate.podGangs" (list $provider "head" .Values.head) -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- include "llm-ray.validate.podGangs" (list $provider (printf "workers.%s" .name) .spec) -}}
{{- end -}}
{{- range include "llm-ray.extraDocuments" . | fromJsonArray -}}
{{- if eq (.kind | default "") "PodGroup" -}}
{{- include "llm-ray.refuse" (list "extraObjects" (printf "PodGroup %s" ((.metadata | default dict).name | default "")) (printf "hold no PodGroup beside gang.provider %s, which makes its own" $provider) "take it out, or set gang.provider to none") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list PROVIDER KEY SPEC) */}}
{{- define "llm-ray.validate.podGangs" -}}
{{- if hasKey (index . 2).podAnnotations "scheduling.k8s.io/group-name" -}}
{{- include "llm-ray.refuse" (list (printf "%s.podAnnotations" (index . 1)) "scheduling.k8s.io/group-name" (printf "not name a PodGroup beside gang.provider %s" (index . 0)) "take the annotation out, or set gang.provider to none") -}}
{{- end -}}
{{- end -}}
