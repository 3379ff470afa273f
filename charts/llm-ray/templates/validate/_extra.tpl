{{/* Objects of the user's that would work against the chart. Usage: $ */}}
{{- define "llm-ray.validate.extraObjects" -}}
{{- range include "llm-ray.extraDocuments" . | fromJsonArray -}}
{{- $target := ((.spec | default dict).scaleTargetRef | default dict).kind | default "" -}}
{{- if and (has .kind (list "HorizontalPodAutoscaler" "ScaledObject")) (has $target (list "RayCluster" "RayService" "RayJob" "StatefulSet")) -}}
{{- include "llm-ray.refuse" (list (printf "extraObjects: scaleTargetRef.kind of %s" .kind) $target "have a scale subresource that reaches Ray's workers: RayCluster, RayService and RayJob have none, and Ray's pods are in no StatefulSet" "set autoscaling.mode to hpa, which scales a WorkerGroupScale") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every object of extraObjects, templates rendered. Usage: $ → JSON list */}}
{{- define "llm-ray.extraDocuments" -}}
{{- $out := list -}}
{{- range .Values.extraObjects -}}
{{- range tpl (kindIs "string" . | ternary . (toYaml .)) $ | splitList "\n---" -}}
{{- with . | fromYaml -}}
{{- $out = concat $out (kindIs "slice" .items | ternary .items (list .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}
