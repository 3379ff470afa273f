{{/*
Parts of a pod that collide, or that count on others: KubeRay takes the object, and the API server then refuses each pod, with
nothing but an event. specOverrides are not looked at: they replace lists whole. Usage: $
*/}}
{{- define "llm-ray.validate.podParts" -}}
{{- $root := . -}}
{{- $theirs := eq .Values.autoscaling.mode "serve" | ternary (list "autoscaler") list -}}
{{- include "llm-ray.validate.podNames" (list "head" (include "llm-ray.headPod" . | fromYaml) $theirs) -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- include "llm-ray.validate.podNames" (list (printf "workers.%s" .name) (include "llm-ray.workerPod" (list $root .) | fromYaml) (list "wait-gcs-ready")) -}}
{{- end -}}
{{- $labelled := dict "head" .Values.head.podLabels -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $_ := set $labelled (printf "workers.%s" .name) .spec.podLabels -}}
{{- end -}}
{{- range $key, $labels := $labelled -}}
{{- if hasKey ($labels | default dict) "llm-ray.io/serving" -}}
{{- include "llm-ray.refuse" (list (printf "%s.podLabels" $key) "llm-ray.io/serving" "leave to the deployer which pods get traffic" "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Usage: (list KEY POD NAMES), the containers that KubeRay adds */}}
{{- define "llm-ray.validate.podNames" -}}
{{- $key := index . 0 -}}
{{- $pod := (index . 1).spec -}}
{{- $containers := concat ($pod.initContainers | default list) $pod.containers -}}
{{- $names := index . 2 -}}
{{- range $containers -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range include "llm-ray.twice" $names | fromJsonArray -}}
{{- include "llm-ray.refuse" (list (printf "%s.extraContainers" $key) . "give each container and init container of the pod a name of its own" "rename it there or in extraInitContainers") -}}
{{- end -}}
{{- $volumes := list -}}
{{- range $pod.volumes -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- range include "llm-ray.twice" $volumes | fromJsonArray -}}
{{- include "llm-ray.refuse" (list (printf "%s.extraVolumes" $key) . "give each volume of the pod a name of its own" "rename it") -}}
{{- end -}}
{{- range $container := $containers -}}
{{- $paths := list -}}
{{- range $container.volumeMounts -}}
{{- $paths = append $paths .mountPath -}}
{{- if not (has .name $volumes) -}}
{{- include "llm-ray.refuse" (list (printf "%s.extraVolumeMounts" $key) .name (printf "name a volume of the pod in container %s" $container.name) "add it to extraVolumes, or correct the name") -}}
{{- end -}}
{{- end -}}
{{- range include "llm-ray.twice" $paths | fromJsonArray -}}
{{- include "llm-ray.refuse" (list (printf "%s.extraVolumeMounts" $key) . (printf "give each mount a path of its own in container %s" $container.name) "choose another path") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a list holds more than once. Usage: LIST → JSON list */}}
{{- define "llm-ray.twice" -}}
{{- $seen := list -}}
{{- $twice := list -}}
{{- range . -}}
{{- if has . $seen -}}
{{- $twice = append $twice . -}}
{{- end -}}
{{- $seen = append $seen . -}}
{{- end -}}
{{- uniq $twice | toJson -}}
{{- end -}}
