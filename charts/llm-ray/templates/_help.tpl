{{/* Where a user looks when nothing serves. */}}

{{/* The cluster as kubectl and events name it. Usage: $ → rayservice/NAME */}}
{{- define "llm-ray.owner" -}}
{{- include "llm-ray.kind" . | lower }}/{{ include "llm-ray.fullname" . -}}
{{- end -}}

{{/* Command that shows what pods, claims and the cluster wait for. Usage: $ */}}
{{- define "llm-ray.eventsCommand" -}}
kubectl -n {{ .Release.Namespace }} events
{{- end -}}

{{/* Command that shows the operator's pods, or nothing where the values do not name them. Usage: $ */}}
{{- define "llm-ray.operatorCommand" -}}
{{- $labels := list -}}
{{- range $key, $value := include "llm-ray.overlay" (list dict .Values.networkPolicy.operatorLabels) | fromYaml -}}
{{- $labels = append $labels (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- with $labels -}}
kubectl get pods -A -l {{ join "," . }}
{{- end -}}
{{- end -}}

{{/* For the pod of `helm test`, on one line. Usage: $ */}}
{{- define "llm-ray.help" -}}
{{- printf "`%s` says what pods and claims wait for; if it says nothing of %s, the KubeRay operator does not act on it" (include "llm-ray.eventsCommand" .) (include "llm-ray.owner" .) -}}
{{- with include "llm-ray.operatorCommand" . -}}
{{- printf ", and the log of its pod (`%s`) says why" . -}}
{{- end -}}
{{- end -}}
