{{/* specOverrides that nothing would read. What they do to the cluster is in _kuberay.tpl. Usage: $ */}}
{{- define "llm-ray.validate.overrides" -}}
{{- $overrides := .Values.specOverrides -}}
{{- $names := list -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $name := keys $overrides.workerGroups | sortAlpha -}}
{{- if not (has $name $names) -}}
{{- include "llm-ray.refuse" (list "specOverrides.workerGroups" $name (printf "name a group of workers (%s)" (join ", " $names)) "rename it, or add the group to workers") -}}
{{- end -}}
{{- end -}}
{{- with index .Values.commonAnnotations "ray.io/overwrite-container-cmd" -}}
{{- include "llm-ray.refuse" (list "commonAnnotations.ray.io/overwrite-container-cmd" . "be left out: KubeRay would then start no Ray in any pod" "take it out") -}}
{{- end -}}
{{- if eq (include "llm-ray.kind" .) "RayCluster" -}}
{{- include "llm-ray.refuseAll" (list (dict "specOverrides.rayService" $overrides.rayService) "be empty with kind RayCluster" "set kind to RayService, or use specOverrides.rayCluster") -}}
{{- end -}}
{{- end -}}
