{{/* Seconds a pod may take to stop. Usage: (list $ SPEC) */}}
{{- define "llm-ray.gracePeriod" -}}
{{- $given := (index . 1).terminationGracePeriodSeconds -}}
{{- kindIs "invalid" $given | ternary (add (ceil (index . 0).Values.serve.deployment.drainTimeoutS) 30) $given | int -}}
{{- end -}}

{{/* Where and on which network a head or worker pod runs. Takes what llm-ray.podTemplate takes. */}}
{{- define "llm-ray.podPlacement" -}}
{{- $spec := .spec -}}
{{- $out := dict "dnsPolicy" ($spec.dnsPolicy | default ($spec.hostNetwork | ternary "ClusterFirstWithHostNet" "ClusterFirst")) -}}
{{- range $key := list "affinity" "hostNetwork" "nodeSelector" "priorityClassName" "runtimeClassName" "tolerations" "topologySpreadConstraints" -}}
{{- with index $spec $key -}}
{{- $_ := set $out $key . -}}
{{- end -}}
{{- end -}}
{{- with include "llm-ray.gangSchedulerName" .root -}}
{{- $_ := set $out "schedulerName" . -}}
{{- end -}}
{{- with .spec.resourceClaims -}}
{{- $_ := set $out "resourceClaims" . -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
